//% gy_odd_d
// Bit 1 set where y is an odd integer (|y| < 2^24; every larger float32 is even).
GY_FN si64 gy_odd_bit(sf64 y) { return (gy_bits(y + 6755399441055744.0) & 1) << 1; }
GY_V(GY_FN gy_hi64 gy_odd_bit(gy_hf64 y) { return ((gy_hi64)(y + 6755399441055744.0) & 1) << 1; })
template <class T> GY_FN auto gy_odd_d(T y) {
  auto bit = gy_odd_bit(gy_sel(gy_abs(y) < 16777216.0, y, T{}));
  return gy_sel(gy_round(y) == y, bit, bit - bit);
}
//% gy_pow_d : gy_flip_sign
template <class T> GY_FN T gy_pow_d(T x, T y) {
  T a = gy_abs(x), one = T{} + 1.0;
  T r = gy_exp_d(y * gy_log_d(a));
  r = gy_sel(a == 1.0, gy_sel(y == y, one, y), r);
  auto odd = gy_odd_d(y);
  T negative = gy_sel((gy_round(y) == y) | (x == 0) | (a == __builtin_inf()), gy_flip_sign(r, odd), T{} + GY_NAN);
  r = gy_sel(gy_copysign(one, x) < 0, negative, r);
  r = gy_sel((x == x) & (y == y), r, x + y);
  return gy_sel((y == 0) | (x == 1.0), one, r);
}
//% gy_pow : gy_pow_d gy_log_finite_d gy_all
#if GY_VEC
static __attribute__((noinline)) vf32 gy_pow_ends(vf32 x, vf32 y) {
  return gy_join(GY_C(gy_pow_d(GY_C(gy_lo(x), gy_hf64), GY_C(gy_lo(y), gy_hf64)), gy_hf32),
    GY_C(gy_pow_d(GY_C(gy_hi(x), gy_hf64), GY_C(gy_hi(y), gy_hf64)), gy_hf32));
}
GY_FN gy_hf32 gy_pow_half(gy_hf32 x, gy_hf32 y) {
  return GY_C(gy_exp_d(GY_C(y, gy_hf64) * gy_log_finite_d(GY_C(x, gy_hf64))), gy_hf32);
}
// Powers of positive finite numbers to finite exponents have no special cases.
static __attribute__((noinline)) vf32 gy_pow(vf32 x, vf32 y) {
  if (__builtin_expect(!gy_all(gy_mask((x > 0.0f) & (x < GY_INF) & (gy_abs(y) < GY_INF))), 0)) return gy_pow_ends(x, y);
  return gy_join(gy_pow_half(gy_lo(x), gy_lo(y)), gy_pow_half(gy_hi(x), gy_hi(y)));
}
#endif
static __attribute__((noinline)) sf32 gy_pow_one(sf32 x, sf32 y) { return (sf32)gy_pow_d((sf64)x, (sf64)y); }
GY_FN sf32 gy_pow(sf32 x, sf32 y) { return gy_pow_one(x, y); }
GY_PER_LANE_2(gy_pow, __builtin_pow(x, y))
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
