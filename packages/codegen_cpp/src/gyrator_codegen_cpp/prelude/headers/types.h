//% types sf32 sf64 si8 si16 si32 si64 su8 su16 su32 su64 sbool vf32 vf64 vi8 vi16 vi32 vi64 vu8 vu16 vu32 vu64 vbool gy_bf16 gy_f16 gy_bits gy_float gy_sel gy_p gy_lo gy_hi gy_join gy_ldu gy_stu
#define GY_FN static inline __attribute__((always_inline))
#define GY_RESTRICT __restrict__
#define GY_PARALLEL_MIN 16384
typedef float sf32;
typedef double sf64;
typedef signed char si8;
typedef short si16;
typedef int si32;
typedef long si64;
typedef unsigned char su8;
typedef unsigned short su16;
typedef unsigned su32;
typedef unsigned long su64;
typedef bool sbool;
struct gy_bf16 { su16 bits; };
struct gy_f16 { su16 bits; };
GY_FN si32 gy_bits(sf32 x) { si32 r; __builtin_memcpy(&r, &x, 4); return r; }
GY_FN si64 gy_bits(sf64 x) { si64 r; __builtin_memcpy(&r, &x, 8); return r; }
GY_FN sf32 gy_float(si32 x) { sf32 r; __builtin_memcpy(&r, &x, 4); return r; }
GY_FN sf64 gy_float(si64 x) { sf64 r; __builtin_memcpy(&r, &x, 8); return r; }
template <class T> GY_FN T gy_sel(bool m, T a, T b) { return m ? a : b; }
#if GY_VEC
#if GY_LANES == 16
#define GY_IOTA_LO 0, 1, 2, 3, 4, 5, 6, 7
#define GY_IOTA_HI 8, 9, 10, 11, 12, 13, 14, 15
#define GY_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#elif GY_LANES == 8
#define GY_IOTA_LO 0, 1, 2, 3
#define GY_IOTA_HI 4, 5, 6, 7
#define GY_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#else
#define GY_IOTA_LO 0, 1
#define GY_IOTA_HI 2, 3
#define GY_EVEN 0, 2, 4, 6
#endif
#define GY_IOTA GY_IOTA_LO, GY_IOTA_HI
#define GY_TYPE(n) \
  typedef s##n v##n __attribute__((vector_size(sizeof(s##n) * GY_LANES))); \
  typedef s##n gy_h##n __attribute__((vector_size(sizeof(s##n) * GY_LANES / 2))); \
  GY_FN gy_h##n gy_lo(v##n x) { return __builtin_shufflevector(x, x, GY_IOTA_LO); } \
  GY_FN gy_h##n gy_hi(v##n x) { return __builtin_shufflevector(x, x, GY_IOTA_HI); } \
  GY_FN v##n gy_join(gy_h##n a, gy_h##n b) { return __builtin_shufflevector(a, b, GY_IOTA); }
GY_TYPE(f32) GY_TYPE(i32) GY_TYPE(u32) GY_TYPE(i16) GY_TYPE(u16) GY_TYPE(i8) GY_TYPE(u8)
#undef GY_TYPE
// A 64-bit lane type is two registers: GCC scalarises comparisons and selections of a vector wider than the machine's.
template <class H> struct gy_p { H lo, hi; };
#define GY_TYPE(n) \
  typedef s##n gy_h##n __attribute__((vector_size(sizeof(s##n) * GY_LANES / 2))); \
  typedef gy_p<gy_h##n> v##n; \
  GY_FN gy_h##n gy_lo(v##n x) { return x.lo; } \
  GY_FN gy_h##n gy_hi(v##n x) { return x.hi; } \
  GY_FN v##n gy_join(gy_h##n a, gy_h##n b) { return v##n{a, b}; }
GY_TYPE(f64) GY_TYPE(i64) GY_TYPE(u64)
#undef GY_TYPE
#define GY_OP(op) \
  template <class H> GY_FN gy_p<H> operator op(gy_p<H> a, gy_p<H> b) { \
    return gy_p<H>{a.lo op b.lo, a.hi op b.hi}; \
  }
GY_OP(+) GY_OP(-) GY_OP(*) GY_OP(/) GY_OP(&) GY_OP(|) GY_OP(^)
#undef GY_OP
#define GY_OP(op) \
  template <class H> GY_FN gy_p<H> operator op(gy_p<H> a) { return gy_p<H>{op a.lo, op a.hi}; }
GY_OP(-) GY_OP(~)
#undef GY_OP
struct vbool { vi32 m; };
GY_FN vbool operator&(vbool a, vbool b) { return vbool{a.m & b.m}; }
GY_FN vbool operator|(vbool a, vbool b) { return vbool{a.m | b.m}; }
GY_FN vbool operator^(vbool a, vbool b) { return vbool{a.m ^ b.m}; }
GY_FN vbool operator~(vbool a) { return vbool{~a.m}; }
GY_FN vbool gy_mask(vi32 a) { return vbool{a}; }
GY_FN vbool gy_mask(vi16 a) { return vbool{__builtin_convertvector(a, vi32)}; }
GY_FN vbool gy_mask(vi8 a) { return vbool{__builtin_convertvector(a, vi32)}; }
GY_FN vi32 gy_narrow64(gy_hi64 a, gy_hi64 b) { return __builtin_shufflevector((vi32)a, (vi32)b, GY_EVEN); }
#if GY_ISA == 512
typedef long long gy_q64 __attribute__((vector_size(64)));
#endif
#if GY_ISA == 512 && !defined(__clang__)
// GCC makes vectors of masks that are narrowed as vectors.
GY_FN vbool gy_mask(gy_hi64 a, gy_hi64 b) {
  su16 low = (su8)__builtin_ia32_cvtq2mask512((gy_q64)a), high = (su8)__builtin_ia32_cvtq2mask512((gy_q64)b);
  return vbool{(vi32)__builtin_ia32_cvtmask2d512((su16)(low | high << 8))};
}
#else
GY_FN vbool gy_mask(gy_hi64 a, gy_hi64 b) { return vbool{gy_narrow64(a, b)}; }
#endif
// 1 and 0, by `&`: GCC 12 takes -m >= x for m <= -x where the lanes of x are the least integer, which has no negative.
GY_FN vi32 gy_ones(vbool x) { return x.m & 1; }
GY_FN vi32 gy_bits(vf32 x) { return (vi32)x; }
GY_FN vf32 gy_float(vi32 x) { return (vf32)x; }
GY_FN gy_hi64 gy_bits(gy_hf64 x) { return (gy_hi64)x; }
GY_FN gy_hf64 gy_float(gy_hi64 x) { return (gy_hf64)x; }
GY_FN vi64 gy_bits(vf64 x) { return vi64{(gy_hi64)x.lo, (gy_hi64)x.hi}; }
GY_FN vf64 gy_float(vi64 x) { return vf64{(gy_hf64)x.lo, (gy_hf64)x.hi}; }
template <class T> GY_FN T gy_sel(vi32 m, T a, T b) { return m ? a : b; }
template <class T> GY_FN T gy_sel(gy_hi64 m, T a, T b) { return m ? a : b; }
#if defined(__clang__)
// What clang compares doubles to.
typedef long long gy_hq64 __attribute__((vector_size(8 * GY_LANES / 2)));
template <class T> GY_FN T gy_sel(gy_hq64 m, T a, T b) { return m ? a : b; }
#endif
#endif
template <class T> GY_FN void gy_get(const void *p, T &v) { __builtin_memcpy(&v, p, sizeof v); }
template <class T> GY_FN void gy_stu(void *p, T v) { __builtin_memcpy(p, &v, sizeof v); }
#if GY_VEC
// GCC copies a pair as a whole through the stack.
template <class H> GY_FN void gy_get(const void *p, gy_p<H> &v) {
  gy_get(p, v.lo);
  gy_get((const H *)p + 1, v.hi);
}
template <class H> GY_FN void gy_stu(void *p, gy_p<H> v) {
  gy_stu(p, v.lo);
  gy_stu((H *)p + 1, v.hi);
}
#endif
template <class T> GY_FN T gy_ldu(const void *p) { T v; gy_get(p, v); return v; }

#define GY_INTS(X) X(i8) X(i16) X(i32) X(i64) X(u8) X(u16) X(u32) X(u64)
#define GY_NATIVE_INTS(X) X(i8) X(i16) X(i32) X(u8) X(u16) X(u32)
#define GY_NUMBERS(X) X(f32) X(f64) GY_INTS(X)
#if GY_VEC
#define GY_V(...) __VA_ARGS__
#else
#define GY_V(...)
#endif
//% gy_wbool gy_wide_mask
// Where a mask is a vector, one of 64-bit numbers stays as wide as them, until it meets one of 32 bits.
#if GY_VEC
#if GY_ISA == 256 && !defined(__clang__)
struct gy_wbool {
  gy_hi64 lo, hi;
  inline __attribute__((always_inline)) operator vbool() const { return gy_mask(lo, hi); }
};
GY_FN gy_wbool gy_wide_mask(gy_hi64 a, gy_hi64 b) { return gy_wbool{a, b}; }
GY_FN gy_wbool operator&(gy_wbool a, gy_wbool b) { return gy_wbool{a.lo & b.lo, a.hi & b.hi}; }
GY_FN gy_wbool operator|(gy_wbool a, gy_wbool b) { return gy_wbool{a.lo | b.lo, a.hi | b.hi}; }
GY_FN gy_wbool operator^(gy_wbool a, gy_wbool b) { return gy_wbool{a.lo ^ b.lo, a.hi ^ b.hi}; }
GY_FN gy_wbool operator~(gy_wbool a) { return gy_wbool{~a.lo, ~a.hi}; }
#else
typedef vbool gy_wbool;
GY_FN vbool gy_wide_mask(gy_hi64 a, gy_hi64 b) { return gy_mask(a, b); }
#endif
#endif
//% gy_widen gy_narrow
// GCC widens and narrows by halves or lane by lane, the machine at once.
#if GY_VEC
#if defined(__clang__)
GY_FN vi32 gy_widen(vi8 x) { return __builtin_convertvector(x, vi32); }
GY_FN vu32 gy_widen(vu16 x) { return __builtin_convertvector(x, vu32); }
GY_FN vi8 gy_narrow(vi32 x) { return __builtin_convertvector(x, vi8); }
#else
typedef char gy_c8 __attribute__((vector_size(16)));
#if GY_ISA == 512
GY_FN vi32 gy_widen(vi8 x) { return (vi32)__builtin_ia32_pmovsxbd512_mask((gy_c8)x, vi32{}, (su16)-1); }
GY_FN vu32 gy_widen(vu16 x) { return (vu32)__builtin_ia32_pmovzxwd512_mask((vi16)x, vi32{}, (su16)-1); }
GY_FN vi8 gy_narrow(vi32 x) { return (vi8)__builtin_ia32_pmovdb512_mask(x, gy_c8{}, (su16)-1); }
#else
typedef si64 gy_l2 __attribute__((vector_size(16)));
typedef char gy_c32 __attribute__((vector_size(32)));
GY_FN vi32 gy_widen(vi8 x) { return __builtin_ia32_pmovsxbd256((gy_c8)gy_l2{(si64)x}); }
GY_FN vu32 gy_widen(vu16 x) { return (vu32)__builtin_ia32_pmovzxwd256((vi16)x); }
GY_FN vi8 gy_narrow(vi32 x) {
  x = (vi32)__builtin_ia32_pshufb256((gy_c32)x, (gy_c32)vi32{0x0c080400, 0, 0, 0, 0, 0x0c080400});
  return (vi8)((si64)(su32)x[0] | (si64)x[5] << 32);
}
#endif
#endif
#endif
//% gy_wide64 gy_lo64 gy_hi64_of
// GCC widens halves of 32 bits to wholes of 64 by quarters, AVX2 and AVX-512 at once.
#if GY_VEC
#if GY_ISA == 512 && !defined(__clang__)
typedef long long gy_long __attribute__((vector_size(64)));
GY_FN gy_hi64 gy_wide64(gy_hi32 x) { return (gy_hi64)__builtin_ia32_pmovsxdq512_mask(x, gy_long{}, (su8)-1); }
GY_FN gy_hi64 gy_wide64(gy_hu32 x) { return (gy_hi64)__builtin_ia32_pmovzxdq512_mask((gy_hi32)x, gy_long{}, (su8)-1); }
#elif GY_ISA == 256 && !defined(__clang__)
GY_FN gy_hi64 gy_wide64(gy_hi32 x) { return (gy_hi64)__builtin_ia32_pmovsxdq256(x); }
GY_FN gy_hi64 gy_wide64(gy_hu32 x) { return (gy_hi64)__builtin_ia32_pmovzxdq256((gy_hi32)x); }
#else
GY_FN gy_hi64 gy_wide64(gy_hi32 x) { return __builtin_convertvector(x, gy_hi64); }
#endif
GY_FN gy_hi64 gy_lo64(vbool a) { return gy_wide64(gy_lo(a.m)); }
GY_FN gy_hi64 gy_hi64_of(vbool a) { return gy_wide64(gy_hi(a.m)); }
#endif
//% gy_pack16
// The lower halves of numbers below 2^16.
#if GY_ISA == 256
GY_FN vu16 gy_pack16(vu32 x) { return (vu16)__builtin_ia32_packusdw128((gy_hi32)gy_lo(x), (gy_hi32)gy_hi(x)); }
#elif GY_VEC
GY_FN vu16 gy_pack16(vu32 x) { return __builtin_convertvector(x, vu16); }
#endif
//% gy_raise gy_lower
// x, but at least or at most c; a NaN stays.
template <class T> GY_FN T gy_raise(T x, T c) { return gy_sel(x < c, c, x); }
template <class T> GY_FN T gy_lower(T x, T c) { return gy_sel(x > c, c, x); }
#if GY_VEC && !defined(__clang__)
// One instruction, which gives its second operand where they do not compare.
#if GY_ISA == 512
GY_FN vf32 gy_raise(vf32 x, vf32 c) { return (vf32)__builtin_ia32_maxps512_mask(c, x, vf32{}, (su16)-1, 4); }
GY_FN vf32 gy_lower(vf32 x, vf32 c) { return (vf32)__builtin_ia32_minps512_mask(c, x, vf32{}, (su16)-1, 4); }
GY_FN gy_hf64 gy_raise(gy_hf64 x, gy_hf64 c) { return (gy_hf64)__builtin_ia32_maxpd512_mask(c, x, gy_hf64{}, (su8)-1, 4); }
GY_FN gy_hf64 gy_lower(gy_hf64 x, gy_hf64 c) { return (gy_hf64)__builtin_ia32_minpd512_mask(c, x, gy_hf64{}, (su8)-1, 4); }
#else
GY_FN vf32 gy_raise(vf32 x, vf32 c) { return (vf32)__builtin_ia32_maxps256(c, x); }
GY_FN vf32 gy_lower(vf32 x, vf32 c) { return (vf32)__builtin_ia32_minps256(c, x); }
GY_FN gy_hf64 gy_raise(gy_hf64 x, gy_hf64 c) { return __builtin_ia32_maxpd256(c, x); }
GY_FN gy_hf64 gy_lower(gy_hf64 x, gy_hf64 c) { return __builtin_ia32_minpd256(c, x); }
#endif
#endif
