//% gy_tile_step
// One more product for each lane of an accumulator.
#if GY_VEC
GY_FN vf32 gy_tile_step(vf32 a, vf32 b, vf32 c) { return gy_mad(a, b, c); }
GY_FN vf64 gy_tile_step(vf64 a, vf64 b, vf64 c) { return gy_mad(a, b, c); }
GY_FN vi32 gy_tile_step(vi32 a, vi32 b, vi32 c) { return c + a * b; }
#endif
//% gy_tile_columns
// Columns of a register tile: two vectors of 32-bit elements, or one of 64-bit elements, which is two registers.
template <class T> GY_FN constexpr si64 gy_tile_columns() { return sizeof(T) == 4 ? 2 * GY_LANES : GY_LANES; }
//% gy_register_tile
// c += a b of R rows: at each depth, a has R elements, and b those of a tile's columns, `step` apart.
// Named values, because arrays of vectors stay in memory at -O2.
#define GY_EACH_TILE_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define GY_TILE_READ(n) V l##n, h##n; if constexpr (n < R) { l##n = gy_vload(c + n * W); if constexpr (two) h##n = gy_vload(c + n * W + GY_LANES); }
#define GY_TILE_STEP(n) if constexpr (n < R) { \
    const V x = gy_vsplat(a[n]); \
    l##n = gy_tile_step(x, p, l##n); \
    if constexpr (two) h##n = gy_tile_step(x, q, h##n); \
  }
#define GY_TILE_WRITE(n) if constexpr (n < R) { gy_store(c + n * W, l##n); if constexpr (two) gy_store(c + n * W + GY_LANES, h##n); }
template <class T, si64 R> static __attribute__((noinline)) void gy_register_tile(const T *a, const T *b, si64 step, T *c, si64 depth) {
  typedef decltype(gy_vload(a)) V;
  constexpr si64 W = gy_tile_columns<T>();
  constexpr bool two = W > GY_LANES;
  GY_EACH_TILE_ROW(GY_TILE_READ)
  _Pragma("GCC unroll 2") for (si64 d = 0; d < depth; d++, a += R, b += step) {
    V p = gy_vload(b), q;
    if constexpr (two) q = gy_vload(b + GY_LANES);
    GY_EACH_TILE_ROW(GY_TILE_STEP)
  }
  GY_EACH_TILE_ROW(GY_TILE_WRITE)
}
//% gy_pack_one
// Up to `live` rows of a panel of width W, element by element; the others are zeros.
template <si64 W, class T, class S> GY_FN void gy_pack_one(T *to, si64 first, si64 live, si64 start, si64 depth, S one) {
  for (si64 k = 0; k < depth; k++)
    for (si64 n = 0; n < W && n < GY_LANES; n++) to[k * W + n] = n < live ? one(first + n, start + k) : T(0);
}
//% gy_pack_across
// Panels of width W of rows `low` to `high` of an operand, at depths from `start`: `at(row, depth)` is a vector of rows. A
// vector that is longer than W goes beyond its place, where the next one is stored later.
template <si64 W, class T, class V, class S> GY_FN void gy_pack_across(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
  for (si64 i = low; i < high; i += W, to += W * depth)
    for (si64 g = 0; g < W; g += GY_LANES) {
      if (i + g + GY_LANES <= high)
        for (si64 k = 0; k < depth; k++) gy_store(to + k * W + g, at(i + g, start + k));
      else
        gy_pack_one<W>(to + g, i + g, high - i - g, start, depth, one);
    }
}
//% gy_pack_turned
// The same, but `at(row, depth)` is a vector of depths, and rows are turned into columns in registers. The last vector ends
// where the depth ends, so that no part of one is left.
#define GY_PACK_READ(n) auto r##n = at(gy_least(j + n, high - 1), start + k);
#define GY_PACK_WRITE(n) gy_store(to + (k + n) * W + g, r##n);
#define GY_PACK_SPREAD(n) if (n < W - g) { \
    T lanes[GY_LANES]; \
    gy_store(lanes, at(gy_least(j + n, high - 1), start + k)); \
    for (si64 d = 0; d < GY_LANES; d++) to[(k + d) * W + g + n] = lanes[d]; \
  }
template <si64 W, class T, class V, class S> GY_FN void gy_pack_turned(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
  for (si64 i = low; i < high; i += W, to += W * depth)
    for (si64 g = 0; g < W; g += GY_LANES) {
      const si64 j = i + g;
      if (depth >= GY_LANES && j < high)
        for (si64 next = 0; next < depth; next += GY_LANES) {
          const si64 k = gy_least(next, depth - GY_LANES);
          if constexpr (sizeof(T) == 4) {
            GY_EACH_LANE(GY_PACK_READ)
            GY_TURN_LANES
            GY_EACH_LANE(GY_PACK_WRITE)
          } else {
            GY_EACH_LANE(GY_PACK_SPREAD)
          }
        }
      else
        gy_pack_one<W>(to + g, j, high - j, start, depth, one);
    }
}
//% gy_panels
template <si64 W, bool turned, class T, class V, class S> GY_FN void gy_panels(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
  if constexpr (turned) gy_pack_turned<W>(to, low, high, start, depth, at, one);
  else gy_pack_across<W>(to, low, high, start, depth, at, one);
}
//% gy_matrix_product
// A block of a product of matrices, as in "Anatomy of High-Performance Matrix Multiplication" (Goto and van de Geijn 2008):
// the right operand is packed for `deep` elements of the depth, then `tall` rows of the left one, and register tiles of R rows
// walk both. `done(tile, row, rows, column, columns)` gets each finished tile. Operands are `at(row, depth)`, a vector, and
// `one(row, depth)`, an element. With `direct`, whole tiles of the right operand are read where they are, from
// `where(column, depth)` on, `step` apart.
template <class T, si64 R, bool left_turned, bool right_turned, bool direct, class LV, class LS, class RV, class RS, class P, class F>
GY_FN void gy_matrix_product(si64 top, si64 bottom, si64 first, si64 last, si64 depth, si64 tall, si64 deep, LV left, LS left_one, RV right, RS right_one, P where, si64 step, F done) {
  constexpr si64 W = gy_tile_columns<T>();
  const si64 packed = direct ? first + (last - first) / W * W : first;
  const si64 most = gy_least(deep, depth), width = (last - first + W - 1) / W * W;
  const si64 height = (bottom - top + R - 1) / R * R, spare = GY_LANES * sizeof(T);
  const bool whole = depth <= deep;
  const gy_scratch left_memory(sizeof(T) * most * gy_least(tall, height) + spare), right_memory(sizeof(T) * most * (first + width - packed) + spare);
  const gy_scratch sum_memory(whole ? 0 : sizeof(T) * height * width);
  T *const l = (T *)left_memory.aligned(), *const r = (T *)right_memory.aligned(), *const sums = (T *)sum_memory.aligned();
  alignas(64) T tile[R * W];
  for (si64 k = 0; k == 0 || k < depth; k += deep) {
    const si64 count = gy_least(deep, depth - k);
    gy_panels<W, right_turned>(r, packed, last, k, count, right, right_one);
    for (si64 block = top; block < bottom; block += tall) {
      const si64 end = gy_least(block + tall, bottom);
      gy_panels<R, left_turned>(l, block, end, k, count, left, left_one);
      for (si64 j = first; j < last; j += W)
        for (si64 i = block; i < end; i += R) {
          T *const c = whole ? tile : sums + (i - top) * width + (j - first) * R;
          if (k == 0) __builtin_memset(c, 0, sizeof tile);
          const T *b = r + (j - packed) * count;
          si64 apart = W;
          if constexpr (direct)
            if (j < packed) b = where(j, k), apart = step;
          gy_register_tile<T, R>(l + (i - block) * count, b, apart, c, count);
          if (k + count == depth) done(c, i, gy_least(i + R, end), j, gy_least(j + W, last));
        }
    }
  }
}
