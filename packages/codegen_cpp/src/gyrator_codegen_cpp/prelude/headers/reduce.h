//% GY_FOLD
// Halving folds: the same tree for every lane type, with f of two equal-sized vectors.
#if GY_ISA == 512
#define GY_FOLD_8(T, f, y) \
  y = f(y, __builtin_shufflevector(y, y, 4, 5, 6, 7, 0, 1, 2, 3)); \
  y = f(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 6, 7, 4, 5)); \
  y = f(y, __builtin_shufflevector(y, y, 1, 0, 3, 2, 5, 4, 7, 6));
#define GY_FOLD_V(name, f, n) \
  GY_FN s##n name(v##n x) { \
    v##n y = f(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
    y = f(y, __builtin_shufflevector(y, y, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
    y = f(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
    y = f(y, __builtin_shufflevector(y, y, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)); \
    return y[0]; \
  }
#define GY_FOLD_P(name, f, n) \
  GY_FN s##n name(v##n x) { gy_h##n y = f(x.lo, x.hi); GY_FOLD_8(n, f, y) return y[0]; }
#elif GY_ISA == 256
#define GY_FOLD_V(name, f, n) \
  GY_FN s##n name(v##n x) { \
    v##n y = f(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)); \
    y = f(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 6, 7, 4, 5)); \
    y = f(y, __builtin_shufflevector(y, y, 1, 0, 3, 2, 5, 4, 7, 6)); \
    return y[0]; \
  }
#define GY_FOLD_P(name, f, n) \
  GY_FN s##n name(v##n x) { \
    gy_h##n y = f(x.lo, x.hi); \
    y = f(y, __builtin_shufflevector(y, y, 2, 3, 0, 1)); \
    y = f(y, __builtin_shufflevector(y, y, 1, 0, 3, 2)); \
    return y[0]; \
  }
#elif GY_LANES == 4
#define GY_FOLD_V(name, f, n) \
  GY_FN s##n name(v##n x) { \
    v##n y = f(x, __builtin_shufflevector(x, x, 2, 3, 0, 1)); \
    y = f(y, __builtin_shufflevector(y, y, 1, 0, 3, 2)); \
    return y[0]; \
  }
#define GY_FOLD_P(name, f, n) \
  GY_FN s##n name(v##n x) { \
    gy_h##n y = f(x.lo, x.hi); \
    y = f(y, __builtin_shufflevector(y, y, 1, 0)); \
    return y[0]; \
  }
#endif
#define GY_FOLD_S(name, f, n) GY_FN s##n name(s##n x) { return x; }
#define GY_FOLD_INT(name, f) \
  GY_FOLD_S(name, f, i8) GY_FOLD_S(name, f, i16) GY_FOLD_S(name, f, i32) GY_FOLD_S(name, f, i64) \
  GY_FOLD_S(name, f, u8) GY_FOLD_S(name, f, u16) GY_FOLD_S(name, f, u32) GY_FOLD_S(name, f, u64) \
  GY_V(GY_FOLD_V(name, f, i8) GY_FOLD_V(name, f, i16) GY_FOLD_V(name, f, i32) GY_FOLD_P(name, f, i64) \
  GY_FOLD_V(name, f, u8) GY_FOLD_V(name, f, u16) GY_FOLD_V(name, f, u32) GY_FOLD_P(name, f, u64))
#define GY_FOLD(name, f) \
  GY_FOLD_INT(name, f) GY_FOLD_S(name, f, f32) GY_FOLD_S(name, f, f64) GY_V(GY_FOLD_V(name, f, f32) GY_FOLD_P(name, f, f64))
//% gy_hsum
GY_FOLD(gy_hsum, gy_add)
//% gy_hprod
GY_FOLD(gy_hprod, gy_mul)
//% gy_hmin
GY_FOLD(gy_hmin, gy_minimum)
//% gy_hmax
GY_FOLD(gy_hmax, gy_maximum)
//% gy_hand
template <class T> GY_FN T gy_and(T a, T b) { return a & b; }
GY_FOLD_INT(gy_hand, gy_and)
//% gy_hor
template <class T> GY_FN T gy_or(T a, T b) { return a | b; }
GY_FOLD_INT(gy_hor, gy_or)
//% gy_hxor
template <class T> GY_FN T gy_xor(T a, T b) { return a ^ b; }
GY_FOLD_INT(gy_hxor, gy_xor)
//% gy_hany
template <class M> GY_FN sbool gy_hany(M a) { return gy_any(a); }
//% gy_hall
template <class M> GY_FN sbool gy_hall(M a) { return gy_all(a); }
//% gy_argmin_update
// A NaN beats every number, and an earlier index beats a later one with an equal value.
template <class T, class I> GY_FN void gy_argmin_update(T &best, I &index, T x, I i) {
  auto nan = gy_ne(x, x), best_nan = gy_ne(best, best);
  auto better = (gy_lt(x, best) & gy_not(best_nan)) | (nan & gy_not(best_nan));
  auto tie = (gy_eq(x, best) | (nan & best_nan)) & gy_lt(i, index);
  best = gy_select(better | tie, x, best);
  index = gy_select(better | tie, i, index);
}
//% gy_argmax_update
template <class T, class I> GY_FN void gy_argmax_update(T &best, I &index, T x, I i) {
  auto nan = gy_ne(x, x), best_nan = gy_ne(best, best);
  auto better = (gy_gt(x, best) & gy_not(best_nan)) | (nan & gy_not(best_nan));
  auto tie = (gy_eq(x, best) | (nan & best_nan)) & gy_lt(i, index);
  best = gy_select(better | tie, x, best);
  index = gy_select(better | tie, i, index);
}
//% GY_NEXT
// The same for indices that ascend.
#define GY_NEXT(name, op, compare) \
  template <class T, class I> GY_FN void name(T &best, I &index, T x, I i) { \
    auto better = gy_not(compare(x, best)) & gy_eq(best, best); \
    best = gy_select(better, x, best); \
    index = gy_select(better, i, index); \
  } \
  GY_V(template <class H, class I> GY_FN void name##_half(H &best, I &index, H x, I i) { \
    auto better = ~(x op best) & (best == best); \
    best = gy_sel(better, x, best); \
    index = gy_sel(better, i, index); \
  } \
  template <class H, class I> GY_FN void name(gy_p<H> &best, gy_p<I> &index, gy_p<H> x, gy_p<I> i) { \
    name##_half(best.lo, index.lo, x.lo, i.lo); \
    name##_half(best.hi, index.hi, x.hi, i.hi); \
  })
//% gy_argmin_next
GY_NEXT(gy_argmin_next, >=, gy_ge)
//% gy_argmax_next
GY_NEXT(gy_argmax_next, <=, gy_le)
//% GY_HARG : gy_eq gy_ne gy_select gy_vsplat gy_hmin
#define GY_HARG(name, extreme) \
  GY_V(template <class V, class I> GY_FN auto name(V best, I index) { \
    typedef decltype(gy_hmin(index)) S; \
    auto equal = gy_eq(best, gy_vsplat(extreme(best))) | gy_ne(best, best); \
    return gy_hmin(gy_select(equal, index, gy_vsplat((S)(~0ul >> (65 - 8 * sizeof(S)))))); \
  })
//% gy_hargmin
GY_HARG(gy_hargmin, gy_hmin)
//% gy_hargmax
GY_HARG(gy_hargmax, gy_hmax)
//% gy_welford_add
template <class T> GY_FN void gy_welford_add(T &mean, T &m2, T &n, T x) {
  T d = x - mean;
  n = n + gy_one(T{});
  mean = mean + d / n;
  m2 = gy_mad(d, x - mean, m2);
}
//% gy_one
GY_FN sf32 gy_one(sf32) { return 1; }
GY_FN sf64 gy_one(sf64) { return 1; }
GY_V(GY_FN vf32 gy_one(vf32) { return vf32{} + 1; })
GY_V(GY_FN vf64 gy_one(vf64) { return vf64{gy_hf64{} + 1, gy_hf64{} + 1}; })
//% gy_welford_combine
// Chan, Golub and LeVeque's pairwise update; an empty side (n = 0) leaves the other unchanged.
template <class T> GY_FN void gy_welford_combine(T &mean, T &m2, T &n, T mean2, T m22, T n2) {
  T total = n + n2, d = mean2 - mean;
  T w = gy_select(gy_eq(total, T{}), T{}, n2 / total);
  mean = gy_select(gy_eq(n, T{}), mean2, gy_mad(d, w, mean));
  m2 = gy_select(gy_eq(n2, T{}), m2, gy_select(gy_eq(n, T{}), m22, gy_mad(d * d, n * w, m2 + m22)));
  n = total;
}
//% gy_welford_h : gy_store
template <class S> GY_FN void gy_welford_h_fold(S *m, S *q, S *k, S &mean, S &m2, S &n) {
  for (si32 half = GY_LANES / 2; half > 0; half /= 2)
    for (si32 j = 0; j < half; j++) gy_welford_combine(m[j], q[j], k[j], m[j + half], q[j + half], k[j + half]);
  mean = m[0];
  m2 = q[0];
  n = k[0];
}
#define GY_WELFORD_H(t) \
  GY_FN void gy_welford_h(s##t a, s##t b, s##t c, s##t &mean, s##t &m2, s##t &n) { mean = a; m2 = b; n = c; } \
  GY_V(GY_FN void gy_welford_h(v##t a, v##t b, v##t c, s##t &mean, s##t &m2, s##t &n) { \
    s##t m[GY_LANES], q[GY_LANES], k[GY_LANES]; \
    gy_store(m, a); \
    gy_store(q, b); \
    gy_store(k, c); \
    gy_welford_h_fold(m, q, k, mean, m2, n); \
  })
GY_WELFORD_H(f32) GY_WELFORD_H(f64)
//% GY_LAMBDA
#define GY_LAMBDA __attribute__((always_inline))
//% GY_AS
#define GY_AS(f) [](auto x) GY_LAMBDA { return f(x); }
//% gy_welford_take
template <class M> GY_FN void gy_welford_take(M &mean, M &m2, M given, M share) {
  const M gap = given - mean;
  mean = gy_mad(gap, share, mean);
  m2 = gy_mad(gap, given - mean, m2);
}
//% gy_softmax_take
// Of the two exponentials that the sum takes, that of the larger's difference is one.
template <class T, class W, class E> GY_FN void gy_softmax_take(T &top, W &total, T x, T nothing, E exp) {
  const T higher = gy_maximum(top, x);
  const W part = gy_to_f64(exp(gy_neg(gy_abs(top - x))));
  const W more = gy_select(gy_gt(x, top), gy_mad(total, part, gy_one(W{})), gy_add(total, part));
  // Nothing but minus infinity so far: the difference would be NaN.
  total = gy_select(gy_eq(higher, nothing), W{}, more);
  top = higher;
}
//% gy_welford_block
// Elements `low` to `high` of a row, of which `row` is the first and `sum` the sum, join those
// before by the formula of Chan, Golub and LeVeque. Up to four of `COPIES` sums suffice here.
// `ask` is called for each vector.
#if GY_VEC
#define GY_TAKE(k, load, given) { \
    const V gap = load - middle; \
    gaps##k = given(gy_add(gaps##k, gap), gaps##k); \
    squares##k = given(gy_mad(gap, gap, squares##k), squares##k); \
  }
#define GY_WHOLE(k) ask(low + at + k * GY_LANES); GY_TAKE(k, gy_vload(row + at + k * GY_LANES), GY_ALL_LANES)
#define GY_ALL_LANES(x, old) x
#define GY_LIVE_LANES(x, old) gy_combine_n(x, old, count - at)
template <si64 COPIES, class P, class V, class A>
GY_FN void gy_welford_block(const P *row, si64 low, si64 high, V sum, sf64 &mean, sf64 &m2, si64 &n, A ask) {
  typedef decltype(gy_hsum(sum)) S;
  const si64 count = high - low;
  sf64 here = (sf64)(gy_hsum(sum) / (S)count);
  const V middle = gy_vsplat((S)here);
  V gaps0 = {}, gaps1 = {}, gaps2 = {}, gaps3 = {};
  V squares0 = {}, squares1 = {}, squares2 = {}, squares3 = {};
  constexpr si64 sums = COPIES > 3 ? 4 : COPIES > 1 ? 2 : 1;
  si64 at = 0;
  for (; at + sums * GY_LANES <= count; at += sums * GY_LANES) {
    GY_WHOLE(0)
    if (sums > 1) { GY_WHOLE(1) }
    if (sums > 2) { GY_WHOLE(2) GY_WHOLE(3) }
  }
  for (; at + GY_LANES <= count; at += GY_LANES) { GY_WHOLE(0) }
  if (at < count) GY_TAKE(0, gy_vload_n(row + at, count - at), GY_LIVE_LANES)
  if (sums > 1) gaps0 = gy_add(gaps0, gaps1), squares0 = gy_add(squares0, squares1);
  if (sums > 2) {
    gaps0 = gy_add(gaps0, gy_add(gaps2, gaps3));
    squares0 = gy_add(squares0, gy_add(squares2, squares3));
  }
  // The middle is rounded: what the gaps sum to says by how much it is off.
  const sf64 off = (sf64)gy_hsum(gaps0) / (sf64)count;
  const sf64 deviation = (sf64)gy_hsum(squares0) - off * off * (sf64)count;
  here += off;
  if (n == 0) {
    mean = here, m2 = deviation, n = count;
    return;
  }
  const sf64 before = (sf64)n, share = (sf64)count / (before + (sf64)count), apart = here - mean;
  mean += apart * share;
  m2 += deviation + apart * apart * before * share;
  n += count;
}
#undef GY_TAKE
#undef GY_WHOLE
#undef GY_ALL_LANES
#undef GY_LIVE_LANES
#endif
//% gy_softmax_block
// Elements `low` to `high` of a row, of which `row` is the first and `top` the maximum, join those
// before, which are rescaled to the greater maximum. Their exponentials go to `kept`, if it is not
// null. `ask` is called for each vector.
#if GY_VEC
template <class P, class V, class S, class E, class A>
GY_FN void gy_softmax_block(const P *row, si64 low, si64 high, V top, sf64 &most, sf64 &total, S *kept, E exp, A ask) {
  const si64 count = high - low;
  const sf64 higher = gy_maximum(most, (sf64)gy_hmax(top));
  const V middle = gy_vsplat((S)higher);
  V sums = {};
  si64 at = 0;
  for (; at + GY_LANES <= count; at += GY_LANES) {
    ask(low + at);
    const V part = exp(gy_vload(row + at) - middle);
    if (kept) gy_store(kept + at, part);
    sums = gy_add(sums, part);
  }
  if (at < count) {
    const V part = exp(gy_vload_n(row + at, count - at) - middle);
    if (kept) gy_store(kept + at, part);
    sums = gy_combine_n(gy_add(sums, part), sums, count - at);
  }
  const sf64 sum = (sf64)gy_hsum(sums);
  total = most == -__builtin_inf() ? sum : total * (sf64)exp((S)(most - higher)) + sum;
  most = higher;
}
#endif
//% gy_log_add gy_log_sum
// A sum of exponentials, exp(most) * (1 + rest), takes exp(x); equal infinities have a quotient of 1.
// A step waits for no more than a comparison and a sum of the step before. NaN stays in `rest`.
template <class T> GY_FN void gy_log_add(T &most, T &rest, T x) {
  const auto rises = gy_gt(x, most);
  const T part = gy_exp_f64(gy_select(gy_eq(x, most), T{}, gy_neg(gy_abs(x - most))));
  rest = part + gy_select(rises, rest * part, rest);
  most = gy_select(rises, x, most);
}
template <class T> GY_FN T gy_log_sum(T most, T rest) { return most + gy_log1p_f64(rest); }
//% gy_reach
// A running minimum or maximum moves on to what reaches it, and to each NaN; no number reaches a NaN.
template <class T, class I, class M> GY_FN void gy_reach(T &best, I &at, T x, I place, M reaches) {
  const M moves = gy_ne(x, x) | reaches;
  best = gy_select(moves, x, best);
  at = gy_select(moves, place, at);
}
// A row moves on ever more rarely. A branch does not wait for the comparison.
template <class T, class I> GY_FN void gy_reach(T &best, I &at, T x, I place, sbool reaches) {
  if (__builtin_expect(gy_ne(x, x) | reaches, 0)) {
    best = x;
    at = place;
  }
}
