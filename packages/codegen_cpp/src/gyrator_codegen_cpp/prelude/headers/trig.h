//% GY_TRIG_MAX gy_trig_parts_d
// x - n pi/2 in three parts of pi/2. Without FMA n times the first two parts must be exact (n < 2^20);
// with it only n itself. Beyond GY_TRIG_MAX libm's double function is called lane by lane.
#if GY_ISA == 0
#define GY_TRIG_MAX 1.0e6f
#else
#define GY_TRIG_MAX 5.0e8f
#endif
template <class T> GY_FN auto gy_trig_parts_d(T x, T &s, T &c) {
  T t = gy_mad(x, T{} + 0.6366197723675814, T{} + 6755399441055744.0);
  T n = t - 6755399441055744.0;
  T r = gy_mad(n, T{} - 1.5707963267341256, x);
  r = gy_mad(n, T{} - 6.077100506303966e-11, r);
  r = gy_mad(n, T{} - 2.0222662487959506e-21, r);
  T z = r * r;
  T p = gy_poly(z, -2.4761107795619613e-08, 2.7555350390363914e-06, -0.00019841263789088367,
    0.008333333325211389, -0.16666666666631266);
  s = gy_mad(r * z, p, r);
  T q = gy_poly(z, 2.0647286128119297e-09, -2.755556021094907e-07, 2.4801580934151677e-05,
    -0.0013888888878190377, 0.04166666666660162);
  c = gy_mad(z * z, q, gy_mad(z, T{} - 0.5, T{} + 1.0));
  return gy_bits(t);
}
//% gy_flip_sign
// Changes the sign of x where bit 1 of i is set.
GY_FN sf64 gy_flip_sign(sf64 x, si64 i) { return gy_float(gy_bits(x) ^ (si64)((su64)(i & 2) << 62)); }
GY_V(GY_FN gy_hf64 gy_flip_sign(gy_hf64 x, gy_hi64 i) { return (gy_hf64)((gy_hi64)x ^ ((i & 2) << 62)); })
//% GY_TRIG : GY_C
#define GY_TRIG(name, kernel, call) \
  GY_FN sf32 name(sf32 v) { \
    if (__builtin_expect(!(gy_abs(v) < GY_TRIG_MAX), 0)) { sf64 x = v; return (sf32)call; } \
    return (sf32)kernel##_d((sf64)v); \
  } \
  GY_V(static __attribute__((noinline, cold)) vf32 name##_far(vf32 v, vf32 r) { \
    for (si32 i = 0; i < GY_LANES; i++) \
      if (!(gy_abs(v[i]) < GY_TRIG_MAX)) { sf64 x = v[i]; r[i] = (sf32)call; } \
    return r; \
  } \
  GY_FN vf32 name(vf32 v) { \
    vf32 r = gy_join(GY_C(kernel##_d(GY_C(gy_lo(v), gy_hf64)), gy_hf32), GY_C(kernel##_d(GY_C(gy_hi(v), gy_hf64)), gy_hf32)); \
    if (__builtin_expect(!gy_all(gy_mask(gy_abs(v) < GY_TRIG_MAX)), 0)) r = name##_far(v, r); \
    return r; \
  })
//% gy_trig_rest_f
// r + rest is x - n pi/2 for |x| <= 1e6. The first difference is exact and, as pi/2 is a multiple of 2^-23, no finer than
// what is added to it; so r - a is exact too.
#if GY_ISA != 0
template <class T> GY_FN T gy_trig_rest_f(T x, T &r, T &rest) {
  T t = gy_mad(x, T{} + 0.636619747f, T{} + 12582912.0f), n = t - 12582912.0f;
  T a = gy_mad(n, T{} - 1.57079637f, x);
  r = a + n * 4.37113883e-8f;
  rest = gy_mad(n, T{} + 1.71512451e-15f, gy_mad(n, T{} + 4.37113883e-8f, a - r));
  return t;
}
#endif
//% gy_trig_parts_f
// Sine and cosine of r + rest.
#if GY_ISA != 0
template <class T> GY_FN auto gy_trig_parts_f(T x, T &s, T &c) {
  T r, rest, t = gy_trig_rest_f(x, r, rest);
  T z = r * r, p = gy_poly(z, 2.79712117e-06f, -0.000198501046f, 0.00833337381f, -0.166666672f);
  s = r + gy_mad(r * z, p, rest);
  T q = gy_poly(z, 2.43908944e-05f, -0.00138869439f, 0.0416666381f);
  T near = gy_mad(z, T{} - 0.5f, T{} + 1.0f), far = gy_mad(z, T{} - 0.5f, 1.0f - near);
  c = near + gy_mad(z * z, q, gy_mad(r, -rest, far));
  return gy_bits(t);
}
GY_FN sf32 gy_flip_sign(sf32 x, si32 i) { return gy_float(gy_bits(x) ^ (si32)((su32)(i & 2) << 30)); }
GY_V(GY_FN vf32 gy_flip_sign(vf32 x, vi32 i) { return gy_float(gy_bits(x) ^ ((i & 2) << 30)); })
#endif
//% GY_TRIG_NEAR : GY_TRIG
// name##_f up to 1e6, else the double kernel.
#if GY_ISA == 0
#define GY_TRIG_NEAR(name, call) GY_TRIG(name, name, call)
#else
#define GY_TRIG_NEAR(name, call) \
  GY_TRIG(name##_any, name, call) \
  static __attribute__((noinline, cold)) sf32 name##_beyond(sf32 x) { return name##_any(x); } \
  GY_FN sf32 name(sf32 x) { return gy_abs(x) < 1.0e6f ? name##_f(x) : name##_beyond(x); } \
  GY_V(static __attribute__((noinline, cold)) vf32 name##_beyond(vf32 x) { return name##_any(x); } \
  GY_FN vf32 name(vf32 x) { \
    vf32 r = name##_f(x); \
    vi32 near = gy_abs(x) < 1.0e6f; \
    if (__builtin_expect(!gy_all(gy_mask(near)), 0)) r = gy_sel(near, r, name##_beyond(x)); \
    return r; \
  })
#endif
//% gy_sin : gy_trig_parts_f
template <class T> GY_FN T gy_sin_d(T x) {
  T s, c;
  auto i = gy_trig_parts_d(x, s, c);
  return gy_sel(x == 0, x, gy_flip_sign(gy_sel((i & 1) != 0, c, s), i));
}
#if GY_ISA != 0
template <class T> GY_FN T gy_sin_f(T x) {
  T s, c;
  auto i = gy_trig_parts_f(x, s, c);
  return gy_sel(x == 0, x, gy_flip_sign(gy_sel((i & 1) != 0, c, s), i));
}
#endif
GY_TRIG_NEAR(gy_sin, __builtin_sin(x))
sf64 gy_sin(sf64) = delete;
//% gy_cos : gy_trig_parts_f
template <class T> GY_FN T gy_cos_d(T x) {
  T s, c;
  auto i = gy_trig_parts_d(x, s, c);
  return gy_flip_sign(gy_sel((i & 1) != 0, s, c), i + 1);
}
#if GY_ISA != 0
template <class T> GY_FN T gy_cos_f(T x) {
  T s, c;
  auto i = gy_trig_parts_f(x, s, c);
  return gy_flip_sign(gy_sel((i & 1) != 0, s, c), i + 1);
}
#endif
GY_TRIG_NEAR(gy_cos, __builtin_cos(x))
sf64 gy_cos(sf64) = delete;
//% gy_tan : gy_trig_rest_f
template <class T> GY_FN T gy_tan_d(T x) {
  T s, c;
  auto i = gy_trig_parts_d(x, s, c);
  auto odd = (i & 1) != 0;
  return gy_sel(x == 0, x, gy_sel(odd, -c, s) / gy_sel(odd, s, c));
}
#if GY_ISA != 0
// In odd quarters minus the inverse of the tangent h + l, corrected once.
template <class T> GY_FN T gy_tan_f(T x) {
  T r, rest, t = gy_trig_rest_f(x, r, rest), z = r * r, l;
  T p = gy_poly(z, 0.00523485616f, -0.00173652417f, 0.0123482691f, 0.020669084f, 0.0541847385f, 0.133315057f, 0.33333385f);
  T m = r * z, lost = gy_mad(r, gy_mad(r, r, -z), gy_mad(r, z, -m)), h = gy_sum_w(r, m * p, l);
  l = gy_mad(lost, T{} + 0.38f, gy_mad(gy_mad(h, h, T{} + 1.0f), rest, l));
  T v = h + l, y = -gy_rough_inverse_w(v), miss = gy_mad(y, l, gy_mad(y, h, T{} + 1.0f));
  return gy_sel(x == 0, x, gy_sel((gy_bits(t) & 1) != 0, gy_mad(y, miss, y), v));
}
#endif
GY_TRIG_NEAR(gy_tan, __builtin_tan(x))
sf64 gy_tan(sf64) = delete;
