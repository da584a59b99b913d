//% gy_widen gy_narrow
// Four bytes are no vector of this machine's: the compiler would take them one by one.
#if GY_VEC
GY_FN vi32 gy_widen(vi8 x) {
  vi32 r;
  asm("sxtl %0.8h, %1.8b\n\tsxtl %0.4s, %0.4h" : "=w"(r) : "w"(gy_ldu<su32>(&x)));
  return r;
}
GY_FN vu32 gy_widen(vu16 x) { return __builtin_convertvector(x, vu32); }
GY_FN vi8 gy_narrow(vi32 x) {
  su32 r;
  asm("xtn %0.4h, %1.4s\n\txtn %0.8b, %0.8h" : "=w"(r) : "w"(x));
  return gy_ldu<vi8>(&r);
}
#endif
//% gy_raise gy_lower
// The machine's own extremes would order the zeros.
template <class T> GY_FN T gy_raise(T x, T c) { return gy_sel(x < c, c, x); }
template <class T> GY_FN T gy_lower(T x, T c) { return gy_sel(x > c, c, x); }
//% gy_wide32
#if GY_VEC
GY_FN vi32 gy_wide32(vi8 x) { return gy_widen(x); }
GY_FN vu32 gy_wide32(vu16 x) { return gy_widen(x); }
GY_FN vu32 gy_wide32(vu8 x) {
  vu32 r;
  asm("uxtl %0.8h, %1.8b\n\tuxtl %0.4s, %0.4h" : "=w"(r) : "w"(gy_ldu<su32>(&x)));
  return r;
}
GY_FN vi32 gy_wide32(vi16 x) { return __builtin_convertvector(x, vi32); }
#endif
//% gy_cvti gy_cvttl
// All saturate, also where the compiler, which need not care what is out of range, would narrow twice.
GY_FN si32 gy_cvti(sf32 x) {
  si32 r;
  asm("fcvtzs %w0, %s1" : "=r"(r) : "w"(x));
  return r;
}
GY_FN si32 gy_cvti(sf64 x) {
  si32 r;
  asm("fcvtzs %w0, %d1" : "=r"(r) : "w"(x));
  return r;
}
#if GY_VEC
GY_FN gy_hi64 gy_cvttl(gy_hf64 x) { return __builtin_convertvector(x, gy_hi64); }
GY_FN gy_hi32 gy_cvti(gy_hf64 x) {
  gy_hi32 r;
  asm("sqxtn %0.2s, %1.2d" : "=w"(r) : "w"(gy_cvttl(x)));
  return r;
}
#endif
//% GY_C
// gcc converts between halves of 32 bits and wholes of 64 lane by lane, the machine at once.
template <class T> struct gy_conversion {
  template <class F> GY_FN T of(F x) { return __builtin_convertvector(x, T); }
};
#if GY_VEC
template <> struct gy_conversion<gy_hf64> {
  template <class F> GY_FN gy_hf64 of(F x) { return __builtin_convertvector(x, gy_hf64); }
  GY_FN gy_hf64 of(gy_hi32 x) { return __builtin_convertvector(__builtin_convertvector(x, gy_hi64), gy_hf64); }
  GY_FN gy_hf64 of(gy_hf32 x) {
#if defined(__clang__)
    return __builtin_convertvector(x, gy_hf64);
#else
    return __builtin_aarch64_float_extend_lo_v2df(x);
#endif
  }
};
#endif
#define GY_C(x, t) gy_conversion<t>::of(x)
//% gy_mad
GY_FN sf32 gy_mad(sf32 a, sf32 b, sf32 c) { return __builtin_fmaf(a, b, c); }
GY_FN sf64 gy_mad(sf64 a, sf64 b, sf64 c) { return __builtin_fma(a, b, c); }
#if GY_VEC
#if defined(__clang__)
GY_FN vf32 gy_mad(vf32 a, vf32 b, vf32 c) { return __builtin_elementwise_fma(a, b, c); }
GY_FN gy_hf64 gy_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) { return __builtin_elementwise_fma(a, b, c); }
#else
GY_FN vf32 gy_mad(vf32 a, vf32 b, vf32 c) { return __builtin_aarch64_fmav4sf(a, b, c); }
GY_FN gy_hf64 gy_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) { return __builtin_aarch64_fmav2df(a, b, c); }
#endif
GY_FN vf64 gy_mad(vf64 a, vf64 b, vf64 c) { return vf64{gy_mad(a.lo, b.lo, c.lo), gy_mad(a.hi, b.hi, c.hi)}; }
#endif
//% GY_ROUND_VEC
// By the numbers that x86 has for the directions.
#if defined(__clang__)
#define GY_ROUND_8(x, n) __builtin_elementwise_roundeven(x)
#define GY_ROUND_9(x, n) __builtin_elementwise_floor(x)
#define GY_ROUND_10(x, n) __builtin_elementwise_ceil(x)
#define GY_ROUND_11(x, n) __builtin_elementwise_trunc(x)
#else
#define GY_ROUND_8(x, n) __builtin_aarch64_rint##n(x)
#define GY_ROUND_9(x, n) __builtin_aarch64_floor##n(x)
#define GY_ROUND_10(x, n) __builtin_aarch64_ceil##n(x)
#define GY_ROUND_11(x, n) __builtin_aarch64_btrunc##n(x)
#endif
#define GY_ROUND_VEC(name, mode) \
  GY_FN vf32 name(vf32 x) { return GY_ROUND_##mode(x, v4sf); } \
  GY_FN gy_hf64 name(gy_hf64 x) { return GY_ROUND_##mode(x, v2df); } \
  GY_FN vf64 name(vf64 x) { return vf64{name(x.lo), name(x.hi)}; }
//% gy_sqrt
GY_FN sf32 gy_sqrt(sf32 x) { return __builtin_sqrtf(x); }
GY_FN sf64 gy_sqrt(sf64 x) { return __builtin_sqrt(x); }
#if GY_VEC
#if defined(__clang__)
GY_FN vf32 gy_sqrt(vf32 x) { return __builtin_elementwise_sqrt(x); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return __builtin_elementwise_sqrt(x); }
#else
GY_FN vf32 gy_sqrt(vf32 x) { return __builtin_aarch64_sqrtv4sf(x); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return __builtin_aarch64_sqrtv2df(x); }
#endif
GY_FN vf64 gy_sqrt(vf64 x) { return vf64{gy_sqrt(x.lo), gy_sqrt(x.hi)}; }
#endif
//% gy_f16_bits gy_f16_value
GY_FN su32 gy_f16_bits(sf32 x) {
  __fp16 h = (__fp16)x;
  return gy_ldu<su16>(&h);
}
GY_FN sf32 gy_f16_value(su32 h) {
  su16 bits = (su16)h;
  return (sf32)gy_ldu<__fp16>(&bits);
}
#if GY_VEC
typedef __fp16 gy_w16 __attribute__((vector_size(8)));
#if defined(__clang__)
GY_FN vu16 gy_f16_bits(vf32 x) { return (vu16)__builtin_convertvector(x, gy_w16); }
GY_FN vf32 gy_f16_value(vu16 x) { return __builtin_convertvector((gy_w16)x, vf32); }
#else
GY_FN vu16 gy_f16_bits(vf32 x) { return (vu16)__builtin_aarch64_float_truncate_lo_v4hf(x); }
GY_FN vf32 gy_f16_value(vu16 x) { return __builtin_aarch64_float_extend_lo_v4sf((gy_w16)x); }
#endif
#endif
//% gy_lane_bits
// One bit of each 16, gathered by a product.
#if GY_VEC
GY_FN su32 gy_lane_bits(vbool a) {
  const vi16 narrow = __builtin_convertvector(a.m, vi16);
  return (su32)((gy_ldu<su64>(&narrow) & 0x0008000400020001) * 0x0001000100010001 >> 48);
}
#endif
//% gy_any_w
GY_FN bool gy_any_w(bool m) { return m; }
#if GY_VEC
GY_FN su32 gy_lane_bits_w(gy_hi64 m) { return (su32)((m[0] & 1) | (m[1] & 2)); }
GY_FN bool gy_any_w(gy_hi64 m) { return gy_lane_bits_w(m) != 0; }
GY_FN bool gy_any_w(vi32 m) { return gy_lane_bits(vbool{m}) != 0; }
#if defined(__clang__)
GY_FN bool gy_any_w(gy_hq64 m) { return gy_lane_bits_w((gy_hi64)m) != 0; }
#endif
#endif
//% gy_bit_load gy_bit_store
// Loads and stores of the lanes in a mask; other elements are not touched.
#if GY_VEC
#define GY_X(n) \
  GY_FN v##n gy_bit_load(const s##n *p, su32 k) { \
    if (k == 15) return gy_vload(p); \
    v##n r = {}; \
    if (k & 1) r[0] = p[0]; \
    if (k & 2) r[1] = p[1]; \
    if (k & 4) r[2] = p[2]; \
    if (k & 8) r[3] = p[3]; \
    return r; \
  } \
  GY_FN void gy_bit_store(s##n *p, v##n x, su32 k) { \
    if (k == 15) return gy_store(p, x); \
    if (k & 1) p[0] = x[0]; \
    if (k & 2) p[1] = x[1]; \
    if (k & 4) p[2] = x[2]; \
    if (k & 8) p[3] = x[3]; \
  }
GY_X(i32) GY_X(i16) GY_X(i8)
#undef GY_X
GY_FN vi64 gy_bit_load(const si64 *p, su32 k) {
  if (k == 15) return gy_vload(p);
  vi64 r = {};
  if (k & 1) r.lo[0] = p[0];
  if (k & 2) r.lo[1] = p[1];
  if (k & 4) r.hi[0] = p[2];
  if (k & 8) r.hi[1] = p[3];
  return r;
}
GY_FN void gy_bit_store(si64 *p, vi64 x, su32 k) {
  if (k == 15) return gy_store(p, x);
  if (k & 1) p[0] = x.lo[0];
  if (k & 2) p[1] = x.lo[1];
  if (k & 4) p[2] = x.hi[0];
  if (k & 8) p[3] = x.hi[1];
}
#endif
//% gy_k_of gy_k_n
#if GY_VEC
GY_FN su32 gy_k_of(vbool m) { return gy_lane_bits(m); }
GY_FN su32 gy_k_n(si64 n) { return n >= GY_LANES ? 15u : (1u << n) - 1; }
#endif
//% gy_hard_gather
// Lane by lane, for there is no other way; those outside the mask are not read.
#if GY_VEC
template <class I> GY_FN vf32 gy_gather_four(const sf32 *p, I i0, I i1, I i2, I i3, vbool m) {
  vf32 r = {};
  if (m.m[0]) r[0] = p[i0];
  if (m.m[1]) r[1] = p[i1];
  if (m.m[2]) r[2] = p[i2];
  if (m.m[3]) r[3] = p[i3];
  return r;
}
GY_FN vf32 gy_hard_gather(const sf32 *p, vi64 i, vbool m) {
  return gy_gather_four(p, i.lo[0], i.lo[1], i.hi[0], i.hi[1], m);
}
GY_FN vf32 gy_hard_gather(const sf32 *p, vi32 i, vbool m) { return gy_gather_four(p, i[0], i[1], i[2], i[3], m); }
GY_FN vf64 gy_hard_gather(const sf64 *p, vi64 i, vbool m) {
  vf64 r = {};
  if (m.m[0]) r.lo[0] = p[i.lo[0]];
  if (m.m[1]) r.lo[1] = p[i.lo[1]];
  if (m.m[2]) r.hi[0] = p[i.hi[0]];
  if (m.m[3]) r.hi[1] = p[i.hi[1]];
  return r;
}
GY_FN vf64 gy_hard_gather(const sf64 *p, vi32 i, vbool m) {
  return gy_hard_gather(p, vi64{__builtin_convertvector(gy_lo(i), gy_hi64), __builtin_convertvector(gy_hi(i), gy_hi64)}, m);
}
#endif
//% gy_mulhilo
GY_FN void gy_mulhilo(su32 a, su32 m, su32 &hi, su32 &lo) {
  su64 p = (su64)a * m;
  hi = (su32)(p >> 32);
  lo = (su32)p;
}
#if GY_VEC
// Vectors have no product of 64 bits but that of halves.
GY_FN void gy_mulhilo(vu32 a, su32 m, vu32 &hi, vu32 &lo) {
  const gy_hu32 k = {m, m};
  gy_hu64 p, q;
  asm("umull %0.2d, %1.2s, %2.2s" : "=w"(p) : "w"(gy_lo(a)), "w"(k));
  asm("umull %0.2d, %1.2s, %2.2s" : "=w"(q) : "w"(gy_hi(a)), "w"(k));
  hi = __builtin_shufflevector((vu32)p, (vu32)q, 1, 3, 5, 7);
  lo = a * m;
}
#endif
