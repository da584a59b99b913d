//% GY_PER_LANE_F32
// float32 overloads of a scalar double expression of x, lane by lane.
#define GY_PER_LANE_F32(name, call) \
  GY_FN sf32 name(sf32 v) { sf64 x = v; return (sf32)call; } \
  GY_V(static __attribute__((noinline)) vf32 name(vf32 v) { \
    sf32 t[GY_LANES]; \
    gy_stu(t, v); \
    _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++) { sf64 x = t[i]; t[i] = (sf32)call; } \
    return gy_ldu<vf32>(t); \
  })
//% gy_lgamma_d
// From 3.5 up Stirling's formula with a fitted tail; below, log gamma(2 + t) for |t| <= 1/2 and the logarithm of
// what the recurrence multiplies or divides by; below 0 by reflection.
template <class T> GY_FN T gy_log_positive(T x) {
  T e, m = gy_log_parts_d(x, e);
  return gy_log_sum_w(e, m - 1.0, T{});
}
template <class T> GY_FN T gy_lgamma_d(T x) {
  T a = gy_abs(x), one = T{} + 1.0, inf = T{} + __builtin_inf();
  auto far = a >= 3.5, up = a >= 2.5, low = a < 1.5, least = a < 0.5;
  T t = a - gy_sel(least, T{}, gy_sel(low, one, gy_sel(up, T{} + 3.0, T{} + 2.0)));
  T factor = gy_sel(far, a, gy_sel(up, a - 1.0, gy_sel(least, a * (a + 1.0), gy_sel(low, a, one))));
  T times = gy_sel(far, a - 0.5, gy_sel(up, one, -one));
  T p = gy_poly(t, -1.4328642308615826e-07, 2.78493131217315e-07, -4.2005237238059433e-07, 9.203160822051574e-07,
    -2.0497501695736643e-06, 4.384589148480144e-06, -9.43723772322291e-06, 2.0505617527964085e-05, -4.492653099371855e-05,
    9.945767001634965e-05, -0.00022315473517669351, 0.0005096695156773605, -0.0011927539127578894, 0.002890510331023687,
    -0.007385551028649721, 0.02058080842778057, -0.06735230105319831, 0.32246703342411326, 0.42278433509846713);
  T v = 1.0 / a;
  T q = gy_poly(v * v, 0.5623727452895709, -0.3418704609460346, 0.10717474677766392, -0.025783791163781482,
    0.006271595670095799, -0.0019140723612778962, 0.0008416955547100974, -0.0005952375698223439, 0.0007936507910631445,
    -0.0027777777777727797, 0.08333333333333333);
  T r = gy_mad(times, gy_log_positive(factor), gy_sel(far, gy_mad(v, q, 0.9189385332046728 - a), t * p));
  r = gy_sel(a == 0, inf, r);
  if (gy_any_w(x < 0)) {
    T f = a - gy_round(a), s = gy_abs(gy_sin_w(f * 3.141592653589793));
    T reflected = gy_log_positive(gy_sel(f == 0, one, 3.141592653589793 / (a * s))) - r;
    r = gy_sel(x < 0, gy_sel(f == 0, inf, reflected), r);
  }
  return gy_sel(a == __builtin_inf(), inf, r);
}
//% gy_lgamma_c
#if GY_ISA == 0
// lgamma_r, as lgamma writes a global sign.
extern "C" double lgamma_r(double, int *) noexcept;
static __attribute__((noinline)) sf64 gy_lgamma_c(sf64 x) { si32 sign; return lgamma_r(x, &sign); }
#endif
//% gy_lgamma
#if GY_ISA == 0
GY_FN sf32 gy_lgamma(sf32 x) { return (sf32)gy_lgamma_c((sf64)x); }
#else
static __attribute__((noinline)) sf32 gy_lgamma_one(sf32 x) { return (sf32)gy_lgamma_d((sf64)x); }
static __attribute__((noinline)) gy_hf32 gy_lgamma_half(gy_hf32 x) { return GY_C(gy_lgamma_d(GY_C(x, gy_hf64)), gy_hf32); }
GY_FN sf32 gy_lgamma(sf32 x) { return gy_lgamma_one(x); }
GY_FN vf32 gy_lgamma(vf32 x) { return gy_join(gy_lgamma_half(gy_lo(x)), gy_lgamma_half(gy_hi(x))); }
#endif
sf64 gy_lgamma(sf64) = delete;
//% gy_lgamma_f64 : gy_log_pair_w gy_trig_parts_w gy_any_w gy_sum_w
#if GY_ISA == 0
GY_FN sf64 gy_lgamma_f64(sf64 x) { return gy_lgamma_c(x); }
#else
// As gy_lgamma_d, with all terms in two parts. Reflection is at a, or at 1 + a where a times the sine could vanish; next to 0 the
// sign makes no difference.
template <class T> GY_FN T gy_lgamma_w(T x) {
  T a = gy_abs(x), one = T{} + 1.0, inf = T{} + __builtin_inf();
  auto far = a >= 3.5, up = a >= 2.5, low = a < 1.5, least = a < 0.5, below = (x < 0) & (a >= 1e-200);
  T t = a - gy_sel(least, T{}, gy_sel(low, one, gy_sel(up, T{} + 3.0, T{} + 2.0)));
  T w = t * 0.3224670334241132, l, h = gy_sum_w(T{} + 0.42278433509846713, w, l);
  T p = gy_poly(t, 6.881201625307837e-08, -1.3350702431340093e-07, 1.9718618017284596e-07, -4.3107742336058276e-07,
    9.607345825976745e-07, -2.0445687445304044e-06, 4.373612427046921e-06, -9.438551768912192e-06, 2.050738666675732e-05,
    -4.49263365791907e-05, 9.945749801385125e-05, -0.00022315475209875796, 0.0005096695254721589, -0.001192753911928404,
    0.002890510330723012, -0.007385551028670186, 0.020580808427784723, -0.06735230105319812);
  l = l + (gy_mad(t, T{} + 0.3224670334241132, -w) + gy_mad(t, gy_mad(t, p, T{} + 1.520336177257319e-17), T{} + 4.942915152430645e-18));
  T near = t * h, near_l = gy_mad(t, h, -near) + t * l;
  T s = a + 1.0, b = gy_sel(below, one, a), m = b * s, ml = gy_mad(b, s, -m) + b * (a - (s - 1.0));
  T v = gy_sel(far, one, ml) / gy_sel(far, a, m);
  T factor = gy_sel(far, a, gy_sel(up, a - 1.0, gy_sel(least, m, gy_sel(low, a, one))));
  T gl, g = gy_log_pair_w(factor, gl);
  gl = gl + gy_sel(least, v, T{});
  T q = gy_poly(v * v, 0.5623727452895709, -0.3418704609460346, 0.10717474677766392, -0.025783791163781482,
    0.006271595670095799, -0.0019140723612778962, 0.0008416955547100974, -0.0005952375698223439, 0.0007936507910631445,
    -0.0027777777777727797, 0.08333333333333333);
  T rest, y = gy_sum_w(g, -one, rest), less, half = gy_sum_w(a, T{} - 0.5, less), large = half * y;
  T large_l = gy_mad(half, y, -large) + gy_mad(half, rest + gl, less * y), lost, sum = gy_sum_w(large, T{} + 0.4189385332046727, lost);
  large_l = gy_mad(v, q, lost + (large_l + 1.6728209650585413e-17));
  T times = gy_sel(up, one, -one), r = gy_any_sum_w(times * g, near, lost);
  r = gy_sel(far, sum, r);
  l = gy_sel(far, gy_sel(large < inf, large_l, T{}), lost + gy_mad(times, gl, near_l));
  T result = r + l;
  if (gy_any_w(below)) {
    T f = a - gy_round(a), angle = gy_abs(f) * 3.141592653589793, sl, c, cl;
    T more = gy_mad(gy_abs(f), T{} + 3.141592653589793, -angle) + gy_abs(f) * 1.2246467991473532e-16;
    auto odd = (gy_trig_parts_w(angle, s, sl, c, cl) & 1) != 0;
    T sine = gy_sel(odd, c, s), sine_l = gy_mad(gy_sel(odd, -s, c), more, gy_sel(odd, cl, sl));
    b = gy_sel(least, one, a);
    m = b * sine;
    ml = gy_mad(b, sine, -m) + b * sine_l;
    g = gy_log_pair_w(m, gl);
    y = gy_any_sum_w(T{} + 1.1447298858494002, -g, rest);
    y = gy_any_sum_w(y, -r, lost);
    T reflected = y + ((rest + lost) - ((gl - 1.0265951162707826e-17) + ml / m + l));
    result = gy_sel(below, gy_sel(f == 0, inf, reflected), result);
  }
  return gy_sel((a == 0) | (a == inf), inf, result);
}
static __attribute__((noinline)) sf64 gy_lgamma_wide(sf64 x) { return gy_lgamma_w(x); }
static __attribute__((noinline)) gy_hf64 gy_lgamma_wide(gy_hf64 x) { return gy_lgamma_w(x); }
GY_FN sf64 gy_lgamma_f64(sf64 x) { return gy_lgamma_wide(x); }
GY_FN vf64 gy_lgamma_f64(vf64 x) { return vf64{gy_lgamma_wide(x.lo), gy_lgamma_wide(x.hi)}; }
#endif
//% gy_digamma_d
// Reflection below 0, recurrence up to 10, then the asymptotic series in Bernoulli numbers (Abramowitz and Stegun, 6.3).
#if GY_ISA == 0
GY_FN sf64 gy_digamma_log(sf64 x) { return __builtin_log(x); }
GY_FN sf64 gy_digamma_tan(sf64 x) { return __builtin_tan(x); }
#else
template <class T> GY_FN T gy_digamma_log(T x) { return gy_log_positive(x); }
template <class T> GY_FN T gy_digamma_tan(T x) { return gy_tan_w(x); }
#endif
template <class T> GY_FN T gy_digamma_d(T x) {
  auto below = x < 0;
  T y = gy_sel(below, 1.0 - x, x), r = T{};
  for (si32 i = 0; i < 10 && gy_any_w(y < 10.0); i++) {
    auto low = y < 10.0;
    r = r - gy_sel(low, 1.0 / y, T{});
    y = gy_sel(low, y + 1.0, y);
  }
  T v = 1.0 / y, z = v * v;
  T s = z * gy_poly(z, 1.0 / 12, -691.0 / 32760, 1.0 / 132, -1.0 / 240, 1.0 / 252, -1.0 / 120, 1.0 / 12);
  r = r + (gy_digamma_log(y) - gy_mad(v, T{} + 0.5, s));
  if (gy_any_w(below)) {
    T f = x - gy_round(x), angle = gy_sel(f == 0, T{} + __builtin_nan(""), f * 3.141592653589793);
    r = gy_sel(below, r - 3.141592653589793 / gy_digamma_tan(angle), r);
  }
  r = gy_sel(x == __builtin_inf(), x, r);
  return gy_sel(x == 0, gy_copysign(T{} + __builtin_inf(), -x), r);
}
//% gy_digamma
#if GY_ISA == 0
GY_FN sf64 gy_digamma(sf64 x) { return gy_digamma_d(x); }
#else
static __attribute__((noinline)) sf64 gy_digamma_one(sf64 x) { return gy_digamma_d(x); }
static __attribute__((noinline)) gy_hf64 gy_digamma_half(gy_hf64 x) { return gy_digamma_d(x); }
GY_FN sf64 gy_digamma(sf64 x) { return gy_digamma_one(x); }
GY_FN vf64 gy_digamma(vf64 x) { return vf64{gy_digamma_half(x.lo), gy_digamma_half(x.hi)}; }
GY_FN vf32 gy_digamma(vf32 x) {
  return gy_join(GY_C(gy_digamma_half(GY_C(gy_lo(x), gy_hf64)), gy_hf32), GY_C(gy_digamma_half(GY_C(gy_hi(x), gy_hf64)), gy_hf32));
}
#endif
GY_FN sf32 gy_digamma(sf32 x) { return (sf32)gy_digamma((sf64)x); }
//% gy_nextafter
GY_FN sf32 gy_nextafter(sf32 a, sf32 b) {
  si32 i = gy_bits(a);
  i += ((b > a) == (a > 0)) ? 1 : -1;
  sf32 r = a == 0 ? gy_copysign(1.40129846e-45f, b) : gy_float(i);
  return a != a || b != b ? a + b : a == b ? b : r;
}
#if GY_VEC
GY_FN vf32 gy_nextafter(vf32 a, vf32 b) {
  vi32 away = ~((b > a) ^ (a > 0.0f));
  vf32 r = (vf32)((vi32)a - 1 - 2 * away);
  r = a == 0 ? gy_copysign(vf32{} + 1.40129846e-45f, b) : r;
  return (a != a) | (b != b) ? a + b : (a == b ? b : r);
}
#endif
#if GY_ISA == 0
GY_FN sf64 gy_nextafter(sf64 a, sf64 b) { return __builtin_nextafter(a, b); }
#else
template <class T> GY_FN T gy_next_d(T a, T b) {
  auto away = ~((gy_bits(b - a) ^ gy_bits(a)) >> 63);
  T r = gy_float(gy_bits(a) - 1 - 2 * away);
  r = gy_sel(a == 0, gy_copysign(T{} + 4.9406564584124654e-324, b), r);
  return gy_sel((a != a) | (b != b), a + b, gy_sel(a == b, b, r));
}
GY_FN sf64 gy_nextafter(sf64 a, sf64 b) { return gy_next_d(a, b); }
GY_FN vf64 gy_nextafter(vf64 a, vf64 b) { return vf64{gy_next_d(a.lo, b.lo), gy_next_d(a.hi, b.hi)}; }
#endif
//% gy_ldexp
// x * 2^n for an integral n, rounded once.
GY_FN sf64 gy_pow2_d(sf32 n) {
  n = n < -300.0f ? -300.0f : n;
  n = n > 300.0f ? 300.0f : n;
  return gy_scale_bits(1.0, gy_pow2_bits((sf64)n + 6755399441055744.0));
}
GY_FN sf32 gy_ldexp(sf32 x, sf32 n) { return n != n ? n : (sf32)((sf64)x * gy_pow2_d(n)); }
#if GY_VEC
GY_FN gy_hf64 gy_pow2_d(gy_hf32 n) {
  n = n < -300.0f ? gy_hf32{} - 300.0f : n;
  n = n > 300.0f ? gy_hf32{} + 300.0f : n;
  return gy_scale_bits(gy_hf64{} + 1.0, gy_pow2_bits(GY_C(n, gy_hf64) + 6755399441055744.0));
}
GY_FN vf32 gy_ldexp(vf32 x, vf32 n) {
  vf32 r = gy_join(GY_C(GY_C(gy_lo(x), gy_hf64) * gy_pow2_d(gy_lo(n)), gy_hf32),
    GY_C(GY_C(gy_hi(x), gy_hf64) * gy_pow2_d(gy_hi(n)), gy_hf32));
  return n != n ? n : r;
}
#endif
static __attribute__((noinline)) sf64 gy_ldexp_one(sf64 x, sf64 n) {
  return n != n ? n : __builtin_ldexp(x, (si32)(n < -5000.0 ? -5000.0 : n > 5000.0 ? 5000.0 : n));
}
GY_PER_LANE_2(gy_ldexp, gy_ldexp_one(x, y))
//% gy_frexp_d
static __attribute__((noinline)) sf64 gy_frexp_d(sf64 x, si32 &e) {
  e = 0;
  return x - x == 0 ? __builtin_frexp(x, &e) : x;
}
//% gy_frexp_mantissa
GY_FN sf64 gy_frexp_mantissa_d(sf64 x) { si32 e; return gy_frexp_d(x, e); }
GY_PER_LANE_F32(gy_frexp_mantissa, gy_frexp_mantissa_d(x))
GY_PER_LANE(gy_frexp_mantissa, gy_frexp_mantissa_d(x))
//% gy_frexp_exponent
GY_FN si32 gy_frexp_exponent(sf64 x) { si32 e; gy_frexp_d(x, e); return e; }
GY_FN si32 gy_frexp_exponent(sf32 x) { return gy_frexp_exponent((sf64)x); }
#if GY_VEC
GY_FN vi32 gy_frexp_exponent(vf32 x) {
  vi32 r = {};
  for (si32 i = 0; i < GY_LANES; i++) r[i] = gy_frexp_exponent(x[i]);
  return r;
}
GY_FN vi32 gy_frexp_exponent(vf64 x) {
  vi32 r = {};
  for (si32 i = 0; i < GY_LANES / 2; i++) {
    r[i] = gy_frexp_exponent(x.lo[i]);
    r[i + GY_LANES / 2] = gy_frexp_exponent(x.hi[i]);
  }
  return r;
}
#endif
