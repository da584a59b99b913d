//% gy_log_d
template <class T> GY_FN T gy_log_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_ends(x, gy_mad(e, T{} + 0.6931471805599453, gy_log_m_d(m - 1.0)));
}
//% gy_log : gy_log_d
template <class T> GY_FN T gy_log_f(T x) {
  auto tiny = x < 1.17549435e-38f;
  auto i = gy_bits(gy_sel(tiny, x * 8388608.0f, x));
  auto k = (i - 0x3f2aaaab) >> 23;
  T f = gy_float(i - (k << 23)) - 1.0f;
  T e = gy_float(k + 0x4b400000) - 12582912.0f;
  e = gy_sel(tiny, e - 23.0f, e);
  T p = gy_poly(f, 0.119584717f, -0.128301337f, 0.107695542f, -0.12199416f, 0.143027171f,
    -0.166792959f, 0.199996814f, -0.249998271f, 0.333333343f);
  T f2 = f * f;
  T y = gy_mad(e, T{} - 1.90465430e-9f, p * (f2 * f));
  y = gy_mad(T{} - 0.5f, f2, y);
  return gy_log_ends(x, gy_mad(e, T{} + 0.693147182f, f + y));
}
GY_VIA_F32(gy_log)
sf64 gy_log(sf64) = delete;
//% gy_log2
template <class T> GY_FN T gy_log2_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_ends(x, gy_mad(gy_log_m_d(m - 1.0), T{} + 1.4426950408889634, e));
}
GY_VIA_F64(gy_log2)
sf64 gy_log2(sf64) = delete;
//% gy_log10
template <class T> GY_FN T gy_log10_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_ends(x, gy_mad(e, T{} + 0.3010299956639812, gy_log_m_d(m - 1.0) * 0.4342944819032518));
}
GY_VIA_F64(gy_log10)
sf64 gy_log10(sf64) = delete;
//% gy_log1p_d
template <class T> GY_FN T gy_log1p_d(T x) {
  T u = x + 1.0, e, m = gy_log_parts_d(u, e);
  T r = gy_mad(e, T{} + 0.6931471805599453, gy_log_m_d(gy_sel(e == 0, x, m - 1.0)));
  return gy_sel(x == 0, x, gy_log_ends(u, r));
}
//% gy_log1p : gy_log1p_d
GY_VIA_F64(gy_log1p)
sf64 gy_log1p(sf64) = delete;
