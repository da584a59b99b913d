//% GY_ROUND_VEC
#if GY_ISA == 512
#define GY_ROUND_VEC(name, mode) \
  GY_FN vf32 name(vf32 x) { return (vf32)__builtin_ia32_rndscaleps_mask(x, mode, x, (su16)-1, 4); } \
  GY_FN gy_hf64 name(gy_hf64 x) { return (gy_hf64)__builtin_ia32_rndscalepd_mask(x, mode, x, (su8)-1, 4); } \
  GY_FN vf64 name(vf64 x) { return vf64{name(x.lo), name(x.hi)}; }
#elif GY_ISA == 256
#define GY_ROUND_VEC(name, mode) \
  GY_FN vf32 name(vf32 x) { return (vf32)__builtin_ia32_roundps256(x, mode); } \
  GY_FN gy_hf64 name(gy_hf64 x) { return (gy_hf64)__builtin_ia32_roundpd256(x, mode); } \
  GY_FN vf64 name(vf64 x) { return vf64{name(x.lo), name(x.hi)}; }
#endif
//% gy_floor
GY_FN sf32 gy_floor(sf32 x) { return __builtin_floorf(x); }
GY_FN sf64 gy_floor(sf64 x) { return __builtin_floor(x); }
GY_V(GY_ROUND_VEC(gy_floor, 9))
//% gy_ceil
GY_FN sf32 gy_ceil(sf32 x) { return __builtin_ceilf(x); }
GY_FN sf64 gy_ceil(sf64 x) { return __builtin_ceil(x); }
GY_V(GY_ROUND_VEC(gy_ceil, 10))
//% gy_trunc
GY_FN sf32 gy_trunc(sf32 x) { return __builtin_truncf(x); }
GY_FN sf64 gy_trunc(sf64 x) { return __builtin_trunc(x); }
GY_V(GY_ROUND_VEC(gy_trunc, 11))
//% gy_round
GY_FN sf32 gy_round(sf32 x) { return __builtin_rintf(x); }
GY_FN sf64 gy_round(sf64 x) { return __builtin_rint(x); }
GY_V(GY_ROUND_VEC(gy_round, 8))
//% gy_sqrt : gy_any_w
GY_FN sf32 gy_sqrt(sf32 x) { return __builtin_sqrtf(x); }
GY_FN sf64 gy_sqrt(sf64 x) { return __builtin_sqrt(x); }
#if GY_ISA == 512
// The machine's root takes 12 to 24 cycles a register. An approximation to 14 bits, doubled by each step, is rounded as
// the root where what it leaves of x is a normal number; elsewhere the machine's own is taken for all lanes.
#if defined(__clang__)
static __attribute__((noinline, cold)) vf32 gy_sqrt_far(vf32 x) { return (vf32)__builtin_ia32_sqrtps512(x, 4); }
static __attribute__((noinline, cold)) gy_hf64 gy_sqrt_far(gy_hf64 x) { return (gy_hf64)__builtin_ia32_sqrtpd512(x, 4); }
#else
static __attribute__((noinline, cold)) vf32 gy_sqrt_far(vf32 x) { return (vf32)__builtin_ia32_sqrtps512_mask(x, x, (su16)-1, 4); }
static __attribute__((noinline, cold)) gy_hf64 gy_sqrt_far(gy_hf64 x) { return (gy_hf64)__builtin_ia32_sqrtpd512_mask(x, x, (su8)-1, 4); }
#endif
template <class T> GY_FN void gy_sqrt_step(T &s, T &half) {
  T miss = gy_less_mad(s, half, T{} + 0.5f);
  s = gy_mad(s, miss, s);
  half = gy_mad(half, miss, half);
}
GY_FN vf32 gy_sqrt(vf32 x) {
  if (__builtin_expect(gy_any_w((vi32)((vu32)x - 0x19800000u >= vu32{} + 0x66000000u)), 0)) return gy_sqrt_far(x);
  vf32 y = (vf32)__builtin_ia32_rsqrt14ps512_mask(x, x, (su16)-1), s = x * y, half = y * 0.5f;
  gy_sqrt_step(s, half);
  return gy_mad(gy_less_mad(s, s, x), half, s);
}
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) {
  if (__builtin_expect(gy_any_w((gy_hi64)((gy_hu64)x - 0x07b0000000000000u >= gy_hu64{} + 0x7840000000000000u)), 0)) return gy_sqrt_far(x);
  gy_hf64 y = __builtin_ia32_rsqrt14pd512_mask(x, x, (su8)-1), s = x * y, half = y * 0.5;
  gy_sqrt_step(s, half);
  gy_sqrt_step(s, half);
  return gy_mad(gy_less_mad(s, s, x), half, s);
}
#elif GY_ISA == 256 && defined(__clang__) && !__has_builtin(__builtin_ia32_sqrtps256)
GY_FN vf32 gy_sqrt(vf32 x) { return __builtin_elementwise_sqrt(x); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return __builtin_elementwise_sqrt(x); }
#elif GY_ISA == 256
GY_FN vf32 gy_sqrt(vf32 x) { return (vf32)__builtin_ia32_sqrtps256(x); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return (gy_hf64)__builtin_ia32_sqrtpd256(x); }
#endif
GY_V(GY_FN vf64 gy_sqrt(vf64 x) { return vf64{gy_sqrt(x.lo), gy_sqrt(x.hi)}; })
//% gy_rsqrt
GY_UNARY_FLOAT(gy_rsqrt, 1 / gy_sqrt(a))
