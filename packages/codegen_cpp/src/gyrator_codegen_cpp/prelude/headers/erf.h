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
  T b = gy_lower(a, T{} + 4.0f);
  T q = gy_poly(b, 4.52845939e-07f, 1.52524044e-05f, -0.00040219404f, 0.00407137629f, -0.0249309167f,
    0.108056501f, 0.633509457f, 1.12944865f, -0.000163070828f);
  T e, t = gy_exp_parts_f(-q, e);
  T s = gy_float((gy_bits(t) - 0x4b400000 + 127) << 23);
  T large = gy_mad(-s, e, 1.0f - s);
  return gy_sel(a < 0.925f, small, gy_copysign(large, x));
}
GY_VIA_F32(gy_erf)
sf64 gy_erf(sf64) = delete;
//% gy_erfc : gy_erfc_large_d
template <class T> GY_FN T gy_erfc_d(T x) {
  T a = gy_abs(x), large = gy_erfc_large_d(a);
  return gy_sel(a < 1.0, 1.0 - gy_erf_small_d(x), gy_sel(x < 0, 2.0 - large, large));
}
GY_VIA_F64(gy_erfc)
GY_PER_LANE(gy_erfc, __builtin_erfc(x))
//% gy_erfinv_d
// erfinv(x) / x as a polynomial in w = -log((1 - x)(1 + x)), or in its root where w > 5, which is rare; for |x| <= 1 - 2^-24.
template <class T> GY_FN T gy_erfinv_d(T x) {
  T w = -gy_log_d((1.0 - x) * (x + 1.0));
  T u = w - 2.5;
  T p = gy_poly(u, -1.3701613860473356e-12, -2.0980121451290782e-11, 1.524206021164797e-10,
    8.247449071160001e-10, -1.1093242072686597e-08, 1.376621111732263e-08, 4.795502249094648e-07,
    -3.4173830371853065e-06, -4.997484355764072e-06, 0.00021825103913090794, -0.0012527068522870343,
    -0.004177318017233901, 0.2466402765164287, 1.5014093511286086);
  if (gy_any_w(w >= 5.0)) {
    T v = gy_sqrt(w) - 3.0;
    T q = gy_poly(v, 1.3390838040421284e-08, -3.624557386211063e-07, 1.586523783220673e-06,
    -1.7703215727429647e-06, -5.471408732579669e-06, 2.186746367718136e-05, -2.3146772287994617e-05,
    -4.6377725735295624e-05, 0.00020560554135947725, -0.0002831567992823358, -0.0001489147961541635,
    0.0014837433664494392, -0.003558792290181963, 0.005685181898612877, -0.007643805654762997,
    0.009445522028427555, 1.001675276694695, 2.8329767987281884);
    p = gy_sel(w < 5.0, p, q);
  }
  T r = x * p;
  return gy_sel(gy_abs(x) == 1.0, x * __builtin_inf(), r);
}
//% gy_erfinv : gy_erfinv_d
GY_VIA_F64(gy_erfinv)
// Two Halley steps on erf or erfc from the float32 kernel; nearer to 1, three from the leading asymptotic term.
static __attribute__((noinline)) sf64 gy_erfinv_one(sf64 x) {
  sf64 a = __builtin_fabs(x);
  if (!(a < 1)) return gy_erfinv_d(x);
  sf64 w = -gy_log_f64((1 - a) * (1 + a)), y = gy_erfinv_d(a);
  if (w > 16) y = gy_sqrt(w - 0.5 * gy_log_f64(3.141592653589793 * w));
  for (si32 i = 0; i < 3; i++) {
    sf64 error = a < 0.5 ? __builtin_erf(y) - a : (1 - a) - __builtin_erfc(y);
    sf64 step = error / (1.1283791670955126 * gy_exp_f64(-y * y));
    y -= step / (1 + y * step);
  }
  return __builtin_copysign(y, x);
}
GY_PER_LANE(gy_erfinv, gy_erfinv_one(x))
