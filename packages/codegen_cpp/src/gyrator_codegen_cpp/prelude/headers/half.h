//% gy_bf16_bits gy_bf16_value
GY_FN su32 gy_bf16_bits(sf32 x) {
  su32 u = (su32)gy_bits(x);
  return x != x ? 0x7fc0u : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
GY_FN sf32 gy_bf16_value(su32 u) { return gy_float((si32)(u << 16)); }
#if GY_VEC
GY_FN vu32 gy_bf16_bits(vf32 x) {
  vu32 u = (vu32)x;
  return x != x ? vu32{} + 0x7fc0u : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
GY_FN vf32 gy_bf16_value(vu32 u) { return (vf32)(u << 16); }
GY_FN vf32 gy_bf16_value(vu16 u) { return (vf32)(gy_widen(u) << 16); }
#endif
//% gy_f16_bits gy_f16_value
#if GY_ISA == 512
GY_FN vu16 gy_f16_bits(vf32 x) { return (vu16)__builtin_ia32_vcvtps2ph512_mask(x, 0, vi16{}, (su16)-1); }
GY_FN vf32 gy_f16_value(vu16 x) { return (vf32)__builtin_ia32_vcvtph2ps512_mask((vi16)x, vf32{}, (su16)-1, 4); }
// One element in 128 bits: 512 would be cleared first.
typedef sf32 gy_e32 __attribute__((vector_size(16)));
typedef si16 gy_e16 __attribute__((vector_size(16)));
GY_FN su32 gy_f16_bits(sf32 x) { return (su16)__builtin_ia32_vcvtps2ph_mask(gy_e32{x}, 0, gy_e16{}, -1)[0]; }
GY_FN sf32 gy_f16_value(su32 h) { return __builtin_ia32_vcvtph2ps_mask(gy_e16{(si16)h}, gy_e32{}, -1)[0]; }
#else
GY_FN vu16 gy_f16_bits(vf32 x) { return (vu16)__builtin_ia32_vcvtps2ph256(x, 0); }
#if __clang_major__ > 15
typedef _Float16 gy_e16 __attribute__((vector_size(16)));
GY_FN vf32 gy_f16_value(vu16 x) { return __builtin_convertvector((gy_e16)x, vf32); }
#else
GY_FN vf32 gy_f16_value(vu16 x) { return (vf32)__builtin_ia32_vcvtph2ps256((vi16)x); }
#endif
GY_FN su32 gy_f16_bits(sf32 x) { return gy_f16_bits(vf32{x})[0]; }
GY_FN sf32 gy_f16_value(su32 h) { return gy_f16_value(vu16{(su16)h})[0]; }
#endif
//% gy_to_bf16
GY_FN gy_bf16 gy_to_bf16(sf32 x) { return gy_bf16{(su16)gy_bf16_bits(x)}; }
//% gy_to_f16
GY_FN gy_f16 gy_to_f16(sf32 x) { return gy_f16{(su16)gy_f16_bits(x)}; }
//% gy_round_bf16
GY_FN sf32 gy_round_bf16(sf32 x) { return gy_bf16_value(gy_bf16_bits(x)); }
#if GY_VEC
GY_FN vf32 gy_round_bf16(vf32 x) {
  vu32 u = (vu32)x;
  return x != x ? x : (vf32)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}
#endif
//% gy_round_f16
GY_FN sf32 gy_round_f16(sf32 x) { return gy_f16_value(gy_f16_bits(x)); }
GY_V(GY_FN vf32 gy_round_f16(vf32 x) { return gy_f16_value(gy_f16_bits(x)); })
