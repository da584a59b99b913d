//% gy_lane_index
#if GY_VEC
GY_FN void gy_lane_index(si64 *t, vi64 i) { gy_stu(t, i); }
GY_FN void gy_lane_index(si64 *t, vi32 i) {
  vi64 w = {gy_wide64(gy_lo(i)), gy_wide64(gy_hi(i))};
  gy_stu(t, w);
}
#endif
//% gy_hard_gather
// The machine's gather for elements of 32 and 64 bits; lanes outside the mask are not read.
#if GY_ISA == 512
GY_FN vf32 gy_hard_gather(const sf32 *p, vi64 i, vbool m) {
  su32 k = gy_lane_bits(m);
  typedef long long Q __attribute__((vector_size(64)));
  return gy_join((gy_hf32)__builtin_ia32_gatherdiv16sf(gy_hf32{}, p, (Q)i.lo, (su8)k, 4),
    (gy_hf32)__builtin_ia32_gatherdiv16sf(gy_hf32{}, p, (Q)i.hi, (su8)(k >> 8), 4));
}
GY_FN vf32 gy_hard_gather(const sf32 *p, vi32 i, vbool m) {
  return (vf32)__builtin_ia32_gathersiv16sf(vf32{}, p, i, (su16)gy_lane_bits(m), 4);
}
GY_FN vf64 gy_hard_gather(const sf64 *p, vi64 i, vbool m) {
  su32 k = gy_lane_bits(m);
  typedef long long Q __attribute__((vector_size(64)));
  return vf64{(gy_hf64)__builtin_ia32_gatherdiv8df(gy_hf64{}, p, (Q)i.lo, (su8)k, 8),
    (gy_hf64)__builtin_ia32_gatherdiv8df(gy_hf64{}, p, (Q)i.hi, (su8)(k >> 8), 8)};
}
GY_FN vf64 gy_hard_gather(const sf64 *p, vi32 i, vbool m) {
  su32 k = gy_lane_bits(m);
  return vf64{(gy_hf64)__builtin_ia32_gathersiv8df(gy_hf64{}, p, gy_lo(i), (su8)k, 8),
    (gy_hf64)__builtin_ia32_gathersiv8df(gy_hf64{}, p, gy_hi(i), (su8)(k >> 8), 8)};
}
#elif GY_ISA == 256 && defined(__clang__)
typedef long long gy_gi __attribute__((vector_size(32)));
GY_FN vf32 gy_hard_gather(const sf32 *p, vi64 i, vbool m) {
  return gy_join((gy_hf32)__builtin_ia32_gatherq_ps256(gy_hf32{}, p, (gy_gi)i.lo, (gy_hf32)gy_lo(m.m), 4),
    (gy_hf32)__builtin_ia32_gatherq_ps256(gy_hf32{}, p, (gy_gi)i.hi, (gy_hf32)gy_hi(m.m), 4));
}
GY_FN vf32 gy_hard_gather(const sf32 *p, vi32 i, vbool m) {
  return (vf32)__builtin_ia32_gatherd_ps256(vf32{}, p, i, (vf32)m.m, 4);
}
GY_FN vf64 gy_hard_gather(const sf64 *p, vi64 i, vbool m) {
  return vf64{(gy_hf64)__builtin_ia32_gatherq_pd256(gy_hf64{}, p, (gy_gi)i.lo, (gy_hf64)gy_lo64(m), 8),
    (gy_hf64)__builtin_ia32_gatherq_pd256(gy_hf64{}, p, (gy_gi)i.hi, (gy_hf64)gy_hi64_of(m), 8)};
}
#elif GY_ISA == 256
GY_FN vf32 gy_hard_gather(const sf32 *p, vi64 i, vbool m) {
  typedef long long Q __attribute__((vector_size(32)));
  return gy_join((gy_hf32)__builtin_ia32_gatherdiv4sf256(gy_hf32{}, p, (Q)i.lo, (gy_hf32)gy_lo(m.m), 4),
    (gy_hf32)__builtin_ia32_gatherdiv4sf256(gy_hf32{}, p, (Q)i.hi, (gy_hf32)gy_hi(m.m), 4));
}
GY_FN vf32 gy_hard_gather(const sf32 *p, vi32 i, vbool m) {
  return (vf32)__builtin_ia32_gathersiv8sf(vf32{}, p, i, (vf32)m.m, 4);
}
GY_FN vf64 gy_hard_gather(const sf64 *p, vi64 i, vbool m) {
  typedef long long Q __attribute__((vector_size(32)));
  return vf64{(gy_hf64)__builtin_ia32_gatherdiv4df(gy_hf64{}, p, (Q)i.lo, (gy_hf64)gy_lo64(m), 8),
    (gy_hf64)__builtin_ia32_gatherdiv4df(gy_hf64{}, p, (Q)i.hi, (gy_hf64)gy_hi64_of(m), 8)};
}
#endif
#if GY_VEC && GY_ISA != 512
GY_FN vf64 gy_hard_gather(const sf64 *p, vi32 i, vbool m) {
  return gy_hard_gather(p, vi64{gy_wide64(gy_lo(i)), gy_wide64(gy_hi(i))}, m);
}
#endif
//% gy_gather_set
// Lanes in the mask from memory, the others zero.
#if GY_VEC
template <class I> GY_FN vf32 gy_gather_set(const sf32 *p, I i, vbool m) { return gy_hard_gather(p, i, m); }
template <class I> GY_FN vi32 gy_gather_set(const si32 *p, I i, vbool m) { return (vi32)gy_hard_gather((const sf32 *)p, i, m); }
template <class I> GY_FN vu32 gy_gather_set(const su32 *p, I i, vbool m) { return (vu32)gy_hard_gather((const sf32 *)p, i, m); }
template <class I> GY_FN vf64 gy_gather_set(const sf64 *p, I i, vbool m) { return gy_hard_gather(p, i, m); }
template <class I> GY_FN vi64 gy_gather_set(const si64 *p, I i, vbool m) {
  vf64 r = gy_hard_gather((const sf64 *)p, i, m);
  return vi64{(gy_hi64)r.lo, (gy_hi64)r.hi};
}
template <class I> GY_FN vu64 gy_gather_set(const su64 *p, I i, vbool m) {
  vf64 r = gy_hard_gather((const sf64 *)p, i, m);
  return vu64{(gy_hu64)r.lo, (gy_hu64)r.hi};
}
template <class V, class P, class I> GY_FN V gy_gather_lanes(const P *p, I i, vbool m) {
  V r = {};
  si64 t[GY_LANES];
  gy_lane_index(t, i);
  su32 bits = gy_lane_bits(m);
  for (si32 j = 0; j < GY_LANES; j++) if (bits >> j & 1) __builtin_memcpy((char *)&r + j * sizeof(P), p + t[j], sizeof(P));
  return r;
}
// All lanes, as a mask. Elements are then inserted in registers, of at most 128 bits, since a vector of what narrower stores
// have just written is loaded late.
struct gy_every { operator vbool() const { return vbool{vi32{} - 1}; } };
template <class V, class P, class I> GY_FN V gy_gather_lanes(const P *p, I i, gy_every) {
  decltype(gy_lo(V{})) lo = {}, hi = {};
  auto a = lo[0], b = lo[0];
  static_assert(sizeof a == sizeof(P), "lanes are as wide as elements");
  si64 t[GY_LANES];
  gy_lane_index(t, i);
#pragma GCC unroll 8
  for (si32 j = 0; j < GY_LANES / 2; j++) {
    __builtin_memcpy(&a, p + t[j], sizeof a);
    __builtin_memcpy(&b, p + t[GY_LANES / 2 + j], sizeof b);
    lo[j] = a, hi[j] = b;
  }
  return gy_join(lo, hi);
}
template <class I, class M> GY_FN vi16 gy_gather_set(const si16 *p, I i, M m) { return gy_gather_lanes<vi16>(p, i, m); }
template <class I, class M> GY_FN vu16 gy_gather_set(const su16 *p, I i, M m) { return gy_gather_lanes<vu16>(p, i, m); }
template <class I, class M> GY_FN vi8 gy_gather_set(const si8 *p, I i, M m) { return gy_gather_lanes<vi8>(p, i, m); }
template <class I, class M> GY_FN vu8 gy_gather_set(const su8 *p, I i, M m) { return gy_gather_lanes<vu8>(p, i, m); }
template <class I, class M> GY_FN vbool gy_gather_set(const sbool *p, I i, M m) { return gy_mask(gy_gather_lanes<vi8>(p, i, m) != 0); }
template <class I, class M> GY_FN vf32 gy_gather_set(const gy_bf16 *p, I i, M m) { return gy_bf16_value(gy_gather_lanes<vu16>(p, i, m)); }
template <class I, class M> GY_FN vf32 gy_gather_set(const gy_f16 *p, I i, M m) { return gy_f16_value(gy_gather_lanes<vu16>(p, i, m)); }
template <class P, class I, class M> GY_FN auto gy_gather_set(const P *p, I i, M m) -> decltype(P::value(vi32{})) {
  return P::value(gy_widen(gy_gather_lanes<vi8>(p, i, m)));
}
#endif
//% gy_gather_loads gy_gather_halves
// Without a mask, a load for each lane takes half the time of AVX2's gather on some processors.
#if GY_ISA == 256
template <class V, class P> GY_FN V gy_gather_loads(const P *p, vi64 i) {
  return V{p[i.lo[0]], p[i.lo[1]], p[i.lo[2]], p[i.lo[3]], p[i.hi[0]], p[i.hi[1]], p[i.hi[2]], p[i.hi[3]]};
}
template <class V, class P> GY_FN V gy_gather_loads(const P *p, vi32 i) {
  return V{p[i[0]], p[i[1]], p[i[2]], p[i[3]], p[i[4]], p[i[5]], p[i[6]], p[i[7]]};
}
template <class V, class P> GY_FN V gy_gather_halves(const P *p, vi64 i) {
  return V{{p[i.lo[0]], p[i.lo[1]], p[i.lo[2]], p[i.lo[3]]}, {p[i.hi[0]], p[i.hi[1]], p[i.hi[2]], p[i.hi[3]]}};
}
template <class V, class P> GY_FN V gy_gather_halves(const P *p, vi32 i) {
  return V{{p[i[0]], p[i[1]], p[i[2]], p[i[3]]}, {p[i[4]], p[i[5]], p[i[6]], p[i[7]]}};
}
#endif
//% gy_gather
template <class P> GY_FN auto gy_gather(const P *p, si64 i) { return gy_sload(p + i); }
#if GY_ISA == 256
#define GY_X(n) \
  GY_FN v##n gy_gather(const s##n *p, vi64 i) { return gy_gather_loads<v##n>(p, i); } \
  GY_FN v##n gy_gather(const s##n *p, vi32 i) { return gy_gather_loads<v##n>(p, i); }
GY_X(f32) GY_X(i32) GY_X(u32)
#undef GY_X
#define GY_X(n) \
  GY_FN v##n gy_gather(const s##n *p, vi64 i) { return gy_gather_halves<v##n>(p, i); } \
  GY_FN v##n gy_gather(const s##n *p, vi32 i) { return gy_gather_halves<v##n>(p, i); }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
#endif
#if GY_VEC
template <class P> GY_FN auto gy_gather(const P *p, vi64 i) { return gy_gather_set(p, i, gy_every{}); }
template <class P> GY_FN auto gy_gather(const P *p, vi32 i) { return gy_gather_set(p, i, gy_every{}); }
#endif
//% gy_gather_mask
template <class P, class S> GY_FN S gy_gather_mask(const P *p, si64 i, sbool m, S other) { return m ? gy_sload(p + i) : other; }
#if GY_VEC
template <class P, class I, class V> GY_FN V gy_gather_mask(const P *p, I i, vbool m, V other) {
  return gy_select(m, gy_gather_set(p, i, m), other);
}
#endif
//% gy_window gy_window_of gy_permuted gy_gather_near
// For indices that grow slowly from lane to lane: `near` if those of all lanes are in the vector of elements from `base`, which
// is part of the `size` elements that they may be in. One load and one permutation then take the place of a load for each lane.
#if GY_ISA >= 256
struct gy_window { si64 base; vi32 lanes; sbool near; };
GY_FN gy_window gy_window_of(vi32 i, si64 size, vbool m = vbool{vi32{} - 1}) {
  const si64 last = gy_least(size - GY_LANES, 0x7fffffff);
  const vi32 base = gy_minimum(vi32{} + i[0], vi32{} + (si32)last);
  const vi32 lanes = (vi32)((vu32)i - (vu32)base);
  return {base[0], lanes, last >= 0 && !gy_any(vbool{(lanes & -GY_LANES) != 0} & m)};
}
GY_FN vf32 gy_permuted(vf32 x, vi32 i) {
#if !defined(__clang__)
  return __builtin_shuffle(x, i);
#elif GY_ISA == 512
  return __builtin_ia32_permvarsf512(x, i);
#else
  return __builtin_ia32_permvarsf256(x, i);
#endif
}
GY_FN vi32 gy_permuted(vi32 x, vi32 i) { return (vi32)gy_permuted((vf32)x, i); }
GY_FN vu32 gy_permuted(vu32 x, vi32 i) { return (vu32)gy_permuted((vf32)x, i); }
template <class P> GY_FN auto gy_gather_near(const P *p, gy_window w, vi32 i) {
  if (w.near) return gy_permuted(gy_vload(p + w.base), w.lanes);
  return gy_gather(p, i);
}
template <class P, class V> GY_FN V gy_gather_near(const P *p, gy_window w, vi32 i, vbool m, V other) {
  if (w.near) return gy_select(m, gy_permuted(gy_vload(p + w.base), w.lanes), other);
  return gy_gather_mask(p, i, m, other);
}
#endif
//% gy_scatter_mask
template <class P, class S> GY_FN void gy_scatter_mask(P *p, si64 i, S x, sbool m) { if (m) gy_store(p + i, x); }
#if GY_VEC
template <class P, class I, class V> GY_FN void gy_scatter_mask(P *p, I i, V x, vbool m) {
  si64 t[GY_LANES];
  P u[GY_LANES];
  gy_lane_index(t, i);
  gy_store(u, x);
  su32 bits = gy_lane_bits(m);
  for (si32 j = 0; j < GY_LANES; j++) if (bits >> j & 1) p[t[j]] = u[j];
}
#endif
//% gy_scatter
template <class P, class S> GY_FN void gy_scatter(P *p, si64 i, S x) { gy_store(p + i, x); }
#if GY_VEC
template <class P, class V> GY_FN void gy_scatter(P *p, vi64 i, V x) { gy_scatter_mask(p, i, x, vbool{vi32{} - 1}); }
template <class P, class V> GY_FN void gy_scatter(P *p, vi32 i, V x) { gy_scatter_mask(p, i, x, vbool{vi32{} - 1}); }
#endif
//% gy_vload_runs
// Lane k from the pointer `at(k)`, which grows by no more than one from lane to lane.
#if GY_VEC
template <class A> GY_FN auto gy_vload_runs(A at) {
  if (at(GY_LANES - 1) - at(0) == GY_LANES - 1) return gy_vload(at(0));
  decltype(gy_sload(at(0))) lanes[GY_LANES];
  for (si64 lane = 0; lane < GY_LANES; lane++) lanes[lane] = gy_sload(at(lane));
  return gy_vload(lanes);
}
#endif
//% gy_vload_back
// Lane k from `p[-k]`.
#if GY_VEC
#if GY_LANES == 16
#define GY_BACK_HALF 7, 6, 5, 4, 3, 2, 1, 0
#define GY_BACK 15, 14, 13, 12, 11, 10, 9, 8, GY_BACK_HALF
#elif GY_LANES == 8
#define GY_BACK_HALF 3, 2, 1, 0
#define GY_BACK 7, 6, 5, 4, GY_BACK_HALF
#else
#define GY_BACK_HALF 1, 0
#define GY_BACK 3, 2, GY_BACK_HALF
#endif
#define GY_X(n) GY_FN v##n gy_back(v##n x) { return __builtin_shufflevector(x, x, GY_BACK); }
GY_X(f32) GY_X(i32) GY_X(u32) GY_X(i16) GY_X(u16) GY_X(i8) GY_X(u8)
#undef GY_X
template <class H> GY_FN gy_p<H> gy_back(gy_p<H> x) {
  return gy_p<H>{__builtin_shufflevector(x.hi, x.hi, GY_BACK_HALF), __builtin_shufflevector(x.lo, x.lo, GY_BACK_HALF)};
}
GY_FN vbool gy_back(vbool x) { return vbool{gy_back(x.m)}; }
template <class P> GY_FN auto gy_vload_back(const P *p) { return gy_back(gy_vload(p - (GY_LANES - 1))); }
#endif
//% gy_vload_strided
#if GY_VEC
template <class P> GY_FN auto gy_vload_strided(const P *p, si64 stride) {
  P u[GY_LANES];
  for (si32 j = 0; j < GY_LANES; j++) u[j] = p[j * stride];
  return gy_vload(u);
}
#define GY_EACH_4(p) p[0], p[s], p[2 * s], p[3 * s]
#define GY_EACH_8(p) GY_EACH_4(p), p[4 * s], p[5 * s], p[6 * s], p[7 * s]
#if GY_ISA == 512
#define GY_EACH GY_EACH_8(p), p[8 * s], p[9 * s], p[10 * s], p[11 * s], p[12 * s], p[13 * s], p[14 * s], p[15 * s]
#define GY_EACH_HALF GY_EACH_8
#elif GY_LANES == 4
#define GY_EACH GY_EACH_4(p)
#define GY_EACH_HALF(p) p[0], p[s]
#else
#define GY_EACH GY_EACH_8(p)
#define GY_EACH_HALF GY_EACH_4
#endif
#define GY_X(n) GY_FN v##n gy_vload_strided(const s##n *p, si64 s) { return v##n{GY_EACH}; }
GY_X(f32) GY_X(i32) GY_X(u32) GY_X(i16) GY_X(u16)
#undef GY_X
#define GY_X(n) \
  GY_FN v##n gy_vload_strided(const s##n *p, si64 s) { \
    const s##n *q = p + GY_LANES / 2 * s; \
    return v##n{{GY_EACH_HALF(p)}, {GY_EACH_HALF(q)}}; \
  }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
#undef GY_EACH
#undef GY_EACH_HALF
#undef GY_EACH_4
#undef GY_EACH_8
GY_FN vf32 gy_vload_strided(const gy_bf16 *p, si64 s) { return gy_bf16_value(gy_vload_strided((const su16 *)p, s)); }
GY_FN vf32 gy_vload_strided(const gy_f16 *p, si64 s) { return gy_f16_value(gy_vload_strided((const su16 *)p, s)); }
#endif
//% gy_vload_strided_mask
// Lane k from `p[k * stride]` where the mask is set, else from `other`.
#if GY_VEC
template <class P, class V> GY_FN V gy_vload_strided_mask(const P *p, si64 stride, vbool m, V other) {
  if (stride > -(1L << 26) && stride < 1L << 26) return gy_gather_mask(p, gy_viota32(0, (si32)stride), m, other);
  return gy_gather_mask(p, gy_viota(0, stride), m, other);
}
#endif
//% gy_store_strided
template <class P, class V> GY_FN void gy_store_strided(P *p, si64 stride, V x) {
  P u[GY_LANES];
  gy_store(u, x);
  for (si32 j = 0; j < GY_LANES; j++) p[j * stride] = u[j];
}
//% gy_vload_pairs gy_store_pairs
#if GY_VEC
#define GY_EVEN_8 0, 2, 4, 6, 8, 10, 12, 14
#define GY_ODD_8 1, 3, 5, 7, 9, 11, 13, 15
#define GY_FIRST_8 0, 8, 1, 9, 2, 10, 3, 11
#define GY_LAST_8 4, 12, 5, 13, 6, 14, 7, 15
#if GY_ISA == 512
#define GY_ODD GY_ODD_8, 17, 19, 21, 23, 25, 27, 29, 31
#define GY_FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GY_LAST 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define GY_EVEN_HALF GY_EVEN_8
#define GY_ODD_HALF GY_ODD_8
#define GY_FIRST_HALF GY_FIRST_8
#define GY_LAST_HALF GY_LAST_8
#elif GY_LANES == 4
#define GY_ODD 1, 3, 5, 7
#define GY_FIRST 0, 4, 1, 5
#define GY_LAST 2, 6, 3, 7
#define GY_EVEN_HALF 0, 2
#define GY_ODD_HALF 1, 3
#define GY_FIRST_HALF 0, 2
#define GY_LAST_HALF 1, 3
#else
#define GY_ODD GY_ODD_8
#define GY_FIRST GY_FIRST_8
#define GY_LAST GY_LAST_8
#define GY_EVEN_HALF 0, 2, 4, 6
#define GY_ODD_HALF 1, 3, 5, 7
#define GY_FIRST_HALF 0, 4, 1, 5
#define GY_LAST_HALF 2, 6, 3, 7
#endif
// The elements at even and at odd places of a and b. GCC takes instructions across lanes for what two within lanes of 128
// bits do where the lanes are exchanged first.
template <class T> GY_FN void gy_split_pairs(T a, T b, T &even, T &odd) {
#if GY_LANES == 8 && GY_ISA == 256
  if constexpr (sizeof(T) == 32) {
    const T low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    const T high = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    even = __builtin_shufflevector(low, high, 0, 2, 8, 10, 4, 6, 12, 14);
    odd = __builtin_shufflevector(low, high, 1, 3, 9, 11, 5, 7, 13, 15);
    return;
  }
#endif
  even = __builtin_shufflevector(a, b, GY_EVEN);
  odd = __builtin_shufflevector(a, b, GY_ODD);
}
#define GY_X(n) \
  GY_FN void gy_vload_pairs(const s##n *p, v##n &even, v##n &odd) { \
    gy_split_pairs(gy_vload(p), gy_vload(p + GY_LANES), even, odd); \
  } \
  GY_FN void gy_store_pairs(s##n *p, v##n even, v##n odd) { \
    gy_store(p, (v##n)__builtin_shufflevector(even, odd, GY_FIRST)); \
    gy_store(p + GY_LANES, (v##n)__builtin_shufflevector(even, odd, GY_LAST)); \
  }
GY_X(f32) GY_X(i32) GY_X(u32) GY_X(i16) GY_X(u16) GY_X(i8) GY_X(u8)
#undef GY_X
#define GY_X(n) \
  GY_FN void gy_vload_pairs(const s##n *p, v##n &even, v##n &odd) { \
    const v##n a = gy_vload(p), b = gy_vload(p + GY_LANES); \
    even.lo = __builtin_shufflevector(a.lo, a.hi, GY_EVEN_HALF); \
    even.hi = __builtin_shufflevector(b.lo, b.hi, GY_EVEN_HALF); \
    odd.lo = __builtin_shufflevector(a.lo, a.hi, GY_ODD_HALF); \
    odd.hi = __builtin_shufflevector(b.lo, b.hi, GY_ODD_HALF); \
  } \
  GY_FN void gy_store_pairs(s##n *p, v##n even, v##n odd) { \
    v##n a, b; \
    a.lo = __builtin_shufflevector(even.lo, odd.lo, GY_FIRST_HALF); \
    a.hi = __builtin_shufflevector(even.lo, odd.lo, GY_LAST_HALF); \
    b.lo = __builtin_shufflevector(even.hi, odd.hi, GY_FIRST_HALF); \
    b.hi = __builtin_shufflevector(even.hi, odd.hi, GY_LAST_HALF); \
    gy_store(p, a); \
    gy_store(p + GY_LANES, b); \
  }
GY_X(f64) GY_X(i64) GY_X(u64)
#undef GY_X
GY_FN void gy_vload_pairs(const sbool *p, vbool &even, vbool &odd) {
  const vu16 both = gy_ldu<vu16>(p);
  even = gy_mask((vi16)(both & (su16)0xff) != 0);
  odd = gy_mask((vi16)(both >> 8) != 0);
}
GY_FN void gy_store_pairs(sbool *p, vbool even, vbool odd) {
  const vi16 both = __builtin_convertvector((even.m & 1) | (odd.m & 0x100), vi16);
  gy_stu(p, both);
}
// Two of these are one element of 32 bits.
GY_FN void gy_vload_pairs(const gy_bf16 *p, vf32 &even, vf32 &odd) {
  const vu32 both = gy_ldu<vu32>(p);
  even = (vf32)(both << 16);
  odd = (vf32)(both & 0xffff0000u);
}
GY_FN void gy_store_pairs(gy_bf16 *p, vf32 even, vf32 odd) {
  gy_stu(p, gy_bf16_bits(even) | gy_bf16_bits(odd) << 16);
}
GY_FN void gy_vload_pairs(const gy_f16 *p, vf32 &even, vf32 &odd) {
  const vu32 both = gy_ldu<vu32>(p);
  even = gy_f16_value(__builtin_convertvector(both & 0xffff, vu16));
  odd = gy_f16_value(__builtin_convertvector(both >> 16, vu16));
}
GY_FN void gy_store_pairs(gy_f16 *p, vf32 even, vf32 odd) {
  gy_stu(p, gy_widen(gy_f16_bits(even)) | gy_widen(gy_f16_bits(odd)) << 16);
}
#undef GY_EVEN_8
#undef GY_ODD_8
#undef GY_FIRST_8
#undef GY_LAST_8
#undef GY_EVEN
#undef GY_ODD
#undef GY_FIRST
#undef GY_LAST
#undef GY_EVEN_HALF
#undef GY_ODD_HALF
#undef GY_FIRST_HALF
#undef GY_LAST_HALF
#endif
