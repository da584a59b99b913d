//% gy_f16_bits gy_f16_value
// Round to nearest even by adding half of the dropped bits; subnormals by the float adder.
GY_FN su32 gy_f16_bits(sf32 x) {
  su32 u = (su32)gy_bits(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  su32 normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
  su32 small = (su32)gy_bits(gy_float((si32)a) + 0.5f) - 0x3f000000;
  su32 nan = 0x7e00 | ((a >> 13) & 0x3ff);
  su32 r = a < 0x38800000 ? small : normal;
  r = a >= 0x477ff000 ? 0x7c00 : r;
  return sign | (a > 0x7f800000 ? nan : r);
}
GY_FN sf32 gy_f16_value(su32 h) {
  su32 sign = (h & 0x8000) << 16, a = h & 0x7fff;
  sf32 small = (sf32)(si32)a * 5.96046448e-8f;
  si32 normal = (si32)((a << 13) + 0x38000000), wide = (si32)((a << 13) | 0x7f800000 | (a > 0x7c00 ? 0x400000u : 0u));
  si32 r = a < 0x400 ? gy_bits(small) : a >= 0x7c00 ? wide : normal;
  return gy_float(r | (si32)sign);
}
