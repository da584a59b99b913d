//% gy_pack gy_pack_load gy_pack_splat
// A vector of numbers, or one where there are no vectors.
#if GY_VEC
typedef vf32 gy_pack;
template <class P> GY_FN gy_pack gy_pack_load(const P *p) { return gy_vload(p); }
GY_FN gy_pack gy_pack_splat(sf32 x) { return gy_vsplat(x); }
#else
typedef sf32 gy_pack;
template <class P> GY_FN gy_pack gy_pack_load(const P *p) { return gy_sload(p); }
GY_FN gy_pack gy_pack_splat(sf32 x) { return x; }
#endif
//% GY_PRODUCT_ROWS GY_EACH_PRODUCT_ROW
// Rows of a product that registers hold at once.
#if GY_ISA == 512 || GY_ISA == 128
#define GY_PRODUCT_ROWS 8
#define GY_EACH_PRODUCT_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#elif GY_ISA == 256
#define GY_PRODUCT_ROWS 6
#define GY_EACH_PRODUCT_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define GY_PRODUCT_ROWS 4
#define GY_EACH_PRODUCT_ROW(X) X(0) X(1) X(2) X(3)
#endif
//% gy_product_tile : GY_PRODUCT_ROWS
// Named values, because arrays of vectors stay in memory at -O2.
#define GY_PRODUCT_READ(n) gy_pack l##n = add ? gy_pack_load(c + n * ldc) : gy_pack_splat(0.0f), h##n = add && wide ? gy_pack_load(c + n * ldc + GY_LANES) : gy_pack_splat(0.0f);
#define GY_PRODUCT_STEP(n) { \
    const gy_pack x = gy_pack_splat(a[n * lda + d]); \
    l##n = gy_mad(x, p, l##n); \
    if (wide) h##n = gy_mad(x, q, h##n); \
  }
#define GY_PRODUCT_WRITE(n) { gy_store(c + n * ldc, l##n); if (wide) gy_store(c + n * ldc + GY_LANES, h##n); }
template <bool add, bool wide> static __attribute__((noinline)) void gy_product_tile(const sf32 *a, si64 lda, const sf32 *b, sf32 *c, si64 ldc, si64 depth) {
  GY_EACH_PRODUCT_ROW(GY_PRODUCT_READ)
  for (si64 d = 0; d < depth; d++, b += GY_PANEL) {
    const gy_pack p = gy_pack_load(b), q = wide ? gy_pack_load(b + GY_LANES) : p;
    GY_EACH_PRODUCT_ROW(GY_PRODUCT_STEP)
  }
  GY_EACH_PRODUCT_ROW(GY_PRODUCT_WRITE)
}
//% GY_PANEL
// Columns of a panel, a matrix whose rows follow one another: those of a tile of registers.
#define GY_PANEL (2 * GY_LANES)
//% gy_product
// c = a b, or c += a b if `add`, of `rows` rows, a multiple of GY_PRODUCT_ROWS, and `columns` columns, one of GY_LANES. b is in panels of
// `tall` rows.
template <bool add> GY_FN void gy_product(const sf32 *a, si64 lda, const sf32 *b, si64 tall, sf32 *c, si64 ldc, si64 rows, si64 columns, si64 depth) {
  si64 k = 0;
  for (; k + GY_PANEL <= columns; k += GY_PANEL)
    for (si64 i = 0; i < rows; i += GY_PRODUCT_ROWS) gy_product_tile<add, true>(a + i * lda, lda, b + k * tall, c + i * ldc + k, ldc, depth);
  if (k < columns)
    for (si64 i = 0; i < rows; i += GY_PRODUCT_ROWS) gy_product_tile<add, false>(a + i * lda, lda, b + k * tall, c + i * ldc + k, ldc, depth);
}
//% gy_rows_of
// Rows of `length` elements, `across` apart, as numbers in rows of `ld`, multiplied by `factor`, zeros behind each.
template <class P> GY_FN void gy_rows_of(const P *from, si64 step, si64 across, si64 rows, si64 length, sf32 *to, si64 ld, sf32 factor = 1.0f) {
  for (si64 i = 0; i < rows; i++) {
    si64 k = 0;
    if (across == 1)
      for (; k + GY_LANES <= length; k += GY_LANES) gy_store(to + i * ld + k, gy_pack_load(from + i * step + k) * gy_pack_splat(factor));
    for (; k < length; k++) to[i * ld + k] = gy_sload(from + i * step + k * across) * factor;
    for (; k < ld; k++) to[i * ld + k] = 0;
  }
}
//% gy_panels_of
// The same in panels of `tall` rows, whose last one has zeros behind the rows.
template <class P> GY_FN void gy_panels_of(const P *from, si64 step, si64 across, si64 rows, si64 length, sf32 *to, si64 tall) {
  for (si64 k = 0; k < length; k += GY_PANEL) gy_rows_of(from + k * across, step, across, rows, gy_least(GY_PANEL, length - k), to + k * tall, GY_PANEL);
}
//% gy_turn_tile
#define GY_TURN_READ(n) gy_pack r##n = gy_pack_load(from + n * step);
#define GY_TURN_WRITE(n) gy_store(to + n * GY_PANEL, r##n);
template <class P> GY_FN void gy_turn_tile(const P *from, si64 step, sf32 *to) {
  GY_EACH_LANE(GY_TURN_READ)
  GY_TURN_LANES
  GY_EACH_LANE(GY_TURN_WRITE)
}
//% gy_turned_panels_of
// The same, turned: each row becomes a column of the panels, zeros up to a multiple of GY_LANES.
template <class P> GY_FN void gy_turned_panels_of(const P *from, si64 step, si64 across, si64 rows, si64 length, sf32 *to) {
  for (si64 i = 0; i < rows; i += GY_LANES, from += GY_LANES * step) {
    sf32 *const at = to + i / GY_PANEL * GY_PANEL * length + i % GY_PANEL;
    const si64 live = gy_least(GY_LANES, rows - i);
    si64 k = 0;
    if (across == 1 && live == GY_LANES)
      for (; k + GY_LANES <= length; k += GY_LANES) gy_turn_tile(from + k, step, at + k * GY_PANEL);
    for (; k < length; k++) {
      gy_store(at + k * GY_PANEL, gy_pack_splat(0.0f));
      for (si64 j = 0; j < live; j++) at[k * GY_PANEL + j] = gy_sload(from + j * step + k * across);
    }
  }
}
//% gy_larger gy_largest
// The larger one, or `b` where either is NaN: one instruction, where gy_maximum has four.
template <class T> GY_FN T gy_larger(T a, T b) { return a > b ? a : b; }
GY_FOLD(gy_largest, gy_larger)
//% gy_hide_later
// Scores of columns after `first` in the first row, after the next one in the second, and so on, do not count.
GY_FN void gy_hide_later(sf32 *scores, si64 ld, si64 rows, si64 width, si64 first) {
  for (si64 i = 0; i < rows; i++, scores += ld) {
    si64 k = first + i < 0 ? 0 : first + i + 1;
    for (; k < width && k % GY_LANES; k++) scores[k] = -__builtin_inff();
    for (; k < width; k += GY_LANES) gy_store(scores + k, gy_pack_splat(-__builtin_inff()));
  }
}
//% gy_weight
// 2^x of x <= 0, and 0 where that would be subnormal, as in ATen: multiplying by such numbers takes a hundred times as long, and masks
// of -100 make many.
GY_FN gy_pack gy_weight(gy_pack x) {
  const gy_pack t = x + 12583039.0f, r = x - (t - 12583039.0f), y = gy_mad(gy_exp2_tail_f(r), r, gy_pack_splat(1.0f));
  return x < gy_pack_splat(-126.0f) ? gy_pack_splat(0.0f) : y * gy_float(gy_bits(t) << 23);
}
//% gy_fold_scores
// Scores, which `scale` converts to binary logarithms, become weights, less the largest score of their row so far; rows of `acc`, the
// sums of what was weighted before, are scaled down where that grows. Scores from `width` on do not count. `scale` is positive, so that
// the largest score is that of the largest product. NaN reaches sums and totals by its weight, and `limit` if that is a result. Products
// and differences are rounded one after the other, so that the weight of the largest score is 1, however large.
template <bool results> GY_FN void gy_fold_scores(sf32 *scores, si64 ld, si64 rows, si64 width, sf32 scale, sf32 *limit, sf32 *total, sf32 *acc, si64 lda) {
  const si64 whole = (width + GY_LANES - 1) / GY_LANES * GY_LANES, tail = whole - GY_LANES;
  const gy_pack factor = gy_pack_splat(scale);
  for (si64 i = 0; i < rows; i++, scores += ld, acc += lda) {
    gy_pack top = gy_pack_load(scores + tail);
    GY_V(top = gy_select(gy_lane_mask(width - tail), top, gy_pack_splat(-__builtin_inff()));)
    gy_store(scores + tail, top);
    gy_pack other = top;
    si64 n = 0;
    for (; n + GY_PANEL <= tail; n += GY_PANEL) {
      const gy_pack x = gy_pack_load(scores + n), y = gy_pack_load(scores + n + GY_LANES);
      top = results ? gy_maximum(x, top) : gy_larger(x, top);
      other = results ? gy_maximum(y, other) : gy_larger(y, other);
    }
    if (n < tail) other = results ? gy_maximum(gy_pack_load(scores + n), other) : gy_larger(gy_pack_load(scores + n), other);
    top = results ? gy_maximum(top, other) : gy_larger(top, other);
    const sf32 before = limit[i], own = (results ? gy_hmax(top) : gy_largest(top)) * scale;
    const sf32 most = results ? gy_maximum(own, before) : gy_larger(own, before);
    const sf32 shift = most == -__builtin_inff() ? 0.0f : most;
    const gy_pack off = gy_pack_splat(shift);
    gy_pack sum = gy_pack_splat(0.0f);
    for (si64 k = 0; k < whole; k += GY_LANES) {
      const gy_pack weight = gy_weight(gy_pack_load(scores + k) * factor - off);
      gy_store(scores + k, weight);
      sum = sum + weight;
    }
    // Nothing was summed before if there was no limit.
    if (before != most && before != -__builtin_inff()) {
      const sf32 decay = gy_exp2(before - shift);
      total[i] *= decay;
      for (si64 k = 0; k < lda; k += GY_LANES) gy_store(acc + k, gy_pack_load(acc + k) * gy_pack_splat(decay));
    }
    limit[i] = most;
    total[i] += gy_hsum(sum);
  }
}
//% gy_put_means
// Rows of sums, divided by their total weights, to rows of `length` elements, `across` apart. What
// has no weight becomes 0.
template <class P> GY_FN void gy_put_means(const sf32 *acc, si64 lda, const sf32 *total, si64 rows, si64 length, P *to, si64 step, si64 across) {
  for (si64 i = 0; i < rows; i++, acc += lda, to += step) {
    const sf32 factor = 1.0f / (total[i] == 0 ? 1.0f : total[i]);
    si64 k = 0;
    if (across == 1)
      for (; k + GY_LANES <= length; k += GY_LANES) gy_store(to + k, gy_pack_load(acc + k) * gy_pack_splat(factor));
    for (; k < length; k++) gy_store(to + k * across, acc[k] * factor);
  }
}
