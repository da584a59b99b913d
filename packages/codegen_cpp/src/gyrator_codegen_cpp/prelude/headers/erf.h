//% gy_erf_small_d
template <class T> GY_FN T gy_erf_small_d(T x) {
  T p = gy_poly(x * x, -1.047851862308418e-07, 1.531061839853391e-06, -1.4795829615555949e-05,
    0.0001204634221432551, -0.0008547938521275096, 0.0052239673597336, -0.0268661690830419,
    0.11283791658866316, -0.3761263890282061, 1.1283791670954946);
  return x * p;
}
//% gy_erfc_large_d : gy_exp_d
// erfc(a) for a in [0.95, 10.3], and a little more than float32's smallest beyond.
template <class T> GY_FN T gy_erfc_large_d(T a) {
  a = gy_sel(a > 10.3, T{} + 10.3, a);
  T t = (a - 2.5) / (a + 2.5);
  T p = gy_poly(t, 2.3709689151021757e-06, 1.8546329427102196e-05, -3.1343407132639154e-05,
    -0.00012938244942676988, 0.00022774891425258754, 0.0008760681218938212, -0.0026423007159245976,
    -0.00399371793117867, 0.03992253607247182, -0.12503305167172346, 0.2517131932662519,
    -0.37173673395705575, 0.2108063640610243);
  return p * gy_exp_d(-(a * a));
}
//% gy_erf : gy_erfc_large_d
template <class T> GY_FN T gy_erf_d(T x) {
  T a = gy_abs(x);
  return gy_sel(a < 1.0, gy_erf_small_d(x), gy_copysign(1.0 - gy_erfc_large_d(a), x));
}
template <class T> GY_FN T gy_erf_f(T x) {
  T a = gy_abs(x), z = x * x;
  T p = gy_poly(z, 7.99876143e-05f, -0.000805014162f, 0.00519242603f, -0.0268557351f, 0.112836257f,
    -0.376126289f, 0.128379166f);
  T small = gy_mad(x, p, x);
  T b = gy_sel(a > 4.0f, T{} + 4.0f, a);
  T q = gy_poly(b, 4.52845939e-07f, 1.52524044e-05f, -0.00040219404f, 0.00407137629f, -0.0249309167f,
    0.108056501f, 0.633509457f, 1.12944865f, -0.000163070828f);
  T e, t = gy_exp_parts_f(-q, e);
  T large = 1.0f - (e + 1.0f) * gy_float((gy_bits(t) - 0x4b400000 + 127) << 23);
  return gy_sel(a < 0.925f, small, gy_copysign(large, x));
}
GY_VIA_F32(gy_erf)
GY_PER_LANE(gy_erf, __builtin_erf(x))
//% gy_erfc : gy_erfc_large_d
template <class T> GY_FN T gy_erfc_d(T x) {
  T a = gy_abs(x), large = gy_erfc_large_d(a);
  return gy_sel(a < 1.0, 1.0 - gy_erf_small_d(x), gy_sel(x < 0, 2.0 - large, large));
}
GY_VIA_F64(gy_erfc)
GY_PER_LANE(gy_erfc, __builtin_erfc(x))
