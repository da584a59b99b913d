//% gy_odd_d
// Bit 1 set where y is an odd integer (|y| < 2^24; every larger float32 is even).
GY_FN si64 gy_odd_bit(sf64 y) { return (gy_bits(y + 6755399441055744.0) & 1) << 1; }
GY_V(GY_FN gy_hi64 gy_odd_bit(gy_hf64 y) { return ((gy_hi64)(y + 6755399441055744.0) & 1) << 1; })
template <class T> GY_FN auto gy_odd_d(T y) {
  auto bit = gy_odd_bit(gy_sel(gy_abs(y) < 16777216.0, y, T{}));
  return gy_sel(gy_round(y) == y, bit, bit - bit);
}
//% gy_pow_ends : gy_flip_sign
// x to the y from r, which is right for positive x but 1 with y NaN or infinite, and from which bit of `odd` is set where y is
// an odd integer.
template <class T, class I> GY_FN T gy_pow_ends(T x, T y, T r, I odd) {
  T a = gy_abs(x), one = T{} + 1.0;
  r = gy_sel(a == 1.0, gy_sel(y == y, one, y), r);
  T negative = gy_sel((gy_round(y) == y) | (x == 0) | (a == __builtin_inf()), gy_flip_sign(r, odd), T{} + GY_NAN);
  r = gy_sel(gy_copysign(one, x) < 0, negative, r);
  r = gy_sel((x == x) & (y == y), r, x + y);
  return gy_sel((y == 0) | (x == 1.0), one, r);
}
//% gy_pow_d
template <class T> GY_FN T gy_pow_d(T x, T y) { return gy_pow_ends(x, y, gy_exp_d(y * gy_log_d(gy_abs(x))), gy_odd_d(y)); }
//% gy_pow_signed
// The power of x, where r is that of |x|, for finite numbers other than 0.
template <class T> GY_FN T gy_pow_signed(T x, T y, T r) {
  T half = y * 0.5f;
  T negative = gy_sel(gy_round(half) == half, r, -r);
  return gy_sel(x < 0, gy_sel(gy_round(y) == y, negative, T{} + GY_NAN), r);
}
//% gy_pow : gy_pow_signed gy_pow_d gy_log_finite_d gy_all gy_any
#if GY_VEC
static __attribute__((noinline)) vf32 gy_pow_lanes(vf32 x, vf32 y) {
  return gy_join(GY_C(gy_pow_d(GY_C(gy_lo(x), gy_hf64), GY_C(gy_lo(y), gy_hf64)), gy_hf32),
    GY_C(gy_pow_d(GY_C(gy_hi(x), gy_hf64), GY_C(gy_hi(y), gy_hf64)), gy_hf32));
}
GY_FN gy_hf32 gy_pow_half(gy_hf32 x, gy_hf32 y) {
  return GY_C(gy_exp_d(GY_C(y, gy_hf64) * gy_log_finite_d(GY_C(x, gy_hf64))), gy_hf32);
}
// Powers of finite numbers other than 0 to finite exponents have signs for a special case.
static __attribute__((noinline)) vf32 gy_pow(vf32 x, vf32 y) {
  vf32 a = gy_abs(x);
  if (__builtin_expect(!gy_all(gy_mask((a > 0.0f) & (a < GY_INF) & (gy_abs(y) < GY_INF))), 0)) return gy_pow_lanes(x, y);
  vf32 r = gy_join(gy_pow_half(gy_lo(a), gy_lo(y)), gy_pow_half(gy_hi(a), gy_hi(y)));
  return gy_any(gy_mask(x < 0.0f)) ? gy_pow_signed(x, y, r) : r;
}
#endif
static __attribute__((noinline)) sf32 gy_pow_one(sf32 x, sf32 y) { return (sf32)gy_pow_d((sf64)x, (sf64)y); }
GY_FN sf32 gy_pow(sf32 x, sf32 y) { return gy_pow_one(x, y); }
//% gy_log_pair_w : gy_log_split_w
// log(x) = h + l to 2^-64 of itself, for positive finite x. 2 s, its cube's two thirds and the powers of s in both are in two
// parts.
template <class T> GY_FN T gy_log_pair_w(T x, T &l) {
  T e, f = gy_log_split_w(x, e), d = f + 2.0, y = gy_inverse_w(d);
  T s = f * y, t = gy_mad(gy_mad(-s, d, f) - s * (f - (d - 2.0)), y, T{});
  T z = s * s, more = gy_mad(s, s, -z) + 2.0 * s * t;
  T q = z * gy_poly(z, 0.12004659667419895, 0.11672933956168963, 0.13336410547343994, 0.15384554442746526,
    0.18181818906019703, 0.22222222217244572, 0.28571428571446317, 0.39999999999999974);
  T rest, third = gy_sum_w(T{} + 0.6666666666666666, q, rest), w = z * third;
  T v = gy_mad(z, third, -w) + gy_mad(z, rest + 3.700743415417188e-17, more * third), c = s * w;
  T lost, h = gy_sum_w(s + s, c, lost);
  l = lost + gy_mad(s, v, gy_mad(s, w, -c) + gy_mad(t, w, t + t));
  h = gy_sum_w(e * 0.6931471803691238, h, lost);
  l = lost + gy_mad(e, T{} + 1.9082149292705877e-10, l);
  return gy_sum_w(h, l, l);
}
//% gy_pow_f64 : gy_pow_signed gy_pow_ends gy_log_pair_w gy_exp_parts_w gy_scale_w gy_any_w
#if GY_ISA == 0
GY_FN sf64 gy_pow_f64(sf64 x, sf64 y) { return __builtin_pow(x, y); }
#else
// x to the y for positive finite x and finite y.
template <class T> GY_FN T gy_pow_w(T x, T y) {
  T l, h = gy_log_pair_w(x, l), p = y * h, r = gy_mad(y, h, -p) + y * l, c = gy_clamp_w(p, -746.0, 710.0);
  T m, n = gy_exp_parts_w(c, h, m);
  return gy_scale_w(h + gy_mad(h + m, gy_sel(c == p, r, T{}), m), n);
}
template <class T> GY_FN auto gy_pow_is_plain_w(T x, T y) { return (gy_abs(x) > 0) & (gy_abs(x) < __builtin_inf()) & (gy_abs(y) < __builtin_inf()); }
template <class T> GY_FN T gy_pow_all_w(T x, T y) {
  T a = gy_abs(x), half = y * 0.5, zero = T{}, inf = T{} + __builtin_inf();
  T r = gy_pow_w(gy_sel((a > 0) & (a < inf), a, zero + 1.0), gy_sel(gy_abs(y) < inf, y, zero));
  // Powers of 0 and infinity, and to infinity.
  r = gy_sel(gy_abs(y) == inf, gy_sel((a > 1.0) == (y > 0), inf, zero), r);
  r = gy_sel(a == 0, gy_sel(y > 0, zero, inf), gy_sel(a == inf, gy_sel(y > 0, inf, zero), r));
  auto odd = (gy_round(y) == y) & (gy_round(half) != half);
  return gy_pow_ends(x, y, r, gy_bits(gy_sel(odd, gy_float(gy_bits(zero) + 2), zero)));
}
static __attribute__((noinline)) sf64 gy_pow_one_w(sf64 x, sf64 y) { return gy_pow_all_w(x, y); }
static __attribute__((noinline, cold)) vf64 gy_pow_lanes(vf64 x, vf64 y) { return vf64{gy_pow_all_w(x.lo, y.lo), gy_pow_all_w(x.hi, y.hi)}; }
GY_FN sf64 gy_pow_f64(sf64 x, sf64 y) { return gy_pow_one_w(x, y); }
static __attribute__((noinline)) vf64 gy_pow_f64(vf64 x, vf64 y) {
  if (__builtin_expect(gy_any_w(~(gy_pow_is_plain_w(x.lo, y.lo) & gy_pow_is_plain_w(x.hi, y.hi))), 0)) return gy_pow_lanes(x, y);
  vf64 r = {gy_pow_w(gy_abs(x.lo), y.lo), gy_pow_w(gy_abs(x.hi), y.hi)};
  if (!gy_any_w((x.lo < 0) | (x.hi < 0))) return r;
  return vf64{gy_pow_signed(x.lo, y.lo, r.lo), gy_pow_signed(x.hi, y.hi, r.hi)};
}
#endif
//% gy_powi
// x to the n, n >= 1 a constant, by squaring.
template <class T> GY_FN T gy_powi(T x, si64 n) {
  while (!(n & 1)) { x = gy_mul(x, x); n >>= 1; }
  T r = x;
  for (n >>= 1; n; n >>= 1) {
    x = gy_mul(x, x);
    if (n & 1) r = gy_mul(r, x);
  }
  return r;
}
