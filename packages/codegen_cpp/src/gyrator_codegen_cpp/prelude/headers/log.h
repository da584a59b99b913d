//% gy_log_finite_d
// log(x) of a positive normal double.
template <class T> GY_FN T gy_log_finite_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_mad(e, T{} + 0.6931471805599453, gy_log_m_d(m - 1.0));
}
//% gy_log_d : gy_log_finite_d
template <class T> GY_FN T gy_log_d(T x) { return gy_log_ends(x, gy_log_finite_d(x)); }
//% gy_log_parts_f gy_log_tail_f
// x = 2^e (1 + f) with 1 + f in [2/3, 4/3), for x of at least 0; and log(1 + f) - f.
#if GY_ISA != 0
template <class T> GY_FN T gy_log_parts_f(T x, T &f) {
  auto tiny = x < 1.17549435e-38f;
  auto i = gy_bits(gy_sel(tiny, x * 8388608.0f, x)), k = (i - 0x3f2aaaab) >> 23;
  f = gy_float(i - (k << 23)) - 1.0f;
  T e = gy_float(k + 0x4b400000) - 12582912.0f;
  return gy_sel(tiny, e - 23.0f, e);
}
template <class T> GY_FN T gy_log_tail_f(T f, T low) {
  T p = gy_poly(f, 0.119584717f, -0.128301337f, 0.107695542f, -0.12199416f, 0.143027171f,
    -0.166792959f, 0.199996814f, -0.249998271f, 0.333333343f), f2 = f * f;
  return gy_mad(T{} - 0.5f, f2, gy_mad(p, f2 * f, low));
}
#endif
//% gy_log_by_table_f
#if GY_ISA == 512
// x = 2^e m with m in [0.75, 1.5). Of c, about 1 / m, and minus its logarithm there are 32, by the upper bits of m;
// next to 1 they are 1 and 0. log(m) = first + f + f^2 times the result.
static const sf32 gy_log_table[][32] __attribute__((aligned(64))) = {
  {1, 0.955204308f, 0.927508712f, 0.90150708f, 0.876651347f, 0.853420496f, 0.831118524f, 0.810058892f, 0.790199041f,
   0.771181643f, 0.752823174f, 0.735656381f, 0.719033003f, 0.703394592f, 0.688253343f, 0.673780024f, 1.31962168f,
   1.29299295f, 1.26742065f, 1.2427001f, 1.21887732f, 1.19632959f, 1.17424774f, 1.15317214f, 1.13293564f, 1.11291265f,
   1.09413958f, 1.07561791f, 1.0578903f, 1.04052722f, 1.02408326f, 1},
  {0, 0.0458300263f, 0.0752530918f, 0.103687383f, 0.131645918f, 0.158502892f, 0.184982866f, 0.210648328f,
   0.235470414f, 0.259831339f, 0.283924907f, 0.306992143f, 0.329848021f, 0.351837248f, 0.373598278f, 0.394851595f,
   -0.277345091f, -0.256959647f, -0.236983851f, -0.217286512f, -0.197930202f, -0.179258198f, -0.160627723f,
   -0.142516524f, -0.124812178f, -0.106980592f, -0.089968279f, -0.0728952959f, -0.0562766381f, -0.0397275314f,
   -0.0237978287f, 0},
};
GY_FN vf32 gy_log_by_table_f(vf32 x, vf32 &e, vf32 &first, vf32 &f) {
  vf32 m = (vf32)__builtin_ia32_getmantps512_mask(x, 11, x, (su16)-1, 4);
  e = (vf32)__builtin_ia32_getexpps512_mask(x, x, (su16)-1, 4) - (vf32)__builtin_ia32_getexpps512_mask(m, m, (su16)-1, 4);
  vi32 i = gy_bits(m) >> 18;
  f = gy_mad(m, gy_pick(gy_log_table[0], i), vf32{} - 1.0f);
  first = gy_pick(gy_log_table[1], i);
  return gy_poly(f, 0.194136366f, -0.250017345f, 0.333334744f, -0.5f);
}
#endif
//% gy_log_base_f : gy_log_parts_f
// (e ln 2 + log(1 + f)) times a factor in two parts; that of e is in two parts as well, the first of 16 bits.
#if GY_ISA != 0
template <class T> GY_FN T gy_log_base_f(T x, sf32 two, sf32 two_rest, sf32 factor, sf32 factor_rest) {
  T f, e = gy_log_parts_f(x, f), tail = gy_log_tail_f(f, T{});
  T high = e * two, near = f * factor, rest = gy_mad(f, T{} + factor, -near);
  T sum = high + near, lost = (high - sum) + near;
  T low = gy_mad(f, T{} + factor_rest, gy_mad(tail, T{} + factor, rest)) + gy_mad(e, T{} + two_rest, lost);
  return gy_log_ends(x, sum + low);
}
#if GY_ISA == 512
GY_FN vf32 gy_log_base_f(vf32 x, sf32 two, sf32 two_rest, sf32 factor, sf32 factor_rest) {
  vf32 e, first, f, tail = gy_log_by_table_f(x, e, first, f) * f * f, h = first + f, lost = (first - h) + f;
  vf32 high = e * two, near = h * factor, rest = gy_mad(h, vf32{} + factor, -near), sum = high + near;
  vf32 low = gy_mad(tail + lost, vf32{} + factor, gy_mad(h, vf32{} + factor_rest, rest));
  vf32 r = sum + (((high - sum) + near) + gy_mad(e, vf32{} + two_rest, low));
  // The exponent of 0 and of infinity is the logarithm.
  return gy_sel(gy_abs(e) < 200.0f, r, e);
}
GY_FN sf32 gy_log_base_f(sf32 x, sf32 two, sf32 two_rest, sf32 factor, sf32 factor_rest) {
  return gy_log_base_f(vf32{x}, two, two_rest, factor, factor_rest)[0];
}
#endif
#endif
//% gy_log : gy_log_d gy_log_parts_f
template <class T> GY_FN T gy_log_f(T x) {
  T f, e = gy_log_parts_f(x, f), y = gy_log_tail_f(f, e * -1.90465430e-9f);
  return gy_log_ends(x, gy_mad(e, T{} + 0.693147182f, f + y));
}
#if GY_ISA == 512
// Both parts of ln 2 are positive: 0 comes to minus infinity without a test.
GY_FN vf32 gy_log_f(vf32 x) {
  vf32 e, first, f, y = gy_log_by_table_f(x, e, first, f);
  y = gy_mad(f * f, y, f);
  y = gy_mad(e, vf32{} + 9.05800061e-6f, y) + first;
  return gy_mad(e, vf32{} + 0.693138123f, y);
}
GY_FN sf32 gy_log_f(sf32 x) { return gy_log_f(vf32{x})[0]; }
#endif
GY_VIA_F32(gy_log)
sf64 gy_log(sf64) = delete;
//% gy_log2 : gy_log_base_f
template <class T> GY_FN T gy_log2_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_ends(x, gy_mad(gy_log_m_d(m - 1.0), T{} + 1.4426950408889634, e));
}
template <class T> GY_FN T gy_log2_f(T x) { return gy_log_base_f(x, 1.0f, 0.0f, 1.44269502f, 1.92596303e-08f); }
GY_VIA_F32(gy_log2)
sf64 gy_log2(sf64) = delete;
//% gy_log10 : gy_log_base_f
template <class T> GY_FN T gy_log10_d(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_ends(x, gy_mad(e, T{} + 0.3010299956639812, gy_log_m_d(m - 1.0) * 0.4342944819032518));
}
template <class T> GY_FN T gy_log10_f(T x) {
  return gy_log_base_f(x, 0.301025391f, 4.60503907e-06f, 0.434294492f, -1.010305e-08f);
}
GY_VIA_F32(gy_log10)
sf64 gy_log10(sf64) = delete;
//% gy_log1p_d
template <class T> GY_FN T gy_log1p_d(T x) {
  T u = x + 1.0, e, m = gy_log_parts_d(u, e);
  T r = gy_mad(e, T{} + 0.6931471805599453, gy_log_m_d(gy_sel(e == 0, x, m - 1.0)));
  return gy_sel(x == 0, x, gy_log_ends(u, r));
}
//% gy_log_sum_f : gy_log_parts_f
// log(u + c) = e log(2) + log(1 + f + rest), c at most half a unit in the last place of u.
#if GY_ISA != 0
template <class T> GY_FN T gy_log_sum_f(T u, T c) {
  auto i = gy_bits(u), k = (i - 0x3f2aaaab) >> 23;
  T e = gy_float(k + 0x4b400000) - 12582912.0f, m = gy_float(i - (k << 23)) - 1.0f;
  // Where the scale is no power of two, nothing was lost.
  c = c * gy_raise(gy_float(0x3f800000 - (k << 23)), T{});
  T f = m + c, rest = (m - f) + c;
  T y = gy_log_tail_f(f, gy_mad(e, T{} - 1.90465430e-9f, gy_mad(-rest, f, rest)));
  return gy_log_ends(u, gy_mad(e, T{} + 0.693147182f, f + y));
}
#endif
//% gy_log1p : gy_log1p_d gy_log_sum_f
#if GY_ISA != 0
template <class T> GY_FN T gy_log1p_f(T x) {
  T u = x + 1.0f;
  return gy_sel(x == 0.0f, x, gy_log_sum_f(u, x - (u - 1.0f)));
}
#endif
GY_VIA_F32(gy_log1p)
sf64 gy_log1p(sf64) = delete;
