//% gy_scale_f
// p * 2^i with one rounding, i integral in [-252, 254] and also given as the float n.
#if GY_ISA != 0
template <class T, class I> GY_FN T gy_scale_f(T p, T, I i) {
  I h = i >> 1, g = i - h;
  return p * gy_float((h + 127) << 23) * gy_float((g + 127) << 23);
}
#if GY_ISA == 512
GY_FN vf32 gy_scale_f(vf32 p, vf32 n, vi32) { return (vf32)__builtin_ia32_scalefps512_mask(p, n, p, (su16)-1, 4); }
#endif
#endif
//% gy_exp_rest_f
// x = n ln 2 + r, |x| small enough for n to be an exponent step; t = zero + n. The first difference is exact.
template <class T> GY_FN T gy_exp_rest_f(T x, T &r, sf32 zero = 12582912.0f) {
  T t = gy_mad(x, T{} + 1.44269502f, T{} + zero);
  T n = t - zero;
  r = gy_mad(n, T{} - 0.693138123f, x);
  r = gy_mad(n, T{} - 9.05800061e-6f, r);
  return t;
}
//% gy_exp_parts_f
// exp(x) = 2^n (1 + p); x and t as in gy_exp_rest_f.
template <class T> GY_FN T gy_exp_parts_f(T x, T &p, sf32 zero = 12582912.0f) {
  T r, t = gy_exp_rest_f(x, r, zero);
  T q = gy_poly(r, 0.00139432622f, 0.00836939458f, 0.0416663736f, 0.166665152f, 0.5f);
  p = gy_mad(r * r, q, r);
  return t;
}
//% gy_exp : gy_exp_d
template <class T> GY_FN T gy_exp_series_f(T r) {
  return gy_poly(r, 0.00139432622f, 0.00836939458f, 0.0416663736f, 0.166665152f, 0.5f, 1.0f, 1.0f);
}
template <class T> GY_FN T gy_exp_f(T x) {
  x = gy_lower(gy_raise(x, T{} - 104.0f), T{} + 89.0f);
  T r, t = gy_exp_rest_f(x, r);
  return gy_scale_f(gy_exp_series_f(r), t - 12582912.0f, gy_bits(t) - 0x4b400000);
}
#if GY_ISA == 512
// The scaling saturates at any n, infinite or NaN, so that r alone is held to where the series is positive.
GY_FN vf32 gy_exp_f(vf32 x) {
  vf32 r, t = gy_exp_rest_f(x, r);
  r = (vf32)__builtin_ia32_rangeps512_mask(r, vf32{} + 0.5f, 6, r, (su16)-1, 4);
  return gy_scale_f(gy_exp_series_f(r), t - 12582912.0f, gy_bits(t));
}
#endif
GY_VIA_F32(gy_exp)
sf64 gy_exp(sf64) = delete;
//% gy_exp2_tail_f
// (2^r - 1) / r for |r| <= 1/2.
template <class T> GY_FN T gy_exp2_tail_f(T r) {
  return gy_poly(r, 0.000154628855f, 0.00133909856f, 0.00961806253f, 0.0555035956f, 0.240226507f, 0.693147182f);
}
//% gy_exp2 : gy_exp_d
template <class T> GY_FN T gy_exp2_f(T x) {
  x = gy_lower(gy_raise(x, T{} - 151.0f), T{} + 129.0f);
  T t = x + 12582912.0f, n = t - 12582912.0f, r = x - n;
  return gy_scale_f(gy_mad(gy_exp2_tail_f(r), r, T{} + 1.0f), n, gy_bits(t) - 0x4b400000);
}
template <class T> GY_FN T gy_exp2_d(T x) {
  return gy_exp_d(x * 0.6931471805599453);
}
GY_VIA_F32(gy_exp2)
sf64 gy_exp2(sf64) = delete;
//% gy_expm1 : gy_expm1_d
// exp(x) = 2 s (1 + r + rest): s - 1/2 + s r is summed without loss.
#if GY_ISA != 0
template <class T> GY_FN T gy_expm1_f(T x) {
  T y = gy_lower(gy_raise(x, T{} - 20.0f), T{} + 89.0f);
  T t = gy_mad(y, T{} + 1.44269502f, T{} + 12583038.0f), n = t - 12583038.0f;
  T a = gy_mad(n, T{} - 0.693138123f, y), r = gy_mad(n, T{} - 9.05800061e-6f, a);
  T q = gy_poly(r, 0.00139432622f, 0.00836939458f, 0.0416663736f, 0.166665152f, 0.5f);
  T rest = gy_mad(r * r, q, gy_mad(n, T{} - 9.05800061e-6f, a - r));
  T s = gy_float(gy_bits(t) << 23), h = s - 0.5f;
  T sum = gy_mad(s, r, h), lost = gy_mad(s, r, h - sum) + ((s - h) - 0.5f);
  return gy_sel(gy_abs(x) < 1e-30f, x, (sum + gy_mad(s, rest, lost)) * 2.0f);
}
#endif
GY_VIA_F32(gy_expm1)
sf64 gy_expm1(sf64) = delete;
//% gy_sigmoid : gy_exp_d gy_sigmoid_f
template <class T> GY_FN T gy_sigmoid_d(T x) { return 1.0 / (gy_exp_d(-x) + 1.0); }
GY_VIA_F32(gy_sigmoid)
sf64 gy_sigmoid(sf64) = delete;
//% gy_sigmoid_f
// 1 / (1 + exp(-x)), scaled by 2^64: with exp(-x) = 2^n (1 + p) the denominator is kept in two parts, summed from the
// largest term down without loss, and the quotient corrected once.
#if GY_ISA != 0
template <class T> GY_FN T gy_sigmoid_f(T x) {
  T y = gy_lower(gy_raise(-x, T{} - 40.0f), T{} + 105.0f), p;
  T s = gy_float(gy_bits(gy_exp_parts_f(y, p, 12582975.0f)) << 23), one = T{} + 5.42101086e-20f;
  T v = s * p, large = gy_raise(s, one), small = gy_lower(s, one);
  T sum = large + v, d = sum + small, rest = ((sum - d) + small) + ((large - sum) + v);
  T q = -1.0f / d, e = gy_mad(q, rest, gy_mad(q, d, T{} + 1.0f));
  return gy_mad(q, e, q) * -one;
}
#if GY_ISA == 512
// The same quotient, scaled by 2^64, by an approximation to 14 bits and one step of Newton's; what it leaves is
// summed from the denominator's parts, the largest first.
GY_FN vf32 gy_sigmoid_f(vf32 x) {
  vf32 y = -gy_lower(gy_raise(x, vf32{} - 105.0f), vf32{} + 40.0f), p;
  vf32 s = gy_float(gy_bits(gy_exp_parts_f(y, p, 12582975.0f)) << 23), one = vf32{} + 5.42101086e-20f;
  vf32 v = s * p, large = gy_raise(s, one), small = gy_lower(s, one);
  vf32 q = (vf32)__builtin_ia32_rcp14ps512_mask(large + small + v, s, (su16)-1);
  vf32 more = (vf32)__builtin_ia32_rangeps512_mask(v, small, 7, v, (su16)-1, 4);
  vf32 less = (vf32)__builtin_ia32_rangeps512_mask(v, small, 6, v, (su16)-1, 4);
  vf32 e = gy_less_mad(q, less, gy_less_mad(q, more, gy_less_mad(q, large, vf32{} + 1.0f)));
  return gy_mad(q, e, q) * one;
}
GY_FN sf32 gy_sigmoid_f(sf32 x) { return gy_sigmoid_f(vf32{x})[0]; }
#endif
#endif
