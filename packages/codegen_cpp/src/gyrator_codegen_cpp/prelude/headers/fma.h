//% gy_mad
// One rounding where the instruction set has FMA; plain code has none and rounds twice.
#if GY_ISA == 0
GY_FN sf32 gy_mad(sf32 a, sf32 b, sf32 c) { return a * b + c; }
GY_FN sf64 gy_mad(sf64 a, sf64 b, sf64 c) { return a * b + c; }
#else
GY_FN sf32 gy_mad(sf32 a, sf32 b, sf32 c) { return __builtin_fmaf(a, b, c); }
GY_FN sf64 gy_mad(sf64 a, sf64 b, sf64 c) { return __builtin_fma(a, b, c); }
#if defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
GY_FN vf32 gy_mad(vf32 a, vf32 b, vf32 c) { return __builtin_elementwise_fma(a, b, c); }
GY_FN gy_hf64 gy_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) { return __builtin_elementwise_fma(a, b, c); }
#elif GY_ISA == 512
GY_FN vf32 gy_mad(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, (su16)-1, 4); }
GY_FN gy_hf64 gy_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, (su8)-1, 4);
}
#else
GY_FN vf32 gy_mad(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
GY_FN gy_hf64 gy_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
#endif
GY_FN vf64 gy_mad(vf64 a, vf64 b, vf64 c) { return vf64{gy_mad(a.lo, b.lo, c.lo), gy_mad(a.hi, b.hi, c.hi)}; }
#endif
//% gy_less_mad
// c - a * b with one rounding, which GCC does not make of a negated operand.
#if GY_ISA == 512
GY_FN vf32 gy_less_mad(vf32 a, vf32 b, vf32 c) {
#if defined(__clang__)
  return gy_mad(-a, b, c);
#else
  return (vf32)__builtin_ia32_vfnmaddps512_mask(a, b, c, (su16)-1, 4);
#endif
}
GY_FN gy_hf64 gy_less_mad(gy_hf64 a, gy_hf64 b, gy_hf64 c) {
#if defined(__clang__)
  return gy_mad(-a, b, c);
#else
  return (gy_hf64)__builtin_ia32_vfnmaddpd512_mask(a, b, c, (su8)-1, 4);
#endif
}
#endif
//% gy_fma
GY_V(GY_FN vf32 gy_fma(vf32 a, vf32 b, vf32 c) { return gy_mad(a, b, c); })
GY_V(GY_FN vf64 gy_fma(vf64 a, vf64 b, vf64 c) { return gy_mad(a, b, c); })
GY_FN sf32 gy_fma(sf32 a, sf32 b, sf32 c) { return __builtin_fmaf(a, b, c); }
GY_FN sf64 gy_fma(sf64 a, sf64 b, sf64 c) { return __builtin_fma(a, b, c); }
//% gy_poly gy_horner
// Coefficients from the highest power down, evaluated by Horner's rule.
template <class T> GY_FN T gy_horner(T, T p) { return p; }
template <class T, class C, class... R> GY_FN T gy_horner(T x, T p, C c, R... rest) {
  return gy_horner(x, gy_mad(p, x, T{} + c), rest...);
}
template <class T, class C, class... R> GY_FN T gy_poly(T x, C c, R... rest) {
  return gy_horner(x, T{} + c, rest...);
}
