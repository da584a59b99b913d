//% gy_shl
// Counts outside 0..bits-1 give 0.
#define GY_X(n, u) \
  GY_FN s##n gy_shl(s##n a, s##n b) { \
    return (su64)b >= 8 * sizeof(a) ? (s##n)0 : (s##n)((u)a << ((u)b & (8 * sizeof(u) - 1))); \
  }
GY_X(i8, su32) GY_X(i16, su32) GY_X(i32, su32) GY_X(i64, su64) GY_X(u8, su32) GY_X(u16, su32) GY_X(u32, su32) GY_X(u64, su64)
#undef GY_X
#if GY_VEC
#define GY_X(t, u, bits) \
  GY_FN t gy_shl(t a, t b) { \
    u c = (u)b; \
    return c < bits ? (t)((u)a << (c & (bits - 1))) : t{}; \
  }
GY_X(vi32, vu32, 32u) GY_X(vu32, vu32, 32u) GY_X(gy_hi64, gy_hu64, 64ul) GY_X(gy_hu64, gy_hu64, 64ul)
#undef GY_X
#define GY_X(n, to) GY_FN v##n gy_shl(v##n a, v##n b) { return to(gy_shl(gy_to_i32(a), gy_to_i32(b))); }
GY_X(i8, gy_to_i8) GY_X(u8, gy_to_u8) GY_X(i16, gy_to_i16) GY_X(u16, gy_to_u16)
#undef GY_X
GY_FN vi64 gy_shl(vi64 a, vi64 b) { return vi64{gy_shl(a.lo, b.lo), gy_shl(a.hi, b.hi)}; }
GY_FN vu64 gy_shl(vu64 a, vu64 b) { return vu64{gy_shl(a.lo, b.lo), gy_shl(a.hi, b.hi)}; }
#endif
//% gy_shr
// Counts outside 0..bits-1 give 0 for unsigned lanes and the sign for signed ones.
#define GY_X(n) \
  GY_FN s##n gy_shr(s##n a, s##n b) { \
    su64 top = 8 * sizeof(a) - 1; \
    bool in = (su64)b <= top; \
    return (s##n)-1 > 0 && !in ? (s##n)0 : (s##n)(a >> (in ? (su64)b : top)); \
  }
GY_INTS(GY_X)
#undef GY_X
#if GY_VEC
#define GY_X(t, u, bits) \
  GY_FN t gy_shr(t a, t b) { \
    u c = (u)b; \
    return a >> (t)(c < bits ? c : u{} + (bits - 1)); \
  }
GY_X(vi32, vu32, 32u) GY_X(gy_hi64, gy_hu64, 64ul)
#undef GY_X
#define GY_X(t, bits) GY_FN t gy_shr(t a, t b) { return b < bits ? a >> (b & (bits - 1)) : t{}; }
GY_X(vu32, 32u) GY_X(gy_hu64, 64ul)
#undef GY_X
#define GY_X(n, to, w) GY_FN v##n gy_shr(v##n a, v##n b) { return to(gy_shr(w(a), w(b))); }
GY_X(i8, gy_to_i8, gy_to_i32) GY_X(u8, gy_to_u8, gy_to_u32) GY_X(i16, gy_to_i16, gy_to_i32) GY_X(u16, gy_to_u16, gy_to_u32)
#undef GY_X
GY_FN vi64 gy_shr(vi64 a, vi64 b) { return vi64{gy_shr(a.lo, b.lo), gy_shr(a.hi, b.hi)}; }
GY_FN vu64 gy_shr(vu64 a, vu64 b) { return vu64{gy_shr(a.lo, b.lo), gy_shr(a.hi, b.hi)}; }
#endif
//% gy_bitnot
#define GY_X(n) \
  GY_FN s##n gy_bitnot(s##n a) { return (s##n)~a; } \
  GY_V(GY_FN v##n gy_bitnot(v##n a) { return ~a; })
GY_INTS(GY_X)
#undef GY_X
GY_FN sbool gy_bitnot(sbool a) { return !a; }
GY_V(GY_FN vbool gy_bitnot(vbool a) { return ~a; })
//% gy_bitand
template <class T> GY_FN T gy_bitand(T a, T b) { return (T)(a & b); }
//% gy_bitor
template <class T> GY_FN T gy_bitor(T a, T b) { return (T)(a | b); }
//% gy_bitxor
template <class T> GY_FN T gy_bitxor(T a, T b) { return (T)(a ^ b); }
//% gy_popcount
// Sums of bits in fields of 2, 4 and 8 bits, then one multiplication.
GY_FN su32 gy_popcount(su32 a) {
  a = a - ((a >> 1) & 0x55555555);
  a = (a & 0x33333333) + ((a >> 2) & 0x33333333);
  return (((a + (a >> 4)) & 0x0f0f0f0f) * 0x01010101) >> 24;
}
GY_FN si32 gy_popcount(si32 a) { return (si32)gy_popcount((su32)a); }
#if GY_VEC
GY_FN vu32 gy_popcount(vu32 a) {
  a = a - ((a >> 1) & 0x55555555);
  a = (a & 0x33333333) + ((a >> 2) & 0x33333333);
  return (((a + (a >> 4)) & 0x0f0f0f0f) * 0x01010101) >> 24;
}
GY_FN vi32 gy_popcount(vi32 a) { return (vi32)gy_popcount((vu32)a); }
#endif
//% gy_ipow
// a to the b modulo 2^bits; a negative b gives 1 for a = 1, +-1 for a = -1, else 0.
#define GY_X(n) \
  GY_FN s##n gy_ipow(s##n a, s##n b) { \
    if (b < 0) return a == 1 ? 1 : a == (s##n)-1 ? (s##n)(b & 1 ? -1 : 1) : 0; \
    su64 r = 1, x = (su64)a; \
    for (su64 k = (su64)b; k; k >>= 1, x *= x) r = k & 1 ? r * x : r; \
    return (s##n)r; \
  } \
  GY_V(static __attribute__((noinline)) v##n gy_ipow(v##n a, v##n b) { \
    s##n t[GY_LANES], u[GY_LANES]; \
    gy_stu(t, a); \
    gy_stu(u, b); \
    _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++) t[i] = gy_ipow(t[i], u[i]); \
    return gy_ldu<v##n>(t); \
  })
GY_INTS(GY_X)
#undef GY_X
