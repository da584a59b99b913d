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
//% gy_unit_24
// The upper 24 bits as a multiple of 2^-24 in [0, 1).
GY_FN sf32 gy_unit_24(su32 r) { return (sf32)(si32)(r >> 8) * 5.9604644775390625e-8f; }
GY_V(GY_FN vf32 gy_unit_24(vu32 r) { return GY_C((vi32)(r >> 8), vf32) * 5.9604644775390625e-8f; })
//% gy_rand
GY_FN sf32 gy_rand(su64 seed, si64 offset) { return gy_unit_24(gy_rand_u32(seed, offset)); }
GY_V(GY_FN vf32 gy_rand(su64 seed, vi64 offset) { return gy_unit_24(gy_rand_u32(seed, offset)); })
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
