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
//% gy_sqrt
GY_FN sf32 gy_sqrt(sf32 x) { return __builtin_sqrtf(x); }
GY_FN sf64 gy_sqrt(sf64 x) { return __builtin_sqrt(x); }
#if GY_ISA == 512 && defined(__clang__)
GY_FN vf32 gy_sqrt(vf32 x) { return (vf32)__builtin_ia32_sqrtps512(x, 4); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return (gy_hf64)__builtin_ia32_sqrtpd512(x, 4); }
#elif GY_ISA == 512
GY_FN vf32 gy_sqrt(vf32 x) { return (vf32)__builtin_ia32_sqrtps512_mask(x, x, (su16)-1, 4); }
GY_FN gy_hf64 gy_sqrt(gy_hf64 x) { return (gy_hf64)__builtin_ia32_sqrtpd512_mask(x, x, (su8)-1, 4); }
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
