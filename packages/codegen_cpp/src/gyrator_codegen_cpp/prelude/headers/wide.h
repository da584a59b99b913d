//% GY_WIDE
// float64 overloads of a kernel gy_##name##_w of one double or half a vector of them. Without FMA the C library is called.
#if GY_ISA == 0
#define GY_WIDE(name) GY_FN sf64 gy_##name##_f64(sf64 x) { return __builtin_##name(x); }
#else
#define GY_WIDE(name) \
  static __attribute__((noinline)) sf64 gy_##name##_one(sf64 x) { return gy_##name##_w(x); } \
  GY_FN sf64 gy_##name##_f64(sf64 x) { return gy_##name##_one(x); } \
  GY_FN vf64 gy_##name##_f64(vf64 x) { return vf64{gy_##name##_w(x.lo), gy_##name##_w(x.hi)}; }
#endif
//% GY_WIDE_2
#if GY_ISA == 0
#define GY_WIDE_2(name) GY_FN sf64 gy_##name##_f64(sf64 x, sf64 y) { return __builtin_##name(x, y); }
#else
#define GY_WIDE_2(name) \
  static __attribute__((noinline)) sf64 gy_##name##_one(sf64 x, sf64 y) { return gy_##name##_w(x, y); } \
  GY_FN sf64 gy_##name##_f64(sf64 x, sf64 y) { return gy_##name##_one(x, y); } \
  GY_FN vf64 gy_##name##_f64(vf64 x, vf64 y) { return vf64{gy_##name##_w(x.lo, y.lo), gy_##name##_w(x.hi, y.hi)}; }
#endif
//% gy_sum_w gy_any_sum_w gy_clamp_w
// a + b and what the sum lost; gy_sum_w is for |a| >= |b| or a == 0.
template <class T> GY_FN T gy_sum_w(T a, T b, T &lost) {
  T s = a + b;
  lost = (a - s) + b;
  return s;
}
template <class T> GY_FN T gy_any_sum_w(T a, T b, T &lost) {
  T s = a + b, t = s - a;
  lost = (a - (s - t)) + (b - t);
  return s;
}
template <class T> GY_FN T gy_clamp_w(T x, sf64 low, sf64 high) { return gy_lower(gy_raise(x, T{} + low), T{} + high); }
//% gy_quotient_w
// (a + b) / (d + f) for b, f small: the quotient of the large parts, corrected once.
template <class T> GY_FN T gy_quotient_w(T a, T b, T d, T f) {
  T y = 1.0 / d, q = a * y;
  return gy_mad(gy_mad(-q, d, a) + gy_mad(-q, f, b), y, q);
}
#if GY_ISA == 512
// From an inverse to 28 bits, for d from 2^-1000 to 2^1000.
GY_FN gy_hf64 gy_quotient_w(gy_hf64 a, gy_hf64 b, gy_hf64 d, gy_hf64 f) {
  gy_hf64 y = __builtin_ia32_rcp14pd512_mask(d, d, (su8)-1);
  y = gy_mad(gy_less_mad(d, y, gy_hf64{} + 1.0), y, y);
  gy_hf64 q = a * y;
  return gy_mad(gy_less_mad(q, f, gy_less_mad(q, d, a) + b), y, q);
}
GY_FN sf64 gy_quotient_w(sf64 a, sf64 b, sf64 d, sf64 f) {
  return gy_quotient_w(gy_hf64{} + a, gy_hf64{} + b, gy_hf64{} + d, gy_hf64{} + f)[0];
}
#endif
//% gy_inverse_w
// 1 / d to a unit or so in the last place, for d from 2^-1000 to 2^1000, floats from 2^-120 to 2^120.
template <class T> GY_FN T gy_inverse_w(T d) { return 1 / d; }
#if GY_ISA == 512
GY_FN gy_hf64 gy_inverse_w(gy_hf64 d) {
  gy_hf64 r = __builtin_ia32_rcp14pd512_mask(d, d, (su8)-1);
  r = gy_mad(gy_mad(-d, r, gy_hf64{} + 1.0), r, r);
  return gy_mad(gy_mad(-d, r, gy_hf64{} + 1.0), r, r);
}
GY_FN vf32 gy_inverse_w(vf32 d) {
  vf32 r = (vf32)__builtin_ia32_rcp14ps512_mask(d, d, (su16)-1);
  return gy_mad(gy_mad(-d, r, vf32{} + 1.0f), r, r);
}
GY_FN sf64 gy_inverse_w(sf64 d) { return gy_inverse_w(gy_hf64{} + d)[0]; }
GY_FN sf32 gy_inverse_w(sf32 d) { return gy_inverse_w(vf32{} + d)[0]; }
#endif
//% gy_rough_inverse_w
// 1 / d to 14 bits or better, for floats from 2^-120 to 2^120.
template <class T> GY_FN T gy_rough_inverse_w(T d) { return 1 / d; }
#if GY_ISA == 512
GY_FN vf32 gy_rough_inverse_w(vf32 d) { return (vf32)__builtin_ia32_rcp14ps512_mask(d, d, (su16)-1); }
GY_FN sf32 gy_rough_inverse_w(sf32 d) { return gy_rough_inverse_w(vf32{d})[0]; }
#endif
//% gy_ratio_w
#if GY_ISA == 512
template <class T> GY_FN T gy_ratio_w(T a, T d) { return a * gy_inverse_w(d); }
#else
template <class T> GY_FN T gy_ratio_w(T a, T d) { return a / d; }
#endif
//% gy_root_w
// The root of t, 0 or from 2^-100 to 1, and what it lost. AVX-512 begins with 14 bits, and doubles them by each step.
template <class T> GY_FN T gy_root_w(T t, T &rest) {
  T s = gy_sqrt(t);
  rest = gy_mad(-s, s, t) / gy_raise(s + s, T{} + 1e-30f);
  return s;
}
#if GY_ISA == 512
template <class T> GY_FN T gy_root_step_w(T s, T &half) {
  T miss = gy_mad(-s, half, T{} + 0.5f);
  half = gy_mad(half, miss, half);
  return gy_mad(s, miss, s);
}
GY_FN gy_hf64 gy_root_w(gy_hf64 t, gy_hf64 &rest) {
  // not infinite, so that the root of 0 is 0
  gy_hf64 y = gy_lower(__builtin_ia32_rsqrt14pd512_mask(t, t, (su8)-1), gy_hf64{} + 1e18), half = y * 0.5;
  gy_hf64 s = gy_root_step_w(t * y, half);
  s = gy_mad(gy_less_mad(s, s, t), half, s);
  rest = gy_less_mad(s, s, t) * half;
  return s;
}
GY_FN vf32 gy_root_w(vf32 t, vf32 &rest) {
  vf32 y = gy_lower((vf32)__builtin_ia32_rsqrt14ps512_mask(t, t, (su16)-1), vf32{} + 1e18f), half = y * 0.5f;
  vf32 s = gy_root_step_w(t * y, half);
  rest = gy_less_mad(s, s, t) * half;
  return s;
}
GY_FN sf64 gy_root_w(sf64 t, sf64 &rest) {
  gy_hf64 r, s = gy_root_w(gy_hf64{} + t, r);
  rest = r[0];
  return s[0];
}
GY_FN sf32 gy_root_w(sf32 t, sf32 &rest) {
  vf32 r, s = gy_root_w(vf32{} + t, r);
  rest = r[0];
  return s[0];
}
#endif
//% gy_power_w : gy_pow2_bits
// 2^n for -1022 <= n <= 1023, and p * 2^n with one rounding for |n| <= 2044.
template <class T> GY_FN T gy_power_w(T n) { return gy_scale_bits(T{} + 1.0, gy_pow2_bits(n + 6755399441055744.0)); }
template <class T> GY_FN T gy_scale_w(T p, T n) {
  T h = gy_mad(n, T{} + 0.5, T{} + 6755399441055744.0) - 6755399441055744.0;
  return p * gy_power_w(h) * gy_power_w(n - h);
}
#if GY_ISA == 512 && !defined(__clang__)
GY_FN gy_hf64 gy_scale_w(gy_hf64 p, gy_hf64 n) { return __builtin_ia32_scalefpd512_mask(p, n, p, (su8)-1, 4); }
#endif
//% gy_exp_reduced_w
// exp(r + e) = 1 + r + the result for |r| <= ln(2) / 2 and e far smaller.
template <class T> GY_FN T gy_exp_reduced_w(T r, T e) {
  T s = r * r;
  T even = gy_poly(s, 2.092793036717549e-09, 2.755722991134869e-07, 2.4801587378197918e-05, 0.0013888888888855854,
    0.041666666666666734);
  T odd = gy_poly(s, 2.511343727695741e-08, 2.7557230819226314e-06, 0.00019841269900457611, 0.008333333333315377);
  T q = gy_horner(r, gy_mad(odd, r, even), 0.16666666666666685, 0.5);
  return gy_mad(s, q, gy_mad(e, r, e));
}
//% gy_exp_split_w
// x = n ln(2) + r + e; the product of n and the upper part of ln(2) is exact, and so is its difference from x.
template <class T> GY_FN T gy_exp_rest_w(T x, T &r, T &e, sf64 zero) {
  T t = gy_mad(x, T{} + 1.4426950408889634, T{} + zero), n = t - zero;
  T a = gy_mad(n, T{} - 0.6931471803691238, x);
  r = gy_mad(n, T{} - 1.9082149292705877e-10, a);
  e = gy_mad(n, T{} - 1.9082149292705877e-10, a - r);
  return t;
}
template <class T> GY_FN T gy_exp_split_w(T x, T &r, T &e) { return gy_exp_rest_w(x, r, e, 6755399441055744.0) - 6755399441055744.0; }
//% gy_exp_parts_w
// exp(x) = 2^n (h + l), or exp(x + y); the result is n.
template <class T, class... Y> GY_FN T gy_exp_parts_w(T x, T &h, T &l, Y... y) {
  T r, e, n = gy_exp_split_w(x, r, e), p = gy_exp_reduced_w(r, (e + ... + y));
  h = gy_sum_w(T{} + 1.0, r, l);
  l = l + p;
  return n;
}
//% gy_pick_w
#if GY_ISA == 512
// Of 16 doubles, those at the places in the lowest four bits of i.
GY_FN gy_hf64 gy_pick_w(const sf64 (&table)[16], gy_hi64 i) {
  gy_hf64 low = gy_ldu<gy_hf64>(table), high = gy_ldu<gy_hf64>(table + 8);
#if defined(__clang__)
  return __builtin_ia32_vpermi2varpd512(low, (gy_q64)i, high);
#else
  return __builtin_shuffle(low, high, i);
#endif
}
#endif
//% gy_series_w : gy_pick_w
#if GY_ISA == 512
// A polynomial of d whose coefficients stand in the rows of the table from FIRST on, the lowest first, each lane's at the
// place in the lowest four bits of i.
template <si32 FIRST, si32 R> GY_FN gy_hf64 gy_series_w(gy_hf64 d, gy_hi64 i, const sf64 (&table)[R][16]) {
  gy_hf64 z = d * d, p = gy_pick_w(table[R - 1], i), q = gy_pick_w(table[R - 2], i);
  _Pragma("GCC unroll 8") for (si32 k = R - 3; k >= FIRST; k -= 2) {
    p = gy_mad(p, z, gy_pick_w(table[k], i));
    if (k > FIRST) q = gy_mad(q, z, gy_pick_w(table[k - 1], i));
  }
  return (R - FIRST) % 2 ? gy_mad(q, d, p) : gy_mad(p, d, q);
}
#endif
//% gy_exp_by_table_w : gy_pick_w
#if GY_ISA == 512
// exp(n ln(2) / 16 + r) = 2^(n div 16) power (1 + the result), t = n + 6755399441055744. The powers of 2^(1/16), and what
// was rounded of them, in units of themselves.
static const sf64 gy_exp_table_w[][16] __attribute__((aligned(64))) = {
  {1, 1.0442737824274138, 1.0905077326652577, 1.1387886347566916, 1.189207115002721, 1.241857812073484,
    1.2968395546510096, 1.3542555469368927, 1.4142135623730951, 1.4768261459394993, 1.5422108254079407,
    1.6104903319492543, 1.681792830507429, 1.7562521603732995, 1.8340080864093424, 1.9152065613971474},
  {0, 8.189317638195514e-17, -2.7939114859515733e-17, 7.826573258636075e-17, 3.3484623336251524e-17,
    3.7508542013031266e-17, 1.9572585293112036e-17, 5.68648095791174e-17, -6.835808657661923e-17,
    -2.3591094770850053e-17, 5.1548301170786783e-17, 1.5341410053603723e-17, 4.875160526227061e-17,
    1.685487290628973e-17, 1.790126907604513e-17, -5.5450656186394274e-17},
};
GY_FN gy_hf64 gy_exp_by_table_w(gy_hf64 t, gy_hf64 r, gy_hf64 &power) {
  gy_hf64 q = gy_poly(r, 0.001388913467406452, 0.008333474989851389, 0.041666666659320825, 0.16666666664317292, 0.5000000000000006);
  power = gy_pick_w(gy_exp_table_w[0], gy_bits(t));
  return gy_mad(r * r, q, r + gy_pick_w(gy_exp_table_w[1], gy_bits(t)));
}
#endif
//% gy_exp_f64 : GY_WIDE gy_less_mad
template <class T> GY_FN T gy_exp_w(T x) {
  T h, l, n = gy_exp_parts_w(gy_clamp_w(x, -746.0, 710.0), h, l);
  return gy_scale_w(h + l, n);
}
#if GY_ISA == 512
// The scaling saturates at any n, infinite or NaN, so that r alone is held to where the series is positive.
GY_FN gy_hf64 gy_exp_w(gy_hf64 x) {
  gy_hf64 t = gy_mad(x, gy_hf64{} + 23.083120654223414, gy_hf64{} + 6755399441055744.0), n = t - 6755399441055744.0;
  gy_hf64 r = gy_less_mad(n, gy_hf64{} + 1.0291218489310676e-13, gy_less_mad(n, gy_hf64{} + 0.04332169878489367, x)), power;
  r = (gy_hf64)__builtin_ia32_rangepd512_mask(r, gy_hf64{} + 0.5, 6, r, (su8)-1, 4);
  gy_hf64 p = gy_exp_by_table_w(t, r, power);
  p = gy_mad(power, p, power);
  return (gy_hf64)__builtin_ia32_scalefpd512_mask(p, n * 0.0625, p, (su8)-1, 4);
}
GY_FN sf64 gy_exp_w(sf64 x) { return gy_exp_w(gy_hf64{} + x)[0]; }
#endif
#if GY_ISA != 256
GY_WIDE(exp)
#else
// Where |x| is at most 704, the result is a normal number, and the exponent is added to that of h + l.
template <class T> GY_FN T gy_exp_near_w(T x) {
  T h, l, n = gy_exp_parts_w(x, h, l);
  return gy_scale_bits(h + l, gy_pow2_bits(n + 6755399441055744.0));
}
template <class T> GY_FN auto gy_exp_is_far_w(T x) { return gy_bits(gy_abs(x)) > 0x4086000000000000; }
static __attribute__((noinline, cold)) sf64 gy_exp_far_w(sf64 x) { return gy_exp_w(x); }
static __attribute__((noinline, cold)) gy_hf64 gy_exp_far_w(gy_hf64 x) { return gy_exp_w(x); }
GY_FN sf64 gy_exp_f64(sf64 x) { return gy_exp_is_far_w(x) ? gy_exp_far_w(x) : gy_exp_near_w(x); }
GY_FN vf64 gy_exp_f64(vf64 x) {
  if (__builtin_expect(gy_any_w(gy_exp_is_far_w(x.lo) | gy_exp_is_far_w(x.hi)), 0))
    return vf64{gy_exp_far_w(x.lo), gy_exp_far_w(x.hi)};
  return vf64{gy_exp_near_w(x.lo), gy_exp_near_w(x.hi)};
}
#endif
//% gy_exp2_f64 : GY_WIDE
template <class T> GY_FN T gy_exp2_w(T x) {
  x = gy_clamp_w(x, -1080.0, 1030.0);
  T n = (x + 6755399441055744.0) - 6755399441055744.0, f = x - n, r = f * 0.6931471805599453;
  T e = gy_mad(f, T{} + 2.3190468138462996e-17, gy_mad(f, T{} + 0.6931471805599453, -r));
  T l, p = gy_exp_reduced_w(r, e), h = gy_sum_w(T{} + 1.0, r, l);
  return gy_scale_w(h + (l + p), n);
}
GY_WIDE(exp2)
//% gy_expm1_parts_w
// (exp(x) - 1) / 2 = h + l, for x from -40 to 710.
template <class T> GY_FN T gy_expm1_parts_w(T x, T &l) {
  T r, e, n = gy_exp_split_w(x, r, e), p = gy_exp_reduced_w(r, e);
  T s = gy_power_w(n - 1.0), k, m, a = gy_sum_w(s, T{} - 0.5, k);
  T h = gy_any_sum_w(a, s * r, m);
  l = gy_mad(s, p, k + m);
  return h;
}
//% gy_expm1_f64 : GY_WIDE
template <class T> GY_FN T gy_expm1_w(T x) {
  T l, h = gy_expm1_parts_w(gy_clamp_w(x, -40.0, 710.0), l);
  return gy_sel(gy_abs(x) < 1e-20, x, (h + l) * 2.0);
}
GY_WIDE(expm1)
//% gy_sigmoid_f64 : GY_WIDE
#if GY_ISA == 0
GY_FN sf64 gy_sigmoid_f64(sf64 x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
#else
// 1 / (1 + exp(-x)), scaled by 2^-53 as in gy_sigmoid_f, where the exponents of exp(-x) from -54 on have a double each.
template <class T> GY_FN T gy_sigmoid_w(T x) {
  T r, e, t = gy_exp_rest_w(-gy_clamp_w(x, -746.0, 37.5), r, e, 6755399441056714.0), p = r + gy_exp_reduced_w(r, e);
  T s = gy_scale_bits(T{}, gy_pow2_bits(t)), one = T{} + 1.1102230246251565e-16, v = s * p;
  T lost, rest, sum = gy_sum_w(gy_raise(s, one), gy_lower(s, one), lost), d = gy_sum_w(sum, v, rest);
  rest = rest + lost;
  T q = 1.0 / d, miss = gy_mad(-q, rest, gy_mad(-q, d, T{} + 1.0));
  return gy_mad(q, miss, q) * one;
}
GY_WIDE(sigmoid)
#endif
//% gy_tanh_f64 : GY_WIDE
template <class T> GY_FN T gy_tanh_w(T x) {
  T a = gy_lower(gy_abs(x), T{} + 20.0), l, lost;
  T h = gy_expm1_parts_w(a + a, l);
  h = gy_sum_w(h, l, l);
  T d = gy_any_sum_w(h, T{} + 1.0, lost);
  return gy_sel(gy_abs(x) < 1e-20, x, gy_copysign(gy_quotient_w(h, l, d, lost + l), x));
}
GY_WIDE(tanh)
//% gy_log_m_w
// log(1 + f) = h + l for 1 + f in [sqrt(1/2), sqrt(2)].
template <class T> GY_FN T gy_log_m_w(T f, T &l) {
  T s = gy_ratio_w(f, f + 2.0), z = s * s, half = f * f * 0.5;
  T p = gy_poly(z, 0.14811576956973746, 0.15312565983875137, 0.18183619149817362, 0.22222197584054626,
    0.28571428751336414, 0.3999999999937783, 0.666666666666674);
  T h = gy_sum_w(f, -half, l);
  l = gy_mad(s, gy_mad(z, p, half), l);
  return h;
}
//% gy_log_split_w : gy_log_parts_d
// x = 2^e (1 + f) for any positive x.
template <class T> GY_FN T gy_log_split_w(T x, T &e) {
  auto tiny = x < 2.2250738585072014e-308;
  T f = gy_log_parts_d(gy_sel(tiny, x * 18014398509481984.0, x), e) - 1.0;
  e = gy_sel(tiny, e - 54.0, e);
  return f;
}
//% gy_log_sum_w
// e ln(2) + log(1 + f) + c, c small.
template <class T> GY_FN T gy_log_sum_w(T e, T f, T c) {
  T l, lost, h = gy_log_m_w(f, l);
  h = gy_sum_w(e * 0.6931471803691238, h, lost);
  return h + (lost + (l + gy_mad(e, T{} + 1.9082149292705877e-10, c)));
}
//% gy_log_by_table_w gy_log_ends_w
#if GY_ISA == 512
// x = 2^e m with m in [0.75, 1.5). Of c, about 1 / m, and minus its logarithm in two parts there are 16, by the upper bits
// of m; next to 1 they are 1 and 0. log(m) = first + f + f^2 times the result + rest, first and rest from the table at i.
static const sf64 gy_log_table_w[][16] __attribute__((aligned(64))) = {
  {1, 0.90625, 0.859375, 0.8125, 0.78125, 0.75, 0.703125, 0.6875, 1.3125, 1.25, 1.203125, 1.15625, 1.125, 1.078125,
    1.046875, 1},
  {0, 0.09844007281321865, 0.151549898127314, 0.20763936477828793, 0.2468600779316148, 0.28768207245184385,
    0.35222059358943625, 0.3746934494413381, -0.2719337154835557, -0.22314355131425145, -0.18492233849406148,
    -0.14518200984457508, -0.11778303565643, -0.07522342123752424, -0.0458095360313564, 0},
  {0, 3.3871241029241416e-14, -1.1307104809870373e-13, -4.3425422595242564e-14, -8.899851356560444e-14,
    -6.292357389008195e-14, -8.414918193489195e-14, 7.260466149925637e-14, -8.604306772808733e-14,
    4.169796584527195e-14, 4.9485167661250996e-14, 7.718001336828099e-14, 4.654729747598445e-14,
    -6.329065958724544e-14, 6.219834199475792e-14, 0},
};
GY_FN gy_hf64 gy_log_by_table_w(gy_hf64 x, gy_hf64 &e, gy_hi64 &i, gy_hf64 &f) {
  gy_hf64 m = (gy_hf64)__builtin_ia32_getmantpd512_mask(x, 11, x, (su8)-1, 4);
  e = (gy_hf64)__builtin_ia32_getexppd512_mask(x, x, (su8)-1, 4) - (gy_hf64)__builtin_ia32_getexppd512_mask(m, m, (su8)-1, 4);
  i = gy_bits(m) >> 48;
  f = gy_mad(m, gy_pick_w(gy_log_table_w[0], i), gy_hf64{} - 1.0);
  return gy_poly(f, 0.08153955234007365, -0.09995784213401215, 0.11113947452467837, -0.12500059022257054, 0.1428571141460475,
    -0.16666666602347738, 0.20000000001115809, -0.25000000000017414, 0.33333333333333215, -0.5);
}
// The exponent of 0 and of infinity is the logarithm.
GY_FN gy_hf64 gy_log_ends_w(gy_hf64 e, gy_hf64 r) { return gy_sel(gy_abs(e) < 2000.0, r, e); }
#endif
//% gy_log_f64 : GY_WIDE
template <class T> GY_FN T gy_log_w(T x) {
  T e, f = gy_log_split_w(x, e);
  return gy_log_ends(x, gy_log_sum_w(e, f, T{}));
}
#if GY_ISA == 512
GY_FN gy_hf64 gy_log_w(gy_hf64 x) {
  gy_hi64 i;
  gy_hf64 e, f, lost, q = gy_log_by_table_w(x, e, i, f), l = gy_mad(f * f, q, gy_pick_w(gy_log_table_w[2], i));
  gy_hf64 h = gy_sum_w(gy_mad(e, gy_hf64{} + 0.6931471805598903, gy_pick_w(gy_log_table_w[1], i)), f, lost);
  return gy_log_ends_w(e, h + (lost + gy_mad(e, gy_hf64{} + 5.497923018708371e-14, l)));
}
GY_FN sf64 gy_log_w(sf64 x) { return gy_log_w(gy_hf64{} + x)[0]; }
#endif
GY_WIDE(log)
//% gy_log1p_f64 : GY_WIDE
template <class T> GY_FN T gy_log1p_w(T x) {
  T c, u = gy_any_sum_w(T{} + 1.0, x, c), e, f = gy_log_split_w(u, e);
  auto near = e == 0;
  T r = gy_log_sum_w(e, gy_sel(near, x, f), gy_sel(near, T{}, c / u));
  return gy_sel(x == 0, x, gy_log_ends(u, r));
}
GY_WIDE(log1p)
//% gy_log_base_w
// e u + log(1 + f) b for b in two parts, u too.
template <class T> GY_FN T gy_log_base_w(T x, sf64 b, sf64 c, sf64 u, sf64 v) {
  T e, f = gy_log_split_w(x, e), l, lost, h = gy_log_m_w(f, l);
  T p = h * b;
  l = gy_mad(l, T{} + b, gy_mad(h, T{} + c, gy_mad(h, T{} + b, -p)));
  h = gy_sum_w(e * u, p, lost);
  return gy_log_ends(x, h + (lost + gy_mad(e, T{} + v, l)));
}
#if GY_ISA == 512
// With first and rest as those of gy_log_table_w, but of the base.
GY_FN gy_hf64 gy_log_base_w(gy_hf64 x, const sf64 (&table)[2][16], sf64 b, sf64 c, sf64 u, sf64 v) {
  gy_hi64 i;
  gy_hf64 e, f, lost, q = gy_log_by_table_w(x, e, i, f), p = f * b;
  gy_hf64 l = gy_mad(p * f, q, gy_mad(f, gy_hf64{} + c, gy_mad(f, gy_hf64{} + b, -p)));
  gy_hf64 h = gy_sum_w(gy_mad(e, gy_hf64{} + u, gy_pick_w(table[0], i)), p, lost);
  return gy_log_ends_w(e, h + (lost + (l + gy_mad(e, gy_hf64{} + v, gy_pick_w(table[1], i)))));
}
#endif
//% gy_log2_f64 : GY_WIDE
template <class T> GY_FN T gy_log2_w(T x) { return gy_log_base_w(x, 1.4426950408889634, 2.0355273740931033e-17, 1.0, 0.0); }
#if GY_ISA == 512
static const sf64 gy_log2_table_w[][16] __attribute__((aligned(64))) = {
  {0, 0.14201900487250896, 0.21864028647542, 0.29956028185893047, 0.356143810225376, 0.41503749927892386,
    0.508146903670422, 0.5405683813626183, -0.39231742277866033, -0.3219280948874257, -0.2667865406949659,
    -0.2094533656288604, -0.16992500144237965, -0.10852445677824107, -0.06608919045766015, 0},
  {0, -8.107893466726174e-14, -7.960223862778872e-14, -2.262651135603261e-14, -1.0069648492950886e-13,
    -8.00418555854124e-14, -9.67451159139632e-14, 8.443284155858175e-14, -9.995925486528699e-14, 6.33385952568616e-14,
    6.451544227870716e-14, -8.937120568078598e-14, 6.728996427240727e-14, 7.202031406534323e-14, -1.1228105090517402e-13,
    0},
};
GY_FN gy_hf64 gy_log2_w(gy_hf64 x) {
  return gy_log_base_w(x, gy_log2_table_w, 1.4426950408889634, 2.0355273740931033e-17, 1.0, 0.0);
}
GY_FN sf64 gy_log2_w(sf64 x) { return gy_log2_w(gy_hf64{} + x)[0]; }
#endif
GY_WIDE(log2)
//% gy_log10_f64 : GY_WIDE
template <class T> GY_FN T gy_log10_w(T x) {
  return gy_log_base_w(x, 0.4342944819032518, 1.098319650216765e-17, 0.30102999566383914, 1.42050232272661e-13);
}
#if GY_ISA == 512
static const sf64 gy_log10_table_w[][16] __attribute__((aligned(64))) = {
  {0, 0.04275198042091688, 0.06581728448963986, 0.09017663034910584, 0.10720996964778351, 0.12493873660832833,
    0.15296746020862884, 0.16272729749766768, -0.11809931207790214, -0.09691001300802782, -0.08031075118856279,
    -0.06305174574708872, -0.051152522447409865, -0.032669116753368144, -0.0198948287170424, 0},
  {0, 3.300906980985312e-14, 3.465633752242924e-15, -1.78235453177227e-14, 8.485692413569872e-14, -2.8373705641129622e-14,
    -8.534406535074038e-14, 3.206228782072406e-14, -9.234612513604464e-14, -2.859665406848114e-14, -3.191013167419097e-14,
    -3.0414152859579186e-16, 2.857603188831182e-14, -1.1896216442983238e-18, 1.0313810063147965e-13, 0},
};
GY_FN gy_hf64 gy_log10_w(gy_hf64 x) {
  return gy_log_base_w(x, gy_log10_table_w, 0.4342944819032518, 1.098319650216765e-17, 0.30102999566383914, 1.42050232272661e-13);
}
GY_FN sf64 gy_log10_w(sf64 x) { return gy_log10_w(gy_hf64{} + x)[0]; }
#endif
GY_WIDE(log10)
//% gy_trig_parts_w
// x = i pi/2 + r + e: the difference from the first part of pi/2 is exact for |x| < 1e9, and a multiple of 2^-53, so that where
// it is the smaller of two terms, their sum loses nothing. Then the sine and the cosine of r + e in two parts, and i as an
// integer with only its two lowest bits meaningful.
template <class T> GY_FN auto gy_trig_parts_w(T x, T &s, T &sl, T &c, T &cl) {
  T t = gy_mad(x, T{} + 0.6366197723675814, T{} + 6755399441055744.0), n = t - 6755399441055744.0;
  T a = gy_mad(n, T{} - 1.5707963267948966, x), b = n * -6.123233995736766e-17, e;
  T r = gy_sum_w(a, b, e);
  e = gy_mad(n, T{} + 1.4973849048591698e-33, e + gy_mad(n, T{} - 6.123233995736766e-17, -b));
  T z = r * r, half = r * -0.5;
  T p = gy_poly(z, 1.5896500386409638e-10, -2.505075318224346e-08, 2.755731366151056e-06, -0.00019841269829723584,
    0.008333333333322313, -0.16666666666666632);
  s = gy_sum_w(r, gy_mad(r * z, p, gy_mad(e * half, r, e)), sl);
  T q = gy_poly(z, -1.1359452623531947e-11, 2.0875719643264413e-09, -2.7557314326729696e-07, 2.4801587289397674e-05,
    -0.0013888888888873997, 0.0416666666666666);
  T w = gy_mad(half, r, T{} + 1.0);
  T low = gy_mad(z * z, q, gy_mad(-r, e, gy_mad(half, r, 1.0 - w)));
  c = gy_sum_w(w, low, cl);
  return gy_bits(t);
}
//% gy_any_w
// Whether any lane of a mask is set; always true where the compiler makes the vectors, for want of a branch.
GY_FN bool gy_any_w(bool m) { return GY_ISA == 0 || m; }
#if GY_ISA == 512
GY_FN su32 gy_lane_bits_w(gy_hi64 m) { return (su8)__builtin_ia32_cvtq2mask512((gy_q64)m); }
#elif GY_ISA == 256
GY_FN su32 gy_lane_bits_w(gy_hi64 m) { return (su32)__builtin_ia32_movmskpd256((gy_hf64)m); }
#endif
#if GY_ISA != 0
GY_FN bool gy_any_w(gy_hi64 m) { return gy_lane_bits_w(m) != 0; }
GY_FN bool gy_any_w(vi32 m) { return gy_lane_bits(vbool{m}) != 0; }
#if defined(__clang__)
GY_FN bool gy_any_w(gy_hq64 m) { return gy_lane_bits_w((gy_hi64)m) != 0; }
#endif
#endif
//% GY_WIDE_TRIG : gy_trig_parts_w gy_flip_sign gy_any_w
// Beyond 1e9 the C library is called lane by lane.
#if GY_ISA == 0
#define GY_WIDE_TRIG(name) GY_FN sf64 gy_##name##_f64(sf64 x) { return __builtin_##name(x); }
#else
#define GY_WIDE_TRIG(name) \
  static __attribute__((noinline)) sf64 gy_##name##_one(sf64 x) { return gy_abs(x) < 1e9 ? gy_##name##_w(x) : __builtin_##name(x); } \
  static __attribute__((noinline, cold)) vf64 gy_##name##_far(vf64 x, vf64 r) { \
    sf64 t[GY_LANES], u[GY_LANES]; \
    gy_store(t, x); \
    gy_store(u, r); \
    for (si32 i = 0; i < GY_LANES; i++) if (!(gy_abs(t[i]) < 1e9)) u[i] = __builtin_##name(t[i]); \
    return gy_vload(u); \
  } \
  GY_FN vf64 gy_##name##_f64(vf64 x) { \
    vf64 r = {gy_##name##_w(x.lo), gy_##name##_w(x.hi)}; \
    gy_hi64 low = gy_bits(gy_abs(x.lo)), high = gy_bits(gy_abs(x.hi)); \
    return __builtin_expect(gy_any_w(gy_sel(low > high, low, high) >= 0x41cdcd6500000000), 0) ? gy_##name##_far(x, r) : r; \
  } \
  GY_FN sf64 gy_##name##_f64(sf64 x) { return gy_##name##_one(x); }
#endif
//% gy_turn_sign_w
// x with its sign changed where those of i and y differ.
GY_FN sf64 gy_turn_sign_w(sf64 x, si64 i, sf64 y) { return gy_float(gy_bits(x) ^ ((i ^ gy_bits(y)) & ~0x7fffffffffffffff)); }
GY_V(GY_FN gy_hf64 gy_turn_sign_w(gy_hf64 x, gy_hi64 i, gy_hf64 y) {
  return gy_float(gy_bits(x) ^ ((i ^ gy_bits(y)) & ~0x7fffffffffffffff));
})
//% gy_sin_f64 : GY_WIDE_TRIG
template <class T> GY_FN T gy_sin_w(T x) {
  T s, sl, c, cl;
  auto i = gy_trig_parts_w(gy_abs(x), s, sl, c, cl);
  return gy_turn_sign_w(gy_sel((i & 1) != 0, c, s), i << 62, x);
}
GY_WIDE_TRIG(sin)
//% gy_cos_f64 : GY_WIDE_TRIG
template <class T> GY_FN T gy_cos_w(T x) {
  T s, sl, c, cl;
  auto i = gy_trig_parts_w(x, s, sl, c, cl);
  return gy_flip_sign(gy_sel((i & 1) != 0, s, c), i + 1);
}
GY_WIDE_TRIG(cos)
//% gy_tan_f64 : GY_WIDE_TRIG
template <class T> GY_FN T gy_tan_w(T x) {
  T s, sl, c, cl;
  auto i = gy_trig_parts_w(gy_abs(x), s, sl, c, cl);
  auto odd = (i & 1) != 0;
  T r = gy_quotient_w(gy_sel(odd, c, s), gy_sel(odd, cl, sl), gy_sel(odd, s, c), gy_sel(odd, sl, cl));
  return gy_turn_sign_w(r, i << 63, x);
}
GY_WIDE_TRIG(tan)
//% gy_erf_f64 : GY_WIDE
template <class T> GY_FN T gy_erf_w(T x) {
  T a = gy_lower(gy_abs(x), T{} + 6.0), z = a * a;
  T p = gy_poly(z, 5.960689022158655e-11, -1.1374957238407015e-09, 1.466032890853223e-08, -1.635039621577348e-07,
    1.6461008473391065e-06, -1.4925595771640214e-05, 0.00012055331132920735, -0.0008548326981424187,
    0.005223977624828399, -0.02686617064507787, 0.11283791670954885, -0.3761263890318375, 0.1283791670955126);
  T t = (a - 2.5) / (a + 2.5);
  T q = gy_poly(t, -4.6531117895779e-08, 5.882905739882403e-08, 3.801788902499868e-07, 8.54981445294065e-08,
    -1.813629007959037e-06, -2.300412207363128e-06, 7.554625107711755e-06, 1.8614819508715834e-05,
    -3.418244563343044e-05, -0.00012887720371961714, 0.000228380391418904, 0.0008759154517755862,
    -0.002642365964723459, -0.003993701165902277, 0.039922539075592074, -0.12503305237882878, 0.2517131932174493,
    -0.37173673394897333, 0.2108063640611436);
  T h, l, n = gy_exp_parts_w(-z, h, l, gy_mad(-a, a, z));
  T large = gy_mad(q * (h + l), -gy_power_w(n), T{} + 1.0);
  return gy_sel(a < 1.0, gy_mad(x, p, x), gy_copysign(large, x));
}
#if GY_ISA == 512
// f(b) + c0 + c1 (a - b) + ..., b = 197 n / 512; where n is 0 or 1, with a for f(b). Rows: f(b), c0, c1, ...
static const sf64 gy_erf_table_w[][16] __attribute__((aligned(64))) = {
  {0, 0.4136553899655245, 0.723529158411477, 0.8974094445319185, 0.9704868162086635, 0.9934856902254344,
    0.9989047584936298, 0.9998604617794344, 0.9999865790112805, 0.9999990282118804, 0.999999947138806,
    0.9999999978433805, 0.9999999999340937, 0.9999999999984929, 0.9999999999999742, 0.9999999999999997},
  {0, 0.02888976496552446, -2.400778730607739e-17, -2.0187128433652982e-17, -5.0409642601702116e-17,
    -2.3572840578106204e-17, 4.8322229481324597e-17, -2.1560481260788427e-17, 3.770443867577065e-17,
    1.745407915433108e-17, 2.8784395338947486e-17, 6.47826599069299e-20, -3.666002136670519e-17,
    -2.1877231638044596e-17, -1.2300385963892948e-17, 3.848769725480624e-18},
  {0.1283791670955126, -0.02689408488877342, 0.6241303070011561, 0.29771487732218416, 0.1056175063869009,
    0.027866433441862588, 0.005468106600883553, 0.0007979995812490403, 8.661207845981071e-05, 6.991403443774757e-06,
    4.1972068587681065e-07, 1.8739866380252166e-08, 6.222755140847445e-10, 1.5367705908151175e-11,
    2.8225749021506366e-13, 3.8556003955088876e-15},
  {5.068225192831005e-17, -0.37441770561896887, -0.4802877753094861, -0.34365135253400575, -0.1625519434235892,
    -0.053610228398895614, -0.01262363672313363, -0.002149299653403214, -0.00026660280400908805,
    -2.4210465441034527e-05, -1.6149409202688211e-06, -7.931502040284533e-08, -2.8731627252760757e-09,
    -7.686854459977876e-11, -1.5204417153655967e-12, -2.2252537458125153e-14},
  {-0.37612638903185, -0.22832659669490757, 0.038354199061629346, 0.1652121624392765, 0.13157923148800682,
    0.05946909897357239, 0.0176058636939088, 0.0035932243870562355, 0.0005182204779056005, 5.3561661385029295e-05,
    4.002584788129697e-06, 2.1754979622852357e-07, 8.636528867435951e-09, 2.5120600527214495e-10,
    5.366042266811337e-12, 8.433492132026469e-14},
  {1.209033272842499e-12, 0.16873201471406293, 0.1453385477308869, 0.01919850943694657, -0.04707034934002068,
    -0.039334086453984896, -0.016114514535791907, -0.004122489076865173, -0.0007087061029474609,
    -8.46689323897947e-05, -7.1619715477188045e-06, -4.339429179163143e-07, -1.898051562637201e-08,
    -6.026374805676671e-10, -1.3945866182728872e-11, -2.3595132190293035e-13},
  {0.11283791664889092, 0.04252906741492402, -0.05624328135264308, -0.05842796058033293, -0.01049608564769526,
    0.01242807905037178, 0.009598987907232324, 0.0033633705207849916, 0.0007171282462013637, 0.00010121120293074556,
    9.821946416658455e-06, 6.69386836757797e-07, 3.246367567943968e-08, 1.130383389705462e-09, 2.843913456352616e-11,
    5.194138195529046e-13},
  {1.797524479657009e-09, -0.050449778352962577, -0.024329958663843895, 0.01736146823260685, 0.01793680379530951,
    0.0025192603915095073, -0.0030895172948309803, -0.0019202580890358306, -0.0005468151657299809,
    -9.424939301347238e-05, -1.0687298805527098e-05, -8.286577442344252e-07, -4.490215920420124e-08,
    -1.7240052918675327e-09, -4.734566328139876e-11, -9.363433443121594e-13},
  {-0.026866204440821256, -0.004579875581197171, 0.018740581527762052, 0.008185628904565005, -0.005388319866262791,
    -0.004343818555678988, -0.0002476331022015687, 0.0006768965207411331, 0.0003101595586954364,
    6.915214827973225e-05, 9.410311649283213e-06, 8.426898546671573e-07, 5.150582887634646e-08,
    2.1947418791374813e-09, 6.610009405232777e-11, 1.4204913317135468e-12},
  {4.18699744386438e-07, 0.011251211132383886, 0.0016082049353714043, -0.006082474145231241, -0.0017703628520901766,
    0.0015493479128851667, 0.0008049610648542797, -4.429741395817509e-05, -0.00012150287305517703,
    -3.967030150861487e-05, -6.761772302634066e-06, -7.140834759226054e-07, -4.9830842432653425e-08,
    -2.3750440654609525e-09, -7.886875624037418e-11, -1.84888970836585e-12},
  {0.005220512159825747, -7.12816915842369e-05, -0.003918636659881256, -3.172221423693472e-05, 0.0016531588732532664,
    0.00018236649302999337, -0.0003648163552646737, -0.00010512454467450264, 2.2803896475150544e-05,
    1.708323638808069e-05, 3.9518444036507655e-06, 5.076673863715259e-07, 4.109060204027291e-08,
    2.210773924245635e-09, 8.140415801849966e-11, 2.0889756386425434e-12},
  {1.8988688852836604e-05, -0.0019946271926462155, 0.0003169603463473233, 0.0010885641974809734,
    -0.00019404772550165708, -0.0003455843696303792, 2.5316503041100616e-05, 6.449899528833213e-05,
    7.5647519081028955e-06, -4.778324580077543e-06, -1.8390998835655626e-06, -3.0284698594031913e-07,
    -2.9095800917747755e-08, -1.7902890166432624e-09, -7.372755399241377e-11, -2.0843598282866427e-12},
  {-0.0009210797480237099, 0.00014670857643429565, 0.0005886401900411792, -0.00021699670385648932,
    -0.00021494048564786602, 8.869867474223696e-05, 4.919012122783823e-05, -1.3975116614535163e-05,
    -7.994794849492103e-06, 1.7086725253390094e-07, 6.3824049413252e-07, 1.5211900702166246e-07,
    1.8197230351746573e-08, 1.3192286130967316e-09, 6.219760866254658e-11, 1.9779024360017066e-12},
  {0.00013382145233405642, 0.0002892316137639449, -0.00012023884948708897, -0.00012127524344268297,
    8.300797837673752e-05, 2.3491476813238177e-05, -2.235801404273905e-05, -3.4339196739738113e-06,
    2.902376588359325e-06, 6.13820303717036e-07, -1.2831998104966002e-07, -6.029756755724185e-08,
    -9.417675708292684e-09, -8.130834814099669e-10, -4.3828896439294344e-11, -1.5566154998889216e-12},
};
GY_FN gy_hf64 gy_erf_w(gy_hf64 x) {
  gy_hf64 a = gy_lower(gy_abs(x), gy_hf64{} + 5.95), zero = gy_hf64{} + 6755399441055744.0;
  gy_hf64 t = gy_mad(a, gy_hf64{} + 2.598984771573604, zero), d = gy_less_mad(t - zero, gy_hf64{} + 0.384765625, a);
  gy_hf64 base = gy_sel(t < 6755399441055745.5, a, gy_pick_w(gy_erf_table_w[0], gy_bits(t)));
  return gy_copysign(base + gy_series_w<1>(d, gy_bits(t), gy_erf_table_w), x);
}
GY_FN sf64 gy_erf_w(sf64 x) { return gy_erf_w(gy_hf64{x})[0]; }
#endif
GY_WIDE(erf)
//% gy_halves_w : gy_exp_parts_w gy_scale_w
// exp(a) / 2 = h + l, and exp(-a) / 2, for a >= 0.
template <class T> GY_FN T gy_halves_w(T a, T &h, T &l) {
  T n = gy_exp_parts_w(gy_lower(a, T{} + 711.0), h, l) - 1.0;
  h = gy_scale_w(gy_sum_w(h, l, l), n);
  l = gy_scale_w(l, n);
  return 0.25 / h;
}
//% gy_cosh_f64 : GY_WIDE
template <class T> GY_FN T gy_cosh_w(T x) {
  T h, l, lost, y = gy_halves_w(gy_abs(x), h, l), s = gy_sum_w(h, y, lost);
  return s + gy_sel(s < __builtin_inf(), gy_mad(y * y * -4.0, l, lost + l), T{});
}
GY_WIDE(cosh)
//% gy_sinh_f64 : GY_WIDE
template <class T> GY_FN T gy_sinh_w(T x) {
  T a = gy_abs(x), z = x * x, h, l, lost, y = gy_halves_w(a, h, l), s = gy_sum_w(h, -y, lost);
  T large = s + gy_sel(s < __builtin_inf(), gy_mad(y * y * 4.0, l, lost + l), T{});
  T p = gy_poly(z, 2.8483990638337237e-15, 7.646476330099894e-13, 1.6059050706373502e-10, 2.5052108345637227e-08,
    2.755731922412026e-06, 0.0001984126984126959, 0.008333333333333333, 0.16666666666666666);
  return gy_copysign(gy_sel(a < 1.0, gy_mad(a * z, p, a), large), x);
}
GY_WIDE(sinh)
//% gy_atanh_f64 : GY_WIDE
// Half the logarithm of (1 + a) / (1 - a) = u + c.
template <class T> GY_FN T gy_atanh_w(T x) {
  T a = gy_abs(x), more, less, n = gy_sum_w(T{} + 1.0, a, more), d = gy_sum_w(T{} + 1.0, -a, less);
  T y = 1.0 / (n * d), u = n * n * y, c = gy_mad(-u, d, n) + gy_mad(-u, less, more);
  T e, f = gy_log_split_w(u, e), r = gy_sel(a < 1e-9, a, gy_log_sum_w(e, f, c * d * y) * 0.5);
  return gy_copysign(gy_sel(a < 1.0, r, gy_sel(a == 1.0, T{} + __builtin_inf(), T{} + __builtin_nan(""))), x);
}
GY_WIDE(atanh)
//% gy_log_with_root_w : gy_log_parts_d gy_log_ends
// log(a + sqrt(a^2 + b)) for b = 1 or -1: the square, its root and the sum in two parts; log(2 a) beyond 2^28.
template <class T> GY_FN T gy_log_with_root_w(T a, sf64 b) {
  auto far = a > 268435456.0;
  T p = gy_sel(far, T{} + 268435456.0, a), z = p * p, more, w, e;
  T q = gy_any_sum_w(z, T{} + b, more), s = gy_sqrt(q), twice = gy_raise(s + s, T{} + 1e-30);
  T u = gy_any_sum_w(p, s, w), c = gy_mad(w, twice, gy_mad(-s, s, q) + (more + gy_mad(p, p, -z))) / (twice * u);
  u = gy_sel(far, a, u);
  T f = gy_log_parts_d(u, e) - 1.0;
  return gy_log_ends(u, gy_log_sum_w(gy_sel(far, e + 1.0, e), f, gy_sel(far, T{}, c)));
}
//% gy_asinh_f64 : GY_WIDE
template <class T> GY_FN T gy_asinh_w(T x) {
  T a = gy_abs(x);
  return gy_copysign(gy_sel(a < 4e-9, a, gy_log_with_root_w(a, 1.0)), x);
}
GY_WIDE(asinh)
//% gy_acosh_f64 : GY_WIDE
template <class T> GY_FN T gy_acosh_w(T x) { return gy_sel(x < 1.0, T{} + __builtin_nan(""), gy_log_with_root_w(x, -1.0)); }
GY_WIDE(acosh)
