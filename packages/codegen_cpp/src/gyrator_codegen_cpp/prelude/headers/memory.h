//% gy_sload
#define GY_X(n) GY_FN s##n gy_sload(const s##n *p) { return *p; }
GY_NUMBERS(GY_X)
#undef GY_X
// Any byte but 0 is true, as in vectors.
GY_FN sbool gy_sload(const sbool *p) { return *(const su8 *)p != 0; }
GY_FN sf32 gy_sload(const gy_bf16 *p) { return gy_bf16_value((su32)p->bits); }
GY_FN sf32 gy_sload(const gy_f16 *p) { return gy_f16_value((su32)p->bits); }
template <class P> GY_FN auto gy_sload(const P *p) -> decltype(P::get(p)) { return P::get(p); }
//% gy_ssplat
#define GY_X(n) GY_FN s##n gy_ssplat(s##n x) { return x; }
GY_NUMBERS(GY_X) GY_X(bool)
#undef GY_X
//% gy_siota
GY_FN si64 gy_siota(si64 base, si64 step = 1) { (void)step; return base; }
//% gy_siota32
GY_FN si32 gy_siota32(si32 base, si32 step = 1) { (void)step; return base; }
//% gy_store
#define GY_X(n) GY_FN void gy_store(s##n *p, s##n x) { *p = x; }
GY_NUMBERS(GY_X) GY_X(bool)
#undef GY_X
#if GY_VEC
#define GY_X(n) GY_FN void gy_store(s##n *p, v##n x) { gy_stu(p, x); }
GY_NUMBERS(GY_X)
#undef GY_X
GY_FN void gy_store(sbool *p, vbool x) { gy_stu(p, gy_narrow(gy_ones(x))); }
GY_FN void gy_store(gy_bf16 *p, vf32 x) { gy_stu(p, gy_pack16(gy_bf16_bits(x))); }
GY_FN void gy_store(gy_f16 *p, vf32 x) { gy_stu(p, gy_f16_bits(x)); }
#endif
GY_FN void gy_store(gy_bf16 *p, sf32 x) { p->bits = (su16)gy_bf16_bits(x); }
GY_FN void gy_store(gy_f16 *p, sf32 x) { p->bits = (su16)gy_f16_bits(x); }
template <class P, class F> GY_FN auto gy_store(P *p, F x) -> decltype(P::put(p, x)) { P::put(p, x); }
//% gy_clear
// Write zeros to `bytes` bytes, a part of a tensor of `whole` bytes. A cache would evict the first zeros of a large tensor for the
// last, after reading the lines that they replace: stores past the caches take half of the time. Not if more than 32 MB were
// allocated: glibc then takes new pages from the system, which has just cleared them in the cache.
GY_FN void gy_clear(void *p, si64 bytes, si64 whole) {
  if (bytes <= 0) return;
  char *to = (char *)p;
#ifdef __SSE2__
  if (whole >= (16 << 20) && whole <= (32 << 20) && bytes >= 4096) {
    typedef long long part __attribute__((vector_size(16)));
    const si64 before = -(si64)(__UINTPTR_TYPE__)p & 63;
    __builtin_memset(to, 0, before);
    to += before, bytes -= before;
    for (; bytes >= 64; to += 64, bytes -= 64)
      for (part *at = (part *)to; at != (part *)(to + 64); at++)
#ifdef __clang__
        __builtin_nontemporal_store(part{}, at);
#else
        __builtin_ia32_movntdq(at, part{});
#endif
    __builtin_ia32_sfence();
  }
#endif
  __builtin_memset(to, 0, bytes);
}
//% gy_store_exact
// Store a float32 whose lower half is zero.
GY_FN void gy_store_exact(gy_bf16 *p, sf32 x) { p->bits = (su16)((su32)gy_bits(x) >> 16); }
GY_V(GY_FN void gy_store_exact(gy_bf16 *p, vf32 x) { gy_stu(p, gy_pack16((vu32)x >> 16)); })
//% gy_vload
#if GY_VEC
#define GY_X(n) GY_FN v##n gy_vload(const s##n *p) { return gy_ldu<v##n>(p); }
GY_NUMBERS(GY_X)
#undef GY_X
GY_FN vbool gy_vload(const sbool *p) {
  return vbool{gy_widen(gy_ldu<vi8>(p)) != 0};
}
GY_FN vf32 gy_vload(const gy_bf16 *p) { return gy_bf16_value(gy_ldu<vu16>(p)); }
GY_FN vf32 gy_vload(const gy_f16 *p) { return gy_f16_value(gy_ldu<vu16>(p)); }
template <class P> GY_FN auto gy_vload(const P *p) -> decltype(P::vget(p)) { return P::vget(p); }
#endif
//% gy_vsplat
#if GY_VEC
#define GY_X(n) GY_FN v##n gy_vsplat(s##n x) { return x - v##n{}; }
GY_X(f32) GY_NATIVE_INTS(GY_X)
#undef GY_X
#define GY_X(n) GY_FN v##n gy_vsplat(s##n x) { gy_h##n h = x - gy_h##n{}; return v##n{h, h}; }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
GY_FN vbool gy_vsplat(sbool x) { return vbool{-(si32)x - vi32{}}; }
#endif
//% gy_viota
#if GY_VEC
GY_FN vi64 gy_viota(si64 base, si64 step = 1) {
  return vi64{gy_hi64{GY_IOTA_LO} * step + base, gy_hi64{GY_IOTA_HI} * step + base};
}
#endif
//% gy_viota32
#if GY_VEC
GY_FN vi32 gy_viota32(si32 base, si32 step = 1) { return vi32{GY_IOTA} * step + base; }
#endif
