//% gy_f8
// A float of 8 bits, which is computed on as f32: M bits of mantissa, an exponent bias of B, TOP the largest magnitude's bits:
// 0x7e saturates, 0x7c is an infinity, and 0x7f is a number where only 0x80 is NaN and zeros have no sign.
template <si32 M, si32 B, si32 TOP> struct gy_f8 {
  su8 byte;
  // Round to nearest even by adding half of the dropped bits; subnormals by the float adder.
  template <class F> GY_FN auto bits(F x) {
    auto u = gy_bits(x), none = u & 0, a = u & 0x7fffffff, sign = (u >> 24) & 0x80;
    auto normal = (a - ((127 - B) << 23) + ((1 << (22 - M)) - 1) + ((a >> (23 - M)) & 1)) >> (23 - M);
    constexpr si32 adder = (151 - B - M) << 23;
    auto small = gy_bits(gy_float(a) + gy_float(none + adder)) - adder;
    auto r = gy_sel(a < ((128 - B) << 23), small, normal);
    if (TOP == 0x7f) return gy_sel(r > TOP, none + 0x80, gy_sel(r == 0, none, r | sign));
    return sign | gy_sel(a > 0x7f800000, none + 0x7f, gy_sel(r > TOP, none + TOP, r));
  }
  template <class I> GY_FN auto value(I h) {
    auto none = h & 0, a = h & 0x7f, sign = (h & 0x80) << 24;
    auto normal = (a << (23 - M)) + ((127 - B) << 23);
    auto small = gy_bits((gy_float(a | 0x4b000000) - 8388608.0f) * gy_float(none + ((128 - B - M) << 23)));
    auto r = gy_sel(a < (1 << M), small, normal);
    if (TOP == 0x7f) return gy_float(gy_sel((h & 0xff) == 0x80, none + 0x7fc00000, r | sign));
    if (TOP == 0x7c) r = gy_sel(a == TOP, none + 0x7f800000, r);
    return gy_float(sign | gy_sel(a > TOP, none + 0x7fc00000, r));
  }
  template <class F> GY_FN F round(F x) { return value(bits(x)); }
  GY_FN sf32 get(const gy_f8 *p) { return value((si32)p->byte); }
  GY_FN void put(gy_f8 *p, sf32 x) { p->byte = (su8)bits(x); }
#if GY_VEC
  GY_FN vf32 vget(const gy_f8 *p) { return value(gy_widen(gy_ldu<vi8>(p))); }
  GY_FN void put(gy_f8 *p, vf32 x) { gy_stu(p, gy_narrow(bits(x))); }
#endif
};
//% gy_f8e4m3
typedef gy_f8<3, 7, 0x7e> gy_f8e4m3;
//% gy_f8e5m2
typedef gy_f8<2, 15, 0x7c> gy_f8e5m2;
//% gy_f8e4m3fnuz
typedef gy_f8<3, 8, 0x7f> gy_f8e4m3fnuz;
//% gy_f8e5m2fnuz
typedef gy_f8<2, 16, 0x7f> gy_f8e5m2fnuz;
