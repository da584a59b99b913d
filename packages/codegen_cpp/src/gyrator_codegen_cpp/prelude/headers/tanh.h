//% gy_tanh : gy_exp_d
template <class T> GY_FN T gy_tanh_d(T x) {
  T t = gy_expm1_d(gy_sel(x > 20.0, T{} + 40.0, x + x));
  return gy_sel(x == 0, x, t / (t + 2.0));
}
// From 0.65 on 1 - 2 / (exp(2a) + 1): with exp(2a) = 2^n (1 + p), both parts of the quotient are
// divided by 2^n; the denominator is kept in two parts and its reciprocal corrected once.
template <class T> GY_FN T gy_tanh_f(T x) {
  T a = gy_abs(x), z = x * x, b = gy_lower(a, T{} + 10.0f);
  T poly = gy_poly(z, 0.00213934202f, -0.00817705877f, 0.0217024535f, -0.053947553f, 0.133332178f, -0.333333313f);
  T small = gy_mad(x * z, poly, x);
  T p, t = gy_exp_parts_f(b + b, p);
  T s = gy_float((0x4b400000 + 127 - gy_bits(t)) << 23);
  T one = s + 1.0f, d = one + p, rest = (one - d) + p;
  T q = 1.0f / d;
  T e = gy_mad(-q, rest, gy_mad(-q, d, T{} + 1.0f));
  T large = gy_mad(-(s + s), gy_mad(q, e, q), T{} + 1.0f);
  return gy_copysign(gy_sel(a < 0.65f, small, large), x);
}
GY_VIA_F32(gy_tanh)
sf64 gy_tanh(sf64) = delete;
//% gy_sinh
template <class T> GY_FN T gy_sinh_d(T x) {
  T t = gy_expm1_d(gy_abs(x));
  return gy_copysign((t + t / (t + 1.0)) * 0.5, x);
}
GY_VIA_F64(gy_sinh)
GY_PER_LANE(gy_sinh, __builtin_sinh(x))
//% gy_cosh
template <class T> GY_FN T gy_cosh_d(T x) {
  T e = gy_exp_d(gy_abs(x));
  return (e + 1.0 / e) * 0.5;
}
GY_VIA_F64(gy_cosh)
GY_PER_LANE(gy_cosh, __builtin_cosh(x))
//% gy_asinh : gy_log1p_d
template <class T> GY_FN T gy_asinh_d(T x) {
  T a = gy_abs(x), s = a * a;
  T r = gy_log1p_d(a + s / (gy_sqrt(s + 1.0) + 1.0));
  return gy_copysign(gy_sel(a < __builtin_inf(), r, a), x);
}
GY_VIA_F64(gy_asinh)
GY_PER_LANE(gy_asinh, __builtin_asinh(x))
//% gy_acosh : gy_log1p_d
template <class T> GY_FN T gy_acosh_d(T x) {
  T t = x - 1.0;
  T r = gy_log1p_d(t + gy_sqrt(t * (t + 2.0)));
  return gy_sel(t < 0, T{} + __builtin_nan(""), r);
}
GY_VIA_F64(gy_acosh)
GY_PER_LANE(gy_acosh, __builtin_acosh(x))
//% gy_atanh : gy_log1p_d
template <class T> GY_FN T gy_atanh_d(T x) {
  T a = gy_abs(x);
  return gy_copysign(gy_log1p_d((a + a) / (1.0 - a)) * 0.5, x);
}
GY_VIA_F64(gy_atanh)
GY_PER_LANE(gy_atanh, __builtin_atanh(x))
