//% GY_C
#if GY_ISA >= 256 && !defined(__clang__)
template <class T> struct gy_conversion {
  template <class F> GY_FN T of(F x) { return __builtin_convertvector(x, T); }
};
template <> struct gy_conversion<gy_hf64> {
  template <class F> GY_FN gy_hf64 of(F x) { return __builtin_convertvector(x, gy_hf64); }
#if GY_ISA == 512
  GY_FN gy_hf64 of(gy_hi32 x) { return __builtin_ia32_cvtdq2pd512_mask(x, gy_hf64{}, (su8)-1); }
  GY_FN gy_hf64 of(gy_hf32 x) { return __builtin_ia32_cvtps2pd512_mask(x, gy_hf64{}, (su8)-1, 4); }
#else
  GY_FN gy_hf64 of(gy_hi32 x) { return __builtin_ia32_cvtdq2pd256(x); }
  GY_FN gy_hf64 of(gy_hf32 x) { return __builtin_ia32_cvtps2pd256(x); }
#endif
};
template <> struct gy_conversion<gy_hi64> {
  template <class F> GY_FN gy_hi64 of(F x) { return __builtin_convertvector(x, gy_hi64); }
  GY_FN gy_hi64 of(gy_hi32 x) { return gy_wide64(x); }
  GY_FN gy_hi64 of(gy_hu32 x) { return gy_wide64(x); }
};
template <> struct gy_conversion<gy_hu64> {
  template <class F> GY_FN gy_hu64 of(F x) { return (gy_hu64)gy_conversion<gy_hi64>::of(x); }
};
#define GY_C(x, t) gy_conversion<t>::of(x)
#else
#define GY_C(x, t) __builtin_convertvector(x, t)
#endif
//% GY_VIA_F64 : GY_C
// float32 overloads of a function whose kernel name##_d takes one double or half a vector of them.
#define GY_VIA_F64(name) \
  GY_FN sf32 name(sf32 x) { return (sf32)name##_d((sf64)x); } \
  GY_V(GY_FN vf32 name(vf32 x) { \
    return gy_join(GY_C(name##_d(GY_C(gy_lo(x), gy_hf64)), gy_hf32), GY_C(name##_d(GY_C(gy_hi(x), gy_hf64)), gy_hf32)); \
  })
//% GY_VIA_F64_2 : GY_C
#define GY_VIA_F64_2(name) \
  GY_FN sf32 name(sf32 x, sf32 y) { return (sf32)name##_d((sf64)x, (sf64)y); } \
  GY_V(GY_FN vf32 name(vf32 x, vf32 y) { \
    return gy_join(GY_C(name##_d(GY_C(gy_lo(x), gy_hf64), GY_C(gy_lo(y), gy_hf64)), gy_hf32), \
      GY_C(name##_d(GY_C(gy_hi(x), gy_hf64), GY_C(gy_hi(y), gy_hf64)), gy_hf32)); \
  })
//% GY_VIA_F32
// Overloads of a float32 template name##_f; without FMA the double kernel is as fast and more exact.
#if GY_ISA == 0
#define GY_VIA_F32(name) GY_FN sf32 name(sf32 x) { return (sf32)name##_d((sf64)x); }
#else
#define GY_VIA_F32(name) \
  GY_FN sf32 name(sf32 x) { return name##_f(x); } \
  GY_FN vf32 name(vf32 x) { return name##_f(x); }
#endif
//% GY_PER_LANE
// float64 overloads that call a scalar expression of x (of x and y) lane by lane.
#define GY_PER_LANE(name, call) \
  GY_FN sf64 name(sf64 x) { return call; } \
  GY_V(static __attribute__((noinline)) vf64 name(vf64 v) { \
    sf64 t[GY_LANES]; \
    gy_stu(t, v); \
    _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++) { sf64 x = t[i]; t[i] = call; } \
    return gy_ldu<vf64>(t); \
  })
//% GY_PER_LANE_2
#define GY_PER_LANE_2(name, call) \
  GY_FN sf64 name(sf64 x, sf64 y) { return call; } \
  GY_V(static __attribute__((noinline)) vf64 name(vf64 v, vf64 w) { \
    sf64 t[GY_LANES], u[GY_LANES]; \
    gy_stu(t, v); \
    gy_stu(u, w); \
    _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++) { sf64 x = t[i], y = u[i]; t[i] = call; } \
    return gy_ldu<vf64>(t); \
  })
//% GY_INF GY_NAN
#define GY_INF __builtin_inff()
#define GY_NAN __builtin_nanf("")
//% gy_pow2_bits gy_scale_bits
// From t = 1.5 * 2^52 + n, the bit pattern that adds n to the exponent of a double.
GY_FN si64 gy_pow2_bits(sf64 t) { return (si64)((su64)gy_bits(t) << 52); }
GY_FN sf64 gy_scale_bits(sf64 p, si64 n) { return gy_float((si64)((su64)gy_bits(p) + (su64)n)); }
GY_V(GY_FN gy_hi64 gy_pow2_bits(gy_hf64 t) { return (gy_hi64)t << 52; })
GY_V(GY_FN gy_hf64 gy_scale_bits(gy_hf64 p, gy_hi64 n) { return (gy_hf64)((gy_hu64)p + (gy_hu64)n); })
//% gy_exp_parts_d : gy_pow2_bits
// exp(x) = 2^n (1 + p) with |x| clamped to 700; n is returned as the bits that scale a double.
template <class T> GY_FN auto gy_exp_parts_d(T x, T &p) {
  x = gy_sel(x < -700.0, T{} - 700.0, x);
  x = gy_sel(x > 700.0, T{} + 700.0, x);
  T t = gy_mad(x, T{} + 1.4426950408889634, T{} + 6755399441055744.0);
  T n = t - 6755399441055744.0;
  T r = gy_mad(n, T{} - 0.6931471803691238, x);
  r = gy_mad(n, T{} - 1.9082149292705877e-10, r);
  T q = gy_poly(r, 2.763714763935759e-07, 2.76368552179197e-06, 2.480147384536433e-05,
    0.00019841181048551245, 0.0013888888961712013, 0.008333333373757924, 0.04166666666646646,
    0.16666666666605662, 0.5000000000000017);
  p = gy_mad(r * r, q, r);
  return gy_pow2_bits(t);
}
//% gy_exp_d
template <class T> GY_FN T gy_exp_d(T x) {
  T p;
  auto n = gy_exp_parts_d(x, p);
  return gy_scale_bits(p + 1.0, n);
}
//% gy_expm1_d : gy_pow2_bits
template <class T> GY_FN T gy_expm1_d(T x) {
  T p;
  auto n = gy_exp_parts_d(x, p);
  T s = gy_scale_bits(T{} + 1.0, n);
  return gy_sel(x == 0, x, gy_mad(s, p, s - 1.0));
}
//% gy_log_parts_d
// x = 2^e m with m in [sqrt(1/2), sqrt(2)), x a positive normal double.
GY_FN sf64 gy_log_parts_d(sf64 x, sf64 &e) {
  su64 i = (su64)gy_bits(x) + 0x00095f619980c433;
  e = gy_float((si64)((i >> 52) | 0x4330000000000000)) - 4503599627371519.0;
  return gy_float((si64)((i & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd));
}
#if GY_VEC
GY_FN gy_hf64 gy_log_parts_d(gy_hf64 x, gy_hf64 &e) {
  gy_hu64 i = (gy_hu64)x + 0x00095f619980c433;
  e = (gy_hf64)((i >> 52) | 0x4330000000000000) - 4503599627371519.0;
  return (gy_hf64)((i & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
}
#endif
//% gy_log_m_d
// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)].
template <class T> GY_FN T gy_log_m_d(T f) {
  T s = f / (f + 2.0), z = s * s;
  T p = gy_poly(z, 0.16835058185093688, 0.18122423412072586, 0.22223407678861026,
    0.2857141665212658, 0.40000000055005724, 0.6666666666658222);
  return gy_mad(s * z, p, s + s);
}
//% gy_log_ends : GY_INF
// The values of a logarithm at zero, below zero, at infinity and at NaN; x is where it starts from 0.
template <class T> GY_FN T gy_log_ends(T x, T r) {
  r = gy_sel(x == 0, T{} - GY_INF, r);
  r = gy_sel(x < 0, T{} + GY_NAN, r);
  return gy_sel((x >= 0) & (x < GY_INF), r, gy_sel(x < 0, r, x + x));
}
//% gy_pick gy_by_table
#if GY_ISA == 512
// Of 32 floats, those at the places in the lowest five bits of i.
GY_FN vf32 gy_pick(const sf32 (&table)[32], vi32 i) {
  vf32 low = gy_ldu<vf32>(table), high = gy_ldu<vf32>(table + 16);
#if defined(__clang__)
  return __builtin_ia32_vpermi2varps512(low, i, high);
#else
  return __builtin_shuffle(low, high, i);
#endif
}
// An odd function that reaches 1 at top, as f(b) + (x - b) (c1 + c2 (x - b) + ...) in quarters of the octaves from 1/16 to
// 16; the first begins at 0 and adds to x. Rows of the table: b, f(b), c1, c2, ...
template <si32 R> GY_FN vf32 gy_by_table(vf32 x, sf32 top, const sf32 (&table)[R][32]) {
  vf32 a = gy_lower(gy_abs(x), vf32{} + top);
  vi32 i = gy_bits(gy_raise(a, vf32{} + 0.0625f)) >> 21;
  vf32 d = a - gy_pick(table[0], i);
  vf32 base = gy_sel(a < 0.078125f, a, gy_pick(table[1], i));
  vf32 p = gy_pick(table[R - 1], i);
  _Pragma("GCC unroll 8") for (si32 k = R - 2; k > 1; k--) p = gy_mad(p, d, gy_pick(table[k], i));
  return gy_copysign(gy_mad(p, d, base), x);
}
#endif
