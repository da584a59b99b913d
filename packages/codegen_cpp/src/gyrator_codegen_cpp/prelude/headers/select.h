//% gy_select
#define GY_SEL(n) GY_FN s##n gy_select(sbool m, s##n a, s##n b) { return m ? a : b; }
GY_NUMBERS(GY_SEL)
#undef GY_SEL
// GCC vectorises no choice between masks.
GY_FN sbool gy_select(sbool m, sbool a, sbool b) { return (m & a) | (!m & b); }
#if GY_VEC
#define GY_SEL(n, k) \
  GY_FN v##n gy_select(vbool m, v##n a, v##n b) { return k ? a : b; }
GY_SEL(i8, gy_narrow(m.m)) GY_SEL(u8, gy_narrow(m.m))
GY_SEL(i16, __builtin_convertvector(m.m, vi16)) GY_SEL(u16, __builtin_convertvector(m.m, vi16))
#undef GY_SEL
#define GY_SEL(n) GY_FN v##n gy_select(vbool m, v##n a, v##n b) { return m.m ? a : b; }
GY_SEL(f32) GY_SEL(i32) GY_SEL(u32)
#undef GY_SEL
#if GY_ISA == 512 && !defined(__clang__)
GY_FN vf64 gy_select(vbool m, vf64 a, vf64 b) {
  su16 k = (su16)__builtin_ia32_cvtd2mask512(m.m);
  return vf64{__builtin_ia32_blendmpd_512_mask(b.lo, a.lo, (su8)k), __builtin_ia32_blendmpd_512_mask(b.hi, a.hi, (su8)(k >> 8))};
}
#define GY_SEL(n) \
  GY_FN v##n gy_select(vbool m, v##n a, v##n b) { \
    su16 k = (su16)__builtin_ia32_cvtd2mask512(m.m); \
    return v##n{(gy_h##n)__builtin_ia32_blendmq_512_mask((gy_q64)b.lo, (gy_q64)a.lo, (su8)k), \
      (gy_h##n)__builtin_ia32_blendmq_512_mask((gy_q64)b.hi, (gy_q64)a.hi, (su8)(k >> 8))}; \
  }
GY_SEL(i64) GY_SEL(u64)
#else
#define GY_SEL(n) \
  GY_FN v##n gy_select(vbool m, v##n a, v##n b) { \
    return v##n{gy_lo64(m) ? a.lo : b.lo, gy_hi64_of(m) ? a.hi : b.hi}; \
  }
GY_SEL(f64) GY_SEL(i64) GY_SEL(u64)
#endif
#undef GY_SEL
#if GY_ISA == 256 && !defined(__clang__)
#define GY_SEL(n) GY_FN v##n gy_select(gy_wbool m, v##n a, v##n b) { return v##n{m.lo ? a.lo : b.lo, m.hi ? a.hi : b.hi}; }
GY_SEL(f64) GY_SEL(i64) GY_SEL(u64)
#undef GY_SEL
#endif
GY_FN vbool gy_select(vbool m, vbool a, vbool b) { return (m & a) | (~m & b); }
#endif
//% gy_not
GY_FN sbool gy_not(sbool a) { return !a; }
GY_V(template <class M> GY_FN M gy_not(M a) { return ~a; })
//% gy_lane_bits
#if GY_ISA == 512
GY_FN su32 gy_lane_bits(vbool a) { return (su16)__builtin_ia32_cvtd2mask512(a.m); }
#elif GY_ISA == 256
GY_FN su32 gy_lane_bits(vbool a) { return (su32)__builtin_ia32_movmskps256((vf32)a.m); }
#endif
//% gy_any
GY_FN sbool gy_any(sbool a) { return a; }
GY_V(GY_FN sbool gy_any(vbool a) { return gy_lane_bits(a) != 0; })
//% gy_all
GY_FN sbool gy_all(sbool a) { return a; }
GY_V(GY_FN sbool gy_all(vbool a) { return gy_lane_bits(a) == (1u << GY_LANES) - 1; })
