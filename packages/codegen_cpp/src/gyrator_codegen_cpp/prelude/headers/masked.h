//% gy_lane_mask
#if GY_VEC
GY_FN vbool gy_lane_mask(si64 n) { return vbool{vi32{GY_IOTA} < (n > GY_LANES ? GY_LANES : (si32)n)}; }
#endif
//% gy_bit_load gy_bit_store
// Loads and stores of the lanes in a mask, by element size; other elements are not touched.
#if GY_ISA == 512
typedef long long gy_q __attribute__((vector_size(64)));
typedef char gy_c16 __attribute__((vector_size(16)));
// What the compiler's functions point to.
#if defined(__clang__)
typedef vi16 gy_at16;
typedef gy_c16 gy_at8;
#else
typedef si16 gy_at16;
typedef char gy_at8;
#endif
GY_FN vi32 gy_bit_load(const si32 *p, su32 k) { return (vi32)__builtin_ia32_loaddqusi512_mask(p, vi32{}, (su16)k); }
GY_FN vi16 gy_bit_load(const si16 *p, su32 k) { return (vi16)__builtin_ia32_loaddquhi256_mask((const gy_at16 *)p, vi16{}, (su16)k); }
GY_FN vi8 gy_bit_load(const si8 *p, su32 k) {
  return (vi8)__builtin_ia32_loaddquqi128_mask((const gy_at8 *)p, gy_c16{}, (su16)k);
}
GY_FN vi64 gy_bit_load(const si64 *p, su32 k) {
  return vi64{(gy_hi64)__builtin_ia32_loaddqudi512_mask((const long long *)p, gy_q{}, (su8)k),
    (gy_hi64)__builtin_ia32_loaddqudi512_mask((const long long *)(p + 8), gy_q{}, (su8)(k >> 8))};
}
GY_FN void gy_bit_store(si32 *p, vi32 x, su32 k) { __builtin_ia32_storedqusi512_mask(p, x, (su16)k); }
GY_FN void gy_bit_store(si16 *p, vi16 x, su32 k) { __builtin_ia32_storedquhi256_mask((gy_at16 *)p, x, (su16)k); }
GY_FN void gy_bit_store(si8 *p, vi8 x, su32 k) { __builtin_ia32_storedquqi128_mask((gy_at8 *)p, (gy_c16)x, (su16)k); }
GY_FN void gy_bit_store(si64 *p, vi64 x, su32 k) {
  __builtin_ia32_storedqudi512_mask((long long *)p, (gy_q)x.lo, (su8)k);
  __builtin_ia32_storedqudi512_mask((long long *)(p + 8), (gy_q)x.hi, (su8)(k >> 8));
}
#elif GY_ISA == 256
typedef long long gy_q __attribute__((vector_size(32)));
GY_FN vi32 gy_bit_load(const si32 *p, vbool k) { return __builtin_ia32_maskloadd256((const vi32 *)p, k.m); }
GY_FN vi64 gy_bit_load(const si64 *p, vbool k) {
  return vi64{(gy_hi64)__builtin_ia32_maskloadq256((const gy_q *)p, (gy_q)gy_lo64(k)),
    (gy_hi64)__builtin_ia32_maskloadq256((const gy_q *)(p + 4), (gy_q)gy_hi64_of(k))};
}
GY_FN void gy_bit_store(si32 *p, vi32 x, vbool k) { __builtin_ia32_maskstored256((vi32 *)p, k.m, x); }
GY_FN void gy_bit_store(si64 *p, vi64 x, vbool k) {
  __builtin_ia32_maskstoreq256((gy_q *)p, (gy_q)gy_lo64(k), (gy_q)x.lo);
  __builtin_ia32_maskstoreq256((gy_q *)(p + 4), (gy_q)gy_hi64_of(k), (gy_q)x.hi);
}
// AVX2 has no masked access of 8 and 16 bits.
#define GY_X(n) \
  GY_FN v##n gy_bit_load(const s##n *p, vbool k) { \
    v##n r = {}; \
    su32 bits = gy_lane_bits(k); \
    for (si32 i = 0; i < GY_LANES; i++) if (bits >> i & 1) r[i] = p[i]; \
    return r; \
  } \
  GY_FN void gy_bit_store(s##n *p, v##n x, vbool k) { \
    su32 bits = gy_lane_bits(k); \
    for (si32 i = 0; i < GY_LANES; i++) if (bits >> i & 1) p[i] = x[i]; \
  }
GY_X(i8) GY_X(i16)
#undef GY_X
// Of the first lanes by halves, quarters and eighths: some processors take tens of cycles for a masked store.
struct gy_first { si64 n; };
typedef si64 gy_two __attribute__((vector_size(16)));
GY_FN vi32 gy_bit_load(const si32 *p, gy_first k) { return gy_bit_load(p, gy_lane_mask(k.n)); }
GY_FN vi64 gy_bit_load(const si64 *p, gy_first k) { return gy_bit_load(p, gy_lane_mask(k.n)); }
template <class Q, class H, class S> GY_FN su64 gy_first_load(const S *p, si64 n) {
  su64 r = 0;
  if (n & 2) r = gy_ldu<H>(p), p += 2;
  return n & 1 ? r | (su64)gy_ldu<Q>(p) << (n & 2 ? 8 * sizeof(H) : 0) : r;
}
GY_FN vi16 gy_bit_load(const si16 *p, gy_first k) {
  if (k.n >= GY_LANES) return gy_ldu<vi16>(p);
  su64 rest = gy_first_load<su16, su32>(k.n & 4 ? p + 4 : p, k.n);
  gy_two r = {(si64)rest, 0};
  return (vi16)(k.n & 4 ? gy_two{gy_ldu<si64>(p), (si64)rest} : r);
}
GY_FN vi8 gy_bit_load(const si8 *p, gy_first k) {
  if (k.n >= GY_LANES) return gy_ldu<vi8>(p);
  su64 rest = gy_first_load<su8, su16>(k.n & 4 ? p + 4 : p, k.n);
  rest = k.n & 4 ? rest << 32 | gy_ldu<su32>(p) : rest;
  return gy_ldu<vi8>(&rest);
}
template <class Q, class H, class S> GY_FN void gy_first_store(S *p, si64 x, si64 n) {
  if (n & 2) gy_stu(p, (H)x), p += 2, x >>= 4 * sizeof(H), x >>= 4 * sizeof(H);
  if (n & 1) gy_stu(p, (Q)x);
}
GY_FN void gy_bit_store(si16 *p, vi16 x, gy_first k) {
  if (k.n >= GY_LANES) return gy_stu(p, x);
  gy_two q = (gy_two)x;
  if (k.n & 4) gy_stu(p, q[0]), p += 4;
  gy_first_store<su16, su32>(p, k.n & 4 ? q[1] : q[0], k.n);
}
GY_FN void gy_bit_store(si8 *p, vi8 x, gy_first k) {
  if (k.n >= GY_LANES) return gy_stu(p, x);
  si64 q = gy_ldu<si64>(&x);
  if (k.n & 4) gy_stu(p, (su32)q), p += 4, q >>= 32;
  gy_first_store<su8, su16>(p, q, k.n);
}
GY_FN void gy_bit_store(si32 *p, vi32 x, gy_first k) {
  if (k.n >= GY_LANES) return gy_stu(p, x);
  if (k.n & 4) gy_stu(p, gy_lo(x)), p += 4;
  gy_hi32 rest = k.n & 4 ? gy_hi(x) : gy_lo(x);
  if (k.n & 2) gy_stu(p, ((gy_two)rest)[0]), p += 2;
  if (k.n & 1) gy_stu(p, k.n & 2 ? rest[2] : rest[0]);
}
GY_FN void gy_bit_store(si64 *p, vi64 x, gy_first k) {
  if (k.n >= GY_LANES) return gy_stu(p, x);
  if (k.n & 4) gy_stu(p, x.lo), p += 4;
  gy_hi64 rest = k.n & 4 ? x.hi : x.lo;
  if (k.n & 2) gy_stu(p, gy_two{rest[0], rest[1]}), p += 2;
  if (k.n & 1) gy_stu(p, k.n & 2 ? rest[2] : rest[0]);
}
#endif
//% gy_k_of gy_k_n : gy_bit_load
// The form of a mask that gy_bit_load takes.
#if GY_ISA == 512
GY_FN su32 gy_k_of(vbool m) { return gy_lane_bits(m); }
GY_FN su32 gy_k_n(si64 n) { return n >= GY_LANES ? 0xffffu : (1u << n) - 1; }
#elif GY_ISA == 256
GY_FN vbool gy_k_of(vbool m) { return m; }
GY_FN gy_first gy_k_n(si64 n) { return gy_first{n}; }
#endif
//% gy_kload
// Zero where the mask is not set.
#if GY_VEC
#define GY_X(n, i) template <class K> GY_FN v##n gy_kload(const s##n *p, K k) { return (v##n)gy_bit_load((const s##i *)p, k); }
GY_X(f32, i32) GY_X(i32, i32) GY_X(u32, i32) GY_X(i16, i16) GY_X(u16, i16) GY_X(i8, i8) GY_X(u8, i8)
#undef GY_X
#define GY_X(n) \
  template <class K> GY_FN v##n gy_kload(const s##n *p, K k) { \
    vi64 r = gy_bit_load((const si64 *)p, k); \
    return v##n{(gy_h##n)r.lo, (gy_h##n)r.hi}; \
  }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
template <class K> GY_FN vbool gy_kload(const sbool *p, K k) {
  return gy_mask(gy_bit_load((const si8 *)p, k) != 0);
}
template <class K> GY_FN vf32 gy_kload(const gy_bf16 *p, K k) { return gy_bf16_value((vu16)gy_bit_load((const si16 *)p, k)); }
template <class K> GY_FN vf32 gy_kload(const gy_f16 *p, K k) { return gy_f16_value((vu16)gy_bit_load((const si16 *)p, k)); }
template <class P, class K> GY_FN auto gy_kload(const P *p, K k) -> decltype(P::value(vi32{})) {
  return P::value(gy_widen(gy_bit_load((const si8 *)p, k)));
}
#endif
//% gy_kstore
#if GY_VEC
#define GY_X(n, i) \
  template <class K> GY_FN void gy_kstore(s##n *p, v##n x, K k) { gy_bit_store((s##i *)p, (v##i)x, k); }
GY_X(f32, i32) GY_X(i32, i32) GY_X(u32, i32) GY_X(i16, i16) GY_X(u16, i16) GY_X(i8, i8) GY_X(u8, i8)
#undef GY_X
#define GY_X(n) \
  template <class K> GY_FN void gy_kstore(s##n *p, v##n x, K k) { \
    gy_bit_store((si64 *)p, vi64{(gy_hi64)x.lo, (gy_hi64)x.hi}, k); \
  }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
template <class K> GY_FN void gy_kstore(sbool *p, vbool x, K k) {
  gy_bit_store((si8 *)p, gy_narrow(gy_ones(x)), k);
}
template <class K> GY_FN void gy_kstore(gy_bf16 *p, vf32 x, K k) {
  gy_bit_store((si16 *)p, (vi16)gy_pack16(gy_bf16_bits(x)), k);
}
template <class K> GY_FN void gy_kstore(gy_f16 *p, vf32 x, K k) { gy_bit_store((si16 *)p, (vi16)gy_f16_bits(x), k); }
template <class P, class K> GY_FN auto gy_kstore(P *p, vf32 x, K k) -> decltype(P::bits(0.0f), void()) {
  gy_bit_store((si8 *)p, gy_narrow(P::bits(x)), k);
}
#endif
//% gy_vload_n
#if GY_VEC
template <class P> GY_FN auto gy_vload_n(const P *p, si64 n) { return gy_kload(p, gy_k_n(n)); }
#endif
//% gy_store_n
#if GY_VEC
template <class P, class V> GY_FN void gy_store_n(P *p, V x, si64 n) { gy_kstore(p, x, gy_k_n(n)); }
#endif
//% gy_vload_mask
// Masks by position, as of concatenations and triangles, are mostly all set or all clear: then nothing is masked, or nothing read.
#if GY_VEC
template <class P, class V> GY_FN V gy_vload_mask(const P *p, vbool m, V other) {
  su32 bits = gy_lane_bits(m);
  if (bits == (1u << GY_LANES) - 1) return gy_vload(p);
  if (!bits) return other;
  return gy_select(m, gy_kload(p, gy_k_of(m)), other);
}
// GCC returns a pair from several places through the stack.
template <class P, class H> GY_FN gy_p<H> gy_vload_mask(const P *p, vbool m, gy_p<H> other) {
  su32 bits = gy_lane_bits(m);
  H lo = other.lo, hi = other.hi;
  if (bits == (1u << GY_LANES) - 1) {
    lo = gy_ldu<H>(p);
    hi = gy_ldu<H>((const H *)p + 1);
  } else if (bits) {
    gy_p<H> some = gy_select(m, gy_kload(p, gy_k_of(m)), other);
    lo = some.lo;
    hi = some.hi;
  }
  return gy_p<H>{lo, hi};
}
#endif
//% gy_sload_mask
template <class P, class S> GY_FN S gy_sload_mask(const P *p, sbool m, S other) { return m ? gy_sload(p) : other; }
//% gy_store_mask
#if GY_VEC
template <class P, class V> GY_FN void gy_store_mask(P *p, V x, vbool m) { gy_kstore(p, x, gy_k_of(m)); }
#endif
template <class P, class S> GY_FN void gy_store_mask(P *p, S x, sbool m) { if (m) gy_store(p, x); }
//% gy_combine_n
#if GY_VEC
template <class V> GY_FN V gy_combine_n(V a, V b, si64 n) { return gy_select(gy_lane_mask(n), a, b); }
#ifdef __AVX512BW__
// gcc 12 fails where it makes one masked instruction of this choice and of the extreme of two
// vectors, one of them in memory.
#define GY_COMBINE(n) \
  GY_FN v##n gy_combine_n(v##n a, v##n b, si64 live) { \
    asm("" : "+v"(a)); \
    return gy_select(gy_lane_mask(live), a, b); \
  }
GY_COMBINE(i16) GY_COMBINE(u16)
#undef GY_COMBINE
#endif
#endif
