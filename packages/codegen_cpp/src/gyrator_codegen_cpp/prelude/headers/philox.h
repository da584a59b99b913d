//% gy_mulhilo
GY_FN void gy_mulhilo(su32 a, su32 m, su32 &hi, su32 &lo) {
  su64 p = (su64)a * m;
  hi = (su32)(p >> 32);
  lo = (su32)p;
}
#if GY_VEC && defined(__clang__)
GY_FN vu64 gy_mul_even_odd(vu32 a, vu32 m) {
  gy_hu64 e = (gy_hu64)a, f = (gy_hu64)m, low = gy_hu64{} + 0xffffffff;
  return vu64{(e & low) * (f & low), (e >> 32) * (f & low)};
}
#elif GY_ISA == 512
typedef long long gy_ll __attribute__((vector_size(64)));
GY_FN vu64 gy_mul_even_odd(vu32 a, vu32 m) {
  gy_hu64 odd = (gy_hu64)a >> 32;
  return vu64{(gy_hu64)__builtin_ia32_pmuludq512_mask((vi32)a, (vi32)m, gy_ll{}, (su8)-1),
    (gy_hu64)__builtin_ia32_pmuludq512_mask((vi32)odd, (vi32)m, gy_ll{}, (su8)-1)};
}
#elif GY_ISA == 256
GY_FN vu64 gy_mul_even_odd(vu32 a, vu32 m) {
  gy_hu64 odd = (gy_hu64)a >> 32;
  return vu64{(gy_hu64)__builtin_ia32_pmuludq256((vi32)a, (vi32)m), (gy_hu64)__builtin_ia32_pmuludq256((vi32)odd, (vi32)m)};
}
#endif
#if GY_VEC
GY_FN void gy_mulhilo(vu32 a, su32 m, vu32 &hi, vu32 &lo) {
  vu64 p = gy_mul_even_odd(a, vu32{} + m);
  gy_hu64 low = gy_hu64{} + 0xffffffff;
  hi = (vu32)((p.lo >> 32) | (p.hi & ~low));
  lo = (vu32)((p.lo & low) | (p.hi << 32));
}
#endif
//% gy_philox
// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
template <class T>
GY_FN void gy_philox(T c0, T c1, T c2, T c3, su32 k0, su32 k1, T &r0, T &r1, T &r2, T &r3) {
  for (si32 round = 0; round < 10; round++) {
    T h0, l0, h1, l1;
    gy_mulhilo(c0, 0xd2511f53u, h0, l0);
    gy_mulhilo(c2, 0xcd9e8d57u, h1, l1);
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  r0 = c0;
  r1 = c1;
  r2 = c2;
  r3 = c3;
}
//% gy_rand_words
// The first two words with counter (offset, 0) and key seed.
GY_FN void gy_rand_words(su64 seed, si64 offset, su32 &r0, su32 &r1) {
  su32 r2, r3;
  gy_philox((su32)offset, (su32)((su64)offset >> 32), 0u, 0u, (su32)seed, (su32)(seed >> 32), r0, r1, r2, r3);
}
#if GY_VEC
GY_FN void gy_rand_words(su64 seed, vi64 offset, vu32 &r0, vu32 &r1) {
  vu32 r2, r3, low = gy_to_u32(offset);
  vu32 high = gy_to_u32(vu64{(gy_hu64)offset.lo >> 32, (gy_hu64)offset.hi >> 32});
  gy_philox(low, high, vu32{}, vu32{}, (su32)seed, (su32)(seed >> 32), r0, r1, r2, r3);
}
GY_FN void gy_rand_words(su64 seed, vu64 offset, vu32 &r0, vu32 &r1) { gy_rand_words(seed, gy_to_i64(offset), r0, r1); }
#endif
GY_FN void gy_rand_words(su64 seed, su64 offset, su32 &r0, su32 &r1) { gy_rand_words(seed, (si64)offset, r0, r1); }
//% gy_word_by
// One of two words by a bit.
template <class U> GY_FN U gy_word_by(U bit, U zero, U one) { return zero ^ ((zero ^ one) & (U{} - bit)); }
//% gy_rand_four
// All words with counter (offset div 4, 0), and offset mod 4.
GY_FN su32 gy_rand_four(su64 seed, si64 offset, su32 &r0, su32 &r1, su32 &r2, su32 &r3) {
  su64 n = (su64)offset >> 2;
  gy_philox((su32)n, (su32)(n >> 32), 0u, 0u, (su32)seed, (su32)(seed >> 32), r0, r1, r2, r3);
  return (su32)offset & 3;
}
#if GY_VEC
GY_FN vu32 gy_rand_four(su64 seed, vi64 offset, vu32 &r0, vu32 &r1, vu32 &r2, vu32 &r3) {
  vu32 low = gy_to_u32(vu64{(gy_hu64)offset.lo >> 2, (gy_hu64)offset.hi >> 2});
  vu32 high = gy_to_u32(vu64{(gy_hu64)offset.lo >> 34, (gy_hu64)offset.hi >> 34});
  gy_philox(low, high, vu32{}, vu32{}, (su32)seed, (su32)(seed >> 32), r0, r1, r2, r3);
  return gy_to_u32(offset) & 3;
}
#endif
//% gy_rand_u32
GY_FN su32 gy_rand_u32(su64 seed, si64 offset) {
  su32 a, b, c, d, k = gy_rand_four(seed, offset, a, b, c, d);
  return gy_word_by(k >> 1, gy_word_by(k & 1, a, b), gy_word_by(k & 1, c, d));
}
#if GY_VEC
GY_FN vu32 gy_rand_u32(su64 seed, vi64 offset) {
  vu32 a, b, c, d, k = gy_rand_four(seed, offset, a, b, c, d);
  return gy_word_by(k >> 1, gy_word_by(k & 1, a, b), gy_word_by(k & 1, c, d));
}
#endif
//% gy_drawn
// Words that are drawn ahead, of counters that follow one another: the rounds of Philox give four
// words a lane, and so four vectors.
struct gy_drawn {
#if GY_VEC
  su64 seed;
  si64 first, live = 0;
  su32 words[4 * GY_LANES];
#endif
};
#if GY_VEC
#if GY_LANES == 16
#define GY_ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GY_ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define GY_ZIP_LO_2 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23
#define GY_ZIP_HI_2 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31
#define GY_EVEN_TWICE 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14
#define GY_ODD_TWICE 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15
#elif GY_LANES == 8
#define GY_ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define GY_ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#define GY_ZIP_LO_2 0, 1, 8, 9, 2, 3, 10, 11
#define GY_ZIP_HI_2 4, 5, 12, 13, 6, 7, 14, 15
#define GY_EVEN_TWICE 0, 0, 2, 2, 4, 4, 6, 6
#define GY_ODD_TWICE 1, 1, 3, 3, 5, 5, 7, 7
#else
#define GY_ZIP_LO 0, 4, 1, 5
#define GY_ZIP_HI 2, 6, 3, 7
#define GY_ZIP_LO_2 0, 1, 4, 5
#define GY_ZIP_HI_2 2, 3, 6, 7
#define GY_EVEN_TWICE 0, 0, 2, 2
#define GY_ODD_TWICE 1, 1, 3, 3
#endif
// Whether counters follow one another from a multiple of four on.
GY_FN bool gy_are_fours(vi64 offset) {
  vi64 along = gy_to_i64(vi32{GY_IOTA});
  gy_hi64 first = offset.lo[0] - gy_hi64{}, other = ((offset.lo - along.lo) ^ first) | ((offset.hi - along.hi) ^ first);
  si64 any = offset.lo[0] & 3;
  for (si32 i = 0; i < GY_LANES / 2; i++) any |= other[i];
  return any == 0;
}
static __attribute__((noinline)) void gy_draw_ahead(su64 seed, si64 first, gy_drawn &d) {
  vu32 a, b, c, e;
  vi64 along = gy_to_i64(vi32{GY_IOTA}), n = vi64{along.lo * 4 + first, along.hi * 4 + first};
  gy_rand_four(seed, n, a, b, c, e);
  vu32 x = __builtin_shufflevector(a, b, GY_ZIP_LO), y = __builtin_shufflevector(c, e, GY_ZIP_LO);
  vu32 z = __builtin_shufflevector(a, b, GY_ZIP_HI), w = __builtin_shufflevector(c, e, GY_ZIP_HI);
  gy_stu(d.words, __builtin_shufflevector(x, y, GY_ZIP_LO_2));
  gy_stu(d.words + GY_LANES, __builtin_shufflevector(x, y, GY_ZIP_HI_2));
  gy_stu(d.words + 2 * GY_LANES, __builtin_shufflevector(z, w, GY_ZIP_LO_2));
  gy_stu(d.words + 3 * GY_LANES, __builtin_shufflevector(z, w, GY_ZIP_HI_2));
  d.seed = seed;
  d.first = first;
  d.live = 3 * GY_LANES + 1;
}
// The words of counters that follow one another from `first` on, a multiple of four.
GY_FN vu32 gy_words_from(su64 seed, si64 first, gy_drawn &d) {
  if ((su64)(first - d.first) >= (su64)d.live || seed != d.seed) gy_draw_ahead(seed, first, d);
  return gy_ldu<vu32>(d.words + (first - d.first));
}
#endif
//% gy_unit_24
// The upper 24 bits as a multiple of 2^-24 in [0, 1).
GY_FN sf32 gy_unit_24(su32 r) { return (sf32)(si32)(r >> 8) * 5.9604644775390625e-8f; }
GY_V(GY_FN vf32 gy_unit_24(vu32 r) { return GY_C((vi32)(r >> 8), vf32) * 5.9604644775390625e-8f; })
//% gy_rand
GY_FN sf32 gy_rand(su64 seed, si64 offset) { return gy_unit_24(gy_rand_u32(seed, offset)); }
GY_V(GY_FN vf32 gy_rand(su64 seed, vi64 offset) { return gy_unit_24(gy_rand_u32(seed, offset)); })
GY_FN sf32 gy_rand(su64 seed, si64 offset, gy_drawn &) { return gy_rand(seed, offset); }
#if GY_VEC
GY_FN vf32 gy_rand(su64 seed, vi64 offset, gy_drawn &d) {
  return gy_are_fours(offset) ? gy_unit_24(gy_words_from(seed, offset.lo[0], d)) : gy_rand(seed, offset);
}
#endif
//% gy_randn
// Box-Muller; the radius takes u + 2^-24 in (0, 1], so that the logarithm is finite. An odd offset
// takes the sine, which is the cosine a quarter of a turn before.
template <class F, class U> GY_FN F gy_box_muller(U r0, U r1, U odd) {
  F radius = gy_sqrt(gy_log(gy_unit_24(r0) + 5.9604644775390625e-8f) * -2.0f);
  return radius * gy_cos((gy_unit_24(r1) - gy_unit_24(odd << 30)) * 6.28318548f);
}
GY_FN sf32 gy_randn(su64 seed, si64 offset) {
  su32 a, b, c, d, k = gy_rand_four(seed, offset, a, b, c, d);
  return gy_box_muller<sf32>(gy_word_by(k >> 1, a, c), gy_word_by(k >> 1, b, d), k & 1);
}
#if GY_VEC
GY_FN vf32 gy_randn(su64 seed, vi64 offset) {
  vu32 a, b, c, d, k = gy_rand_four(seed, offset, a, b, c, d);
  return gy_box_muller<vf32>(gy_word_by(k >> 1, a, c), gy_word_by(k >> 1, b, d), k & 1);
}
#endif
GY_FN sf32 gy_randn(su64 seed, si64 offset, gy_drawn &) { return gy_randn(seed, offset); }
#if GY_VEC
GY_FN vf32 gy_randn(su64 seed, vi64 offset, gy_drawn &d) {
  if (!gy_are_fours(offset)) return gy_randn(seed, offset);
  vu32 w = gy_words_from(seed, offset.lo[0], d);
  vu32 r0 = __builtin_shufflevector(w, w, GY_EVEN_TWICE), r1 = __builtin_shufflevector(w, w, GY_ODD_TWICE);
  return gy_box_muller<vf32>(r0, r1, (vu32)vi32{GY_IOTA} & 1);
}
#endif
//% gy_randint64
// low + (64-bit word mod (high - low)); high > low.
GY_FN si64 gy_randint64(su64 seed, si64 offset, si64 low, si64 high) {
  su32 a, b;
  gy_rand_words(seed, offset, a, b);
  return (si64)((su64)low + (((su64)b << 32) | a) % ((su64)high - (su64)low));
}
#if GY_VEC
static __attribute__((noinline)) vi64 gy_randint64(su64 seed, vi64 offset, si64 low, si64 high) {
  vu32 a, b;
  gy_rand_words(seed, offset, a, b);
  si64 t[GY_LANES];
  _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++)
    t[i] = (si64)((su64)low + (((su64)b[i] << 32) | a[i]) % ((su64)high - (su64)low));
  return gy_ldu<vi64>(t);
}
#endif
