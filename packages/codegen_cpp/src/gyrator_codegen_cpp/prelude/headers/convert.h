//% gy_wide32 : gy_widen
#if GY_VEC
GY_FN vi32 gy_wide32(vi8 x) { return gy_widen(x); }
GY_FN vu32 gy_wide32(vu16 x) { return gy_widen(x); }
#if defined(__clang__)
GY_FN vu32 gy_wide32(vu8 x) { return __builtin_convertvector(x, vu32); }
GY_FN vi32 gy_wide32(vi16 x) { return __builtin_convertvector(x, vi32); }
#elif GY_ISA == 512
GY_FN vu32 gy_wide32(vu8 x) { return (vu32)__builtin_ia32_pmovzxbd512_mask((gy_c8)x, vi32{}, (su16)-1); }
GY_FN vi32 gy_wide32(vi16 x) { return (vi32)__builtin_ia32_pmovsxwd512_mask(x, vi32{}, (su16)-1); }
#else
GY_FN vu32 gy_wide32(vu8 x) { return (vu32)__builtin_ia32_pmovzxbd256((gy_c8)gy_l2{(si64)x}); }
GY_FN vi32 gy_wide32(vi16 x) { return (vi32)__builtin_ia32_pmovsxwd256(x); }
#endif
#endif
//% gy_cvti gy_cvttl
// Scalars to an integer of 32 bits, and half a vector of doubles to those of 32 and of 64.
GY_FN si32 gy_cvti(sf32 x) { return (si32)x; }
GY_FN si32 gy_cvti(sf64 x) { return (si32)x; }
#if GY_ISA == 512
GY_FN gy_hi32 gy_cvti(gy_hf64 x) {
  return (gy_hi32)__builtin_ia32_cvttpd2dq512_mask(x, gy_hi32{}, (su8)-1, 4);
}
GY_FN gy_hi64 gy_cvttl(gy_hf64 x) { return GY_C(x, gy_hi64); }
#elif GY_ISA == 256
GY_FN gy_hi32 gy_cvti(gy_hf64 x) { return (gy_hi32)__builtin_ia32_cvttpd2dq256(x); }
GY_FN gy_hi64 gy_cvttl(gy_hf64 x) {
  gy_hf64 t = __builtin_ia32_roundpd256(x, 11);
  gy_hi64 near = (t < 2251799813685248.0) & (t > -2251799813685248.0);
  if (__builtin_expect(__builtin_ia32_movmskpd256((gy_hf64)near) != 15, 0))
    return gy_hi64{(si64)x[0], (si64)x[1], (si64)x[2], (si64)x[3]};
  // The sum with 1.5 * 2^52 holds the integer in its lowest bits.
  return (gy_hi64)(t + 6755399441055744.0) - 0x4338000000000000;
}
#endif
//% gy_cvtt gy_cvtu gy_cvtul
// Float to integer is the machine's truncating conversion, as eager torch's; narrow integers go through 32 bits and wrap.
GY_FN si32 gy_cvtt(sf32 x) { return gy_cvti(x); }
GY_FN si32 gy_cvtt(sf64 x) { return gy_cvti(x); }
GY_FN su32 gy_cvtu(sf32 x) {
  bool small = x < 2147483648.0f;
  return (su32)gy_cvtt(small ? x : x - 2147483648.0f) ^ (small ? 0u : 2147483648u);
}
GY_FN su32 gy_cvtu(sf64 x) {
  bool small = x < 2147483648.0;
  return (su32)gy_cvtt(small ? x : x - 2147483648.0) ^ (small ? 0u : 2147483648u);
}
GY_FN su64 gy_cvtul(sf64 x) {
  bool small = x < 9223372036854775808.0;
  su64 high = small ? 0ul : 9223372036854775808ul;
  return (su64)(si64)(small ? x : x - 9223372036854775808.0) ^ high;
}
#if GY_VEC
GY_FN vi32 gy_cvtt(vf32 x) { return GY_C(x, vi32); }
GY_FN vi32 gy_cvtt(vf64 x) { return gy_join(gy_cvti(x.lo), gy_cvti(x.hi)); }
GY_FN vu32 gy_cvtu(vf32 x) {
  vi32 small = x < 2147483648.0f;
  return (vu32)(gy_cvtt(small ? x : x - 2147483648.0f) ^ (~small & (si32)0x80000000));
}
GY_FN vu32 gy_cvtu(vf64 x) {
  vf64 big = vf64{gy_hf64{} + 2147483648.0, gy_hf64{} + 2147483648.0};
  gy_hi64 lo = x.lo < big.lo, hi = x.hi < big.hi;
  vf64 y = {lo ? x.lo : x.lo - big.lo, hi ? x.hi : x.hi - big.hi};
  return (vu32)(gy_cvtt(y) ^ (~gy_mask(lo, hi).m & (si32)0x80000000));
}
GY_FN gy_hu64 gy_cvtul(gy_hf64 x) {
  gy_hf64 big = gy_hf64{} + 9223372036854775808.0;
  gy_hi64 small = x < big;
  return (gy_hu64)(gy_cvttl(small ? x : x - big) ^ (~small & (si64)0x8000000000000000));
}
#endif
//% gy_to_i8
#define GY_X(n) GY_FN si8 gy_to_i8(s##n x) { return (si8)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN si8 gy_to_i8(sf32 x) { return (si8)gy_cvtt(x); }
GY_FN si8 gy_to_i8(sf64 x) { return (si8)gy_cvtt(x); }
#if GY_VEC
#define GY_X(n) GY_FN vi8 gy_to_i8(v##n x) { return (vi8)x; }
GY_X(i8) GY_X(u8)
#undef GY_X
#define GY_X(n) GY_FN vi8 gy_to_i8(v##n x) { return GY_C(x, vi8); }
GY_X(i16) GY_X(u16)
#undef GY_X
#define GY_X(n) GY_FN vi8 gy_to_i8(v##n x) { return (vi8)gy_narrow((vi32)x); }
GY_X(i32) GY_X(u32)
#undef GY_X
GY_FN vi8 gy_to_i8(vi64 x) { return (vi8)gy_narrow(gy_to_i32(x)); }
GY_FN vi8 gy_to_i8(vu64 x) { return (vi8)gy_narrow(gy_to_i32(x)); }
GY_FN vi8 gy_to_i8(vf32 x) { return (vi8)gy_narrow(gy_cvtt(x)); }
GY_FN vi8 gy_to_i8(vf64 x) { return (vi8)gy_narrow(gy_cvtt(x)); }
GY_FN vi8 gy_to_i8(vbool x) { return (vi8)gy_narrow(gy_ones(x)); }
#endif
//% gy_to_i16
#define GY_X(n) GY_FN si16 gy_to_i16(s##n x) { return (si16)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN si16 gy_to_i16(sf32 x) { return (si16)gy_cvtt(x); }
GY_FN si16 gy_to_i16(sf64 x) { return (si16)gy_cvtt(x); }
#if GY_VEC
#define GY_X(n) GY_FN vi16 gy_to_i16(v##n x) { return GY_C(x, vi16); }
GY_NATIVE_INTS(GY_X)
#undef GY_X
GY_FN vi16 gy_to_i16(vi64 x) { return GY_C(gy_to_i32(x), vi16); }
GY_FN vi16 gy_to_i16(vu64 x) { return GY_C(gy_to_i32(x), vi16); }
GY_FN vi16 gy_to_i16(vf32 x) { return GY_C(gy_cvtt(x), vi16); }
GY_FN vi16 gy_to_i16(vf64 x) { return GY_C(gy_cvtt(x), vi16); }
GY_FN vi16 gy_to_i16(vbool x) { return GY_C(gy_ones(x), vi16); }
#endif
//% gy_to_i32
#define GY_X(n) GY_FN si32 gy_to_i32(s##n x) { return (si32)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN si32 gy_to_i32(sf32 x) { return (si32)gy_cvtt(x); }
GY_FN si32 gy_to_i32(sf64 x) { return (si32)gy_cvtt(x); }
#if GY_VEC
#define GY_X(n) GY_FN vi32 gy_to_i32(v##n x) { return (vi32)gy_wide32(x); }
GY_X(i8) GY_X(u8) GY_X(i16) GY_X(u16)
#undef GY_X
GY_FN vi32 gy_to_i32(vi32 x) { return (vi32)x; }
GY_FN vi32 gy_to_i32(vu32 x) { return (vi32)x; }
GY_FN vi32 gy_to_i32(vi64 x) { return gy_narrow64(x.lo, x.hi); }
GY_FN vi32 gy_to_i32(vu64 x) { return gy_narrow64((gy_hi64)x.lo, (gy_hi64)x.hi); }
GY_FN vi32 gy_to_i32(vf32 x) { return gy_cvtt(x); }
GY_FN vi32 gy_to_i32(vf64 x) { return gy_cvtt(x); }
GY_FN vi32 gy_to_i32(vbool x) { return GY_C(gy_ones(x), vi32); }
#endif
//% gy_to_u8
#define GY_X(n) GY_FN su8 gy_to_u8(s##n x) { return (su8)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN su8 gy_to_u8(sf32 x) { return (su8)gy_cvtt(x); }
GY_FN su8 gy_to_u8(sf64 x) { return (su8)gy_cvtt(x); }
#if GY_VEC
template <class V> GY_FN vu8 gy_to_u8(V x) { return (vu8)gy_to_i8(x); }
#endif
//% gy_to_u16
#define GY_X(n) GY_FN su16 gy_to_u16(s##n x) { return (su16)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN su16 gy_to_u16(sf32 x) { return (su16)gy_cvtt(x); }
GY_FN su16 gy_to_u16(sf64 x) { return (su16)gy_cvtt(x); }
#if GY_VEC
template <class V> GY_FN vu16 gy_to_u16(V x) { return (vu16)gy_to_i16(x); }
#endif
//% gy_to_u32
#define GY_X(n) GY_FN su32 gy_to_u32(s##n x) { return (su32)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN su32 gy_to_u32(sf32 x) { return (su32)gy_cvtu(x); }
GY_FN su32 gy_to_u32(sf64 x) { return (su32)gy_cvtu(x); }
#if GY_VEC
template <class V> GY_FN vu32 gy_to_u32(V x) { return (vu32)gy_to_i32(x); }
GY_FN vu32 gy_to_u32(vf32 x) { return gy_cvtu(x); }
GY_FN vu32 gy_to_u32(vf64 x) { return gy_cvtu(x); }
#endif
//% gy_to_i64
#define GY_X(n) GY_FN si64 gy_to_i64(s##n x) { return (si64)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN si64 gy_to_i64(sf32 x) { return (si64)x; }
GY_FN si64 gy_to_i64(sf64 x) { return (si64)x; }
#if GY_VEC
#define GY_X(n) GY_FN vi64 gy_to_i64(v##n x) { return vi64{GY_C(gy_lo(x), gy_hi64), GY_C(gy_hi(x), gy_hi64)}; }
GY_X(i32) GY_X(u32)
#undef GY_X
#define GY_X(n) GY_FN vi64 gy_to_i64(v##n x) { return gy_to_i64(gy_wide32(x)); }
GY_X(i8) GY_X(u8) GY_X(i16) GY_X(u16)
#undef GY_X
GY_FN vi64 gy_to_i64(vi64 x) { return vi64{(gy_hi64)x.lo, (gy_hi64)x.hi}; }
GY_FN vi64 gy_to_i64(vu64 x) { return vi64{(gy_hi64)x.lo, (gy_hi64)x.hi}; }
GY_FN vi64 gy_to_i64(vf64 x) { return vi64{gy_cvttl(x.lo), gy_cvttl(x.hi)}; }
GY_FN vi64 gy_to_i64(vf32 x) { return vi64{gy_cvttl(GY_C(gy_lo(x), gy_hf64)), gy_cvttl(GY_C(gy_hi(x), gy_hf64))}; }
GY_FN vi64 gy_to_i64(vbool x) { return gy_to_i64(gy_ones(x)); }
#endif
//% gy_to_u64
#define GY_X(n) GY_FN su64 gy_to_u64(s##n x) { return (su64)x; }
GY_INTS(GY_X) GY_X(bool)
#undef GY_X
GY_FN su64 gy_to_u64(sf32 x) { return gy_cvtul(x); }
GY_FN su64 gy_to_u64(sf64 x) { return gy_cvtul(x); }
#if GY_VEC
GY_FN vu64 gy_to_u64(vi64 x) { return vu64{(gy_hu64)x.lo, (gy_hu64)x.hi}; }
template <class V> GY_FN vu64 gy_to_u64(V x) { return gy_to_u64(gy_to_i64(x)); }
GY_FN vu64 gy_to_u64(vf64 x) { return vu64{gy_cvtul(x.lo), gy_cvtul(x.hi)}; }
GY_FN vu64 gy_to_u64(vf32 x) { return vu64{gy_cvtul(GY_C(gy_lo(x), gy_hf64)), gy_cvtul(GY_C(gy_hi(x), gy_hf64))}; }
#endif
//% gy_to_bool
#define GY_X(n) GY_FN sbool gy_to_bool(s##n x) { return x != 0; }
GY_NUMBERS(GY_X)
#undef GY_X
GY_FN sbool gy_to_bool(sbool x) { return x; }
#if GY_VEC
#define GY_X(n) GY_FN vbool gy_to_bool(v##n x) { return gy_mask(x != 0); }
GY_X(f32) GY_NATIVE_INTS(GY_X)
#undef GY_X
#define GY_X(n) GY_FN vbool gy_to_bool(v##n x) { return gy_mask(x.lo != 0, x.hi != 0); }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
GY_FN vbool gy_to_bool(vbool x) { return x; }
#endif
//% gy_to_f32
GY_FN sf32 gy_to_f32(gy_bf16 x) { return gy_bf16_value((su32)x.bits); }
GY_FN sf32 gy_to_f32(gy_f16 x) { return gy_f16_value((su32)x.bits); }
#define GY_X(n) GY_FN sf32 gy_to_f32(s##n x) { return (sf32)x; }
GY_NUMBERS(GY_X) GY_X(bool)
#undef GY_X
#if GY_VEC
#define GY_X(n) GY_FN vf32 gy_to_f32(v##n x) { return GY_C((vi32)gy_wide32(x), vf32); }
GY_X(i8) GY_X(u8) GY_X(i16) GY_X(u16)
#undef GY_X
#define GY_X(n) GY_FN vf32 gy_to_f32(v##n x) { return GY_C(x, vf32); }
GY_X(i32) GY_X(u32)
#undef GY_X
#define GY_X(n) GY_FN vf32 gy_to_f32(v##n x) { return gy_join(GY_C(x.lo, gy_hf32), GY_C(x.hi, gy_hf32)); }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
GY_FN vf32 gy_to_f32(vf32 x) { return x; }
GY_FN vf32 gy_to_f32(vbool x) { return (vf32)(x.m & 0x3f800000); }
#endif
//% gy_to_f64
#define GY_X(n) GY_FN sf64 gy_to_f64(s##n x) { return (sf64)x; }
GY_NUMBERS(GY_X) GY_X(bool)
#undef GY_X
#if GY_VEC
GY_FN vf64 gy_to_f64(vf32 x) { return vf64{GY_C(gy_lo(x), gy_hf64), GY_C(gy_hi(x), gy_hf64)}; }
GY_FN vf64 gy_to_f64(vi32 x) { return vf64{GY_C(gy_lo(x), gy_hf64), GY_C(gy_hi(x), gy_hf64)}; }
#define GY_X(n) GY_FN vf64 gy_to_f64(v##n x) { return gy_to_f64((vi32)gy_wide32(x)); }
GY_X(i8) GY_X(u8) GY_X(i16) GY_X(u16)
#undef GY_X
GY_FN vf64 gy_to_f64(vu32 x) {
  // 2^52 + x and 2^52 share an exponent, so the difference is x exactly.
  gy_hi64 e = gy_hi64{} + 0x4330000000000000;
  gy_hf64 b = (gy_hf64)e;
  return vf64{(gy_hf64)(GY_C(gy_lo(x), gy_hi64) | e) - b, (gy_hf64)(GY_C(gy_hi(x), gy_hi64) | e) - b};
}
#define GY_X(n) GY_FN vf64 gy_to_f64(v##n x) { return vf64{GY_C(x.lo, gy_hf64), GY_C(x.hi, gy_hf64)}; }
GY_X(i64) GY_X(u64)
#undef GY_X
GY_FN vf64 gy_to_f64(vf64 x) { return x; }
GY_FN vf64 gy_to_f64(vbool x) { return gy_to_f64(gy_ones(x)); }
#endif
//% gy_recast
template <class To, class From> GY_FN To gy_recast(From x) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
  To r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}
