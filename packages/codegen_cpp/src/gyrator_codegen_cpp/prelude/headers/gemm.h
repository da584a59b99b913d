//% gy_tile_step
// One more product for each lane of an accumulator.
#if GY_VEC
GY_FN vf32 gy_tile_step(vf32 a, vf32 b, vf32 c) { return gy_mad(a, b, c); }
GY_FN vf64 gy_tile_step(vf64 a, vf64 b, vf64 c) { return gy_mad(a, b, c); }
GY_FN vi32 gy_tile_step(vi32 a, vi32 b, vi32 c) { return c + a * b; }
#endif
//% gy_registers gy_each : GY_LAMBDA
// N values that stay in registers, unlike an array of vectors at -O2; `gy_each` calls a function for each value and its number,
// and for the values of the same number in two lists.
template <class V, si64 N> struct gy_registers {
  V first;
  gy_registers<V, N - 1> rest;
};
template <class V> struct gy_registers<V, 0> {};
template <si64 K = 0, class V, si64 N, class F> GY_FN void gy_each(gy_registers<V, N> &x, F f) {
  if constexpr (N > 0) f(x.first, K), gy_each<K + 1>(x.rest, f);
}
template <class V, si64 N, class F> GY_FN void gy_each(gy_registers<V, N> &x, gy_registers<V, N> &y, F f) {
  if constexpr (N > 0) f(x.first, y.first), gy_each(x.rest, y.rest, f);
}
//% gy_tile_columns
// Columns of a register tile: two vectors of 32-bit elements, or one of 64-bit elements, which is two registers.
template <class T> GY_FN constexpr si64 gy_tile_columns() { return sizeof(T) == 4 ? 2 * GY_LANES : GY_LANES; }
//% gy_register_tile
// c = a b of R rows, or c += a b if `add`: at each depth, a has R of S elements, and b those of a tile's columns, `stride` apart.
// While the sums are accumulated, what is needed next is prefetched from `ahead`, `step` elements apart, again and again after
// `mask` + 1 depths: lines of c, which are in L2 or beyond (BLIS does so, all at once: Van Zee and van de Geijn, "BLIS: A
// Framework for Rapidly Instantiating BLAS Functionality", 2015), or the next panel of b.
template <class T, si64 R, si64 S = R> static __attribute__((noinline)) void gy_register_tile(const T *a, const T *b, si64 stride, T *c, si64 depth, bool add, const T *ahead, si64 step, si64 mask) {
  typedef decltype(gy_vload(a)) V;
  constexpr si64 W = gy_tile_columns<T>(), N = W / GY_LANES;
  gy_registers<gy_registers<V, N>, R> sums;
  gy_each(sums, [&](auto &row, si64) GY_LAMBDA { gy_each(row, [&](V &s, si64) GY_LAMBDA { s = V{}; }); });
  for (si64 d = 0; d < depth; d++, a += S, b += stride) {
    gy_registers<V, N> across;
    __builtin_prefetch(ahead + (d & mask) * step);
    gy_each(across, [&](V &y, si64 n) GY_LAMBDA { y = gy_vload(b + n * GY_LANES); });
    gy_each(sums, [&](auto &row, si64 r) GY_LAMBDA {
      const V x = gy_vsplat(a[r]);
      gy_each(row, across, [&](V &s, V &y) GY_LAMBDA { s = gy_tile_step(x, y, s); });
    });
  }
  gy_each(sums, [&](auto &row, si64 r) GY_LAMBDA {
    gy_each(row, [&](V &s, si64 n) GY_LAMBDA {
      T *const to = c + r * W + n * GY_LANES;
      gy_store(to, add ? s + gy_vload(to) : s);
    });
  });
}
//% gy_pack_one
// Up to `live` rows of a panel of width W, element by element; the others are zeros.
template <si64 W, class T, class S> GY_FN void gy_pack_one(T *to, si64 first, si64 live, si64 start, si64 depth, S one) {
  for (si64 k = 0; k < depth; k++)
    for (si64 n = 0; n < W && n < GY_LANES; n++) to[k * W + n] = n < live ? one(first + n, start + k) : T(0);
}
//% gy_pack_across
// Panels of width W of rows `low` to `high` of an operand, at depths from `start`: `at(row, depth)` is a vector of rows. A
// vector that is longer than W goes beyond its place, and the next one overwrites what is too much.
template <si64 W, class T, class V, class S> GY_FN void gy_pack_across(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
  for (si64 i = low; i < high; i += W, to += W * depth)
    for (si64 g = 0; g < W; g += GY_LANES) {
      if (i + g + GY_LANES <= high)
        for (si64 k = 0; k < depth; k++) gy_store(to + k * W + g, at(i + g, start + k));
      else
        gy_pack_one<W>(to + g, i + g, high - i - g, start, depth, one);
    }
}
//% gy_pack_transposed
// The same, but `at(row, depth)` is a vector of depths, and blocks of rows and depths are transposed in registers. The last
// vector ends at the end of the depth, so that no part of one is left.
#define GY_PACK_READ(n) auto r##n = at(gy_least(j + n, high - 1), start + k);
#define GY_PACK_WRITE(n) gy_store(to + (k + n) * W + g, r##n);
#define GY_PACK_SPREAD(n) if (n < W - g) { \
    T lanes[GY_LANES]; \
    gy_store(lanes, at(gy_least(j + n, high - 1), start + k)); \
    for (si64 d = 0; d < GY_LANES; d++) to[(k + d) * W + g + n] = lanes[d]; \
  }
template <si64 W, class T, class V, class S> GY_FN void gy_pack_transposed(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
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
template <si64 W, bool transposed, class T, class V, class S> GY_FN void gy_panels(T *to, si64 low, si64 high, si64 start, si64 depth, V at, S one) {
  if constexpr (transposed) gy_pack_transposed<W>(to, low, high, start, depth, at, one);
  else gy_pack_across<W>(to, low, high, start, depth, at, one);
}
//% gy_matrix_product
// A block of a product of matrices, as in "Anatomy of High-Performance Matrix Multiplication" (Goto and van de Geijn 2008):
// for `deep` elements of the depth, `tall` rows of the left operand are packed and stay in the L2 cache, while panels of columns
// of the right one pass through L1, each packed when it is needed for the first time. A left operand that L2 holds is packed as a
// whole, and the partial sums of a panel stay in L1. Tiles have R rows, and what is left L. `done(tile, row, rows, column,
// columns)` gets each finished tile. Operands are `at(row, depth)`, a vector, and `one(row, depth)`, an element. With `direct`,
// whole tiles of the right operand are not packed: `address(column, depth)` is that of the first element, and depths are `stride`
// elements apart. If this is a tile's width, panels are in memory, and the tiles of one panel prefetch the next one together:
// packing would otherwise have waited for it.
template <class T, si64 R, si64 L, bool left_transposed, bool right_transposed, bool direct, class LV, class LS, class RV, class RS, class P, class F>
GY_FN void gy_matrix_product(si64 top, si64 bottom, si64 first, si64 last, si64 depth, si64 tall, si64 deep, LV left, LS left_one, RV right, RS right_one, P address, si64 stride, F done) {
  constexpr si64 W = gy_tile_columns<T>(), large = 1 << 18;
  const si64 packed = direct ? first + (last - first) / W * W : first;
  const si64 most = gy_least(deep, depth), height = (bottom - top + R - 1) / R * R, spare = GY_LANES * sizeof(T);
  const bool whole = depth <= deep, kept = height * depth * (si64)sizeof(T) <= large;
  if (kept) tall = height;
  const bool once = height <= tall;
  const si64 width = (last - first + W - 1) / W * W, wide = kept ? W : width;
  const gy_scratch left_memory(sizeof(T) * (kept ? depth : most) * gy_least(tall, height) + spare);
  const gy_scratch right_memory(sizeof(T) * most * gy_least(once ? W : width, first + width - packed) + spare);
  const gy_scratch sum_memory(whole ? 0 : sizeof(T) * height * wide);
  T *const l = (T *)left_memory.aligned(), *const r = (T *)right_memory.aligned(), *const sums = (T *)sum_memory.aligned();
  alignas(64) T tile[R * W];
  for (si64 from = first; from < last; from += wide) {
    for (si64 k = 0; k == 0 || k < depth; k += deep) {
      const si64 count = gy_least(deep, depth - k), to = gy_least(from + wide, last);
      T *const rows = l + (kept ? k * height : 0);
      for (si64 block = top; block < bottom; block += tall) {
        const si64 end = gy_least(block + tall, bottom);
        if (!kept || from == first) gy_panels<R, left_transposed>(rows, block, end, k, count, left, left_one);
        for (si64 j = from; j < to; j += W) {
          const bool in_place = direct && j < packed;
          T *const panel = r + (once ? 0 : j - packed) * count;
          if (block == top && !in_place) gy_panels<W, right_transposed>(panel, j, gy_least(j + W, last), k, count, right, right_one);
          const T *b = panel, *next = nullptr;
          const si64 tiles = (end - block + R - 1) / R, part = count * W / tiles;
          if constexpr (direct) {
            if (in_place) b = address(j, k);
            if (in_place && stride == W) next = b;
            if (next && k + count < depth && (kept || j + W >= packed)) next = address(kept ? j : first, k + count);
            else if (next && j + W < packed) next = address(j + W, kept ? 0 : k);
          }
          for (si64 i = block; i < end; i += R) {
            const T *const a = rows + (i - block) * count;
            T *const c = whole ? tile : sums + (i - top) * wide + (j - from) * R;
            const T *const ahead = next ? next + (i - block) / R * part : c;
            const si64 apart = in_place ? stride : W, step = !next ? 64 / (si64)sizeof(T) : tiles < W ? W / tiles : 1, mask = next ? -1 : 31;
            if (L == R || i + R <= end) gy_register_tile<T, R>(a, b, apart, c, count, k > 0, ahead, step, mask);
            else gy_register_tile<T, L, R>(a, b, apart, c, count, k > 0, ahead, step, mask);
            if (k + count == depth) done(c, i, gy_least(i + R, end), j, gy_least(j + W, last));
          }
        }
      }
    }
  }
}
//% gy_dots : GY_LAMBDA
// The dot products of R rows from `i` and C columns from `j`, along a depth of at least a vector, by vectors. Rows and columns
// beyond the last ones are these again.
template <si64 R, si64 C, class T, class LV, class RV> GY_FN void gy_dots(T *to, si64 width, si64 i, si64 bottom, si64 j, si64 last, si64 depth, LV left, RV right) {
  typedef decltype(left(0, 0)) V;
  gy_registers<gy_registers<V, C>, R> sums;
  gy_each(sums, [&](auto &row, si64) GY_LAMBDA { gy_each(row, [&](V &s, si64) GY_LAMBDA { s = V{}; }); });
  for (si64 d = 0; d + GY_LANES <= depth; d += GY_LANES) {
    gy_registers<V, C> across;
    gy_each(across, [&](V &y, si64 c) GY_LAMBDA { y = right(gy_least(j + c, last - 1), d); });
    gy_each(sums, [&](auto &row, si64 r) GY_LAMBDA {
      const V x = left(gy_least(i + r, bottom - 1), d);
      gy_each(row, across, [&](V &s, V &y) GY_LAMBDA { s = gy_mad(x, y, s); });
    });
  }
  gy_each(sums, [&](auto &row, si64 r) GY_LAMBDA { gy_each(row, [&](V &s, si64 c) GY_LAMBDA { to[r * width + c] = gy_hsum(s); }); });
}
//% gy_dot_product
// A block of a product of few rows, whose operands are both contiguous along the depth and are not packed: each element is a
// dot product along vectors, R rows by C columns at once. All rows of a group of columns are computed while these are in the L1
// cache, so that the right operand is read once. Tiles have three vectors of columns; the other parameters are those of
// `gy_matrix_product`.
template <class T, si64 R, class LV, class LS, class RV, class RS, class F>
GY_FN void gy_dot_product(si64 top, si64 bottom, si64 first, si64 last, si64 depth, LV left, LS left_one, RV right, RS right_one, F done) {
  constexpr si64 W = 3 * GY_LANES, C = GY_LANES == 8 ? (R > 4 ? 2 : 3) : (R > 4 ? 4 : 6);
  const si64 height = (bottom - top + R - 1) / R * R, rest = depth / GY_LANES * GY_LANES;
  const gy_scratch memory(sizeof(T) * height * W);
  T *const tiles = (T *)memory.aligned();
  for (si64 j = first; j < last; j += W) {
    for (si64 c = 0; c < W && j + c < last; c += C)
      for (si64 i = top; i < bottom; i += R) {
        T *const to = tiles + (i - top) * W + c;
        gy_dots<R, C>(to, W, i, bottom, j + c, last, depth, left, right);
        for (si64 d = rest; d < depth; d++)
          for (si64 r = 0; r < R && i + r < bottom; r++)
            for (si64 n = 0; n < C && j + c + n < last; n++) to[r * W + n] = gy_mad(left_one(i + r, d), right_one(j + c + n, d), to[r * W + n]);
      }
    for (si64 i = top; i < bottom; i += R) done(tiles + (i - top) * W, i, gy_least(i + R, bottom), j, gy_least(j + W, last));
  }
}
