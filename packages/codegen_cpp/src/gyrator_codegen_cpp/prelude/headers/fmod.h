//% gy_truncdiv_int : gy_to_i8 gy_to_u8 gy_to_i16 gy_to_u16 gy_to_i32 gy_to_u32 gy_to_f32 gy_to_f64
// Quotients toward zero; divisor 0 gives 0 and MIN / -1 wraps. Up to 16 bits float32 quotients truncate
// exactly, up to 32 bits float64 ones.
#define GY_X(n) \
  GY_FN s##n gy_truncdiv_int(s##n a, s##n b) { \
    if (b == 0) return 0; \
    if ((s##n)-1 < 0 && b == (s##n)-1) return (s##n)(0 - (su64)a); \
    return (s##n)(a / b); \
  }
GY_INTS(GY_X)
#undef GY_X
#if GY_VEC
#define GY_X(n) \
  GY_FN v##n gy_truncdiv_int(v##n a, v##n b) { \
    return gy_select(gy_mask(b == 0), v##n{}, gy_to_##n(gy_to_f32(a) / gy_to_f32(b))); \
  }
GY_X(i8) GY_X(u8) GY_X(i16) GY_X(u16)
#undef GY_X
#define GY_X(n) \
  GY_FN v##n gy_truncdiv_int(v##n a, v##n b) { \
    return gy_select(gy_mask(b == 0), v##n{}, gy_to_##n(gy_to_f64(a) / gy_to_f64(b))); \
  }
GY_X(i32) GY_X(u32)
#undef GY_X
#define GY_X(n) \
  static __attribute__((noinline, cold)) v##n gy_truncdiv_far(v##n a, v##n b) { \
    s##n t[GY_LANES], u[GY_LANES]; \
    gy_stu(t, a); \
    gy_stu(u, b); \
    _Pragma("GCC unroll 1") for (si32 i = 0; i < GY_LANES; i++) t[i] = gy_truncdiv_int(t[i], u[i]); \
    return gy_ldu<v##n>(t); \
  }
GY_X(i64) GY_X(u64)
#undef GY_X
// float64 quotients of integers within 2^51 truncate exactly, since those that are no integers differ from
// one by 1 / |b| at least. Adding 1.5 * 2^52 makes floats of such integers, and integers of such floats.
GY_FN gy_hf64 gy_near_f64(gy_hi64 x) { return (gy_hf64)(x + 0x4338000000000000) - 6755399441055744.0; }
GY_FN gy_hi64 gy_near_quotient(gy_hi64 a, gy_hi64 b) {
  gy_hi64 q = (gy_hi64)(gy_trunc(gy_near_f64(a) / gy_near_f64(b)) + 6755399441055744.0) - 0x4338000000000000;
  return gy_sel(b == 0, gy_hi64{}, q);
}
GY_FN gy_hi64 gy_is_far(gy_hi64 a, gy_hi64 b) {
  gy_hu64 edge = gy_hu64{} + (1ul << 51);
  return (gy_hi64)(((((gy_hu64)a + edge) | ((gy_hu64)b + edge)) >> 52) != 0);
}
GY_FN gy_hi64 gy_is_far(gy_hu64 a, gy_hu64 b) { return (gy_hi64)(((a | b) >> 51) != 0); }
#define GY_X(n) \
  GY_FN v##n gy_truncdiv_int(v##n a, v##n b) { \
    typedef gy_h##n H; \
    if (__builtin_expect(gy_any(gy_mask(gy_is_far(a.lo, b.lo), gy_is_far(a.hi, b.hi))), 0)) return gy_truncdiv_far(a, b); \
    return v##n{(H)gy_near_quotient((gy_hi64)a.lo, (gy_hi64)b.lo), (H)gy_near_quotient((gy_hi64)a.hi, (gy_hi64)b.hi)}; \
  }
GY_X(i64) GY_X(u64)
#undef GY_X
#endif
//% GY_EACH_FLOAT_INT
// One overload a lane type of a two-argument template, one template for floats and one for integers.
#define GY_EACH_2(name, f, n) \
  GY_FN s##n name(s##n a, s##n b) { return f(a, b); } \
  GY_V(GY_FN v##n name(v##n a, v##n b) { return f(a, b); })
#define GY_EACH_FLOAT_INT(name, ff, fi) \
  GY_EACH_2(name, ff, f32) GY_EACH_2(name, ff, f64) GY_EACH_2(name, fi, i8) GY_EACH_2(name, fi, i16) \
  GY_EACH_2(name, fi, i32) GY_EACH_2(name, fi, i64) GY_EACH_2(name, fi, u8) GY_EACH_2(name, fi, u16) \
  GY_EACH_2(name, fi, u32) GY_EACH_2(name, fi, u64)
//% gy_truncdiv
template <class T> GY_FN T gy_truncdiv_float(T a, T b) { return gy_trunc(gy_div(a, b)); }
GY_EACH_FLOAT_INT(gy_truncdiv, gy_truncdiv_float, gy_truncdiv_int)
//% gy_fmod_float
// The quotient below 2^28 is exact in double, and so is the remainder after it; others go to libm.
template <class T> GY_FN T gy_fmod_d(T x, T y) {
  T a = gy_abs(x), b = gy_abs(y), q = gy_trunc(a / b);
  T r = a - q * b;
  r = gy_sel(r < 0, r + b, r);
  return gy_copysign(gy_sel(q == 0, a, r), x);
}
GY_FN sf32 gy_fmod_float(sf32 x, sf32 y) {
  sf64 q = (sf64)x / (sf64)y;
  if (__builtin_expect(!(gy_abs(q) < 268435456.0), 0)) return __builtin_fmodf(x, y);
  return (sf32)gy_fmod_d((sf64)x, (sf64)y);
}
#if GY_VEC
static __attribute__((noinline, cold)) vf32 gy_fmod_far(vf32 x, vf32 y) {
  sf32 t[GY_LANES], u[GY_LANES];
  gy_stu(t, x);
  gy_stu(u, y);
  for (si32 i = 0; i < GY_LANES; i++) t[i] = __builtin_fmodf(t[i], u[i]);
  return gy_ldu<vf32>(t);
}
static __attribute__((noinline, cold)) vf32 gy_fmod_wide(vf32 x, vf32 y) {
  gy_hf64 a = GY_C(gy_lo(x), gy_hf64), b = GY_C(gy_lo(y), gy_hf64), c = GY_C(gy_hi(x), gy_hf64), d = GY_C(gy_hi(y), gy_hf64);
  gy_hf64 limit = gy_hf64{} + 268435456.0;
  if (__builtin_expect(!gy_all(gy_mask(gy_abs(a / b) < limit, gy_abs(c / d) < limit)), 0)) return gy_fmod_far(x, y);
  return gy_join(GY_C(gy_fmod_d(a, b), gy_hf32), GY_C(gy_fmod_d(c, d), gy_hf32));
}
// Below 2^24 the rounded quotient truncates to the integer or to one more, and what is left of x, at most |y|
// from 0 and a multiple of y's last place, is exact.
GY_FN vf32 gy_fmod_float(vf32 x, vf32 y) {
  vf32 a = gy_abs(x), b = gy_abs(y), q = gy_trunc(a / b);
  if (__builtin_expect(!gy_all(gy_mask(q < 16777216.0f)), 0)) return gy_fmod_wide(x, y);
  vf32 r = gy_mad(-q, b, a);
  r = gy_sel(r < 0, r + b, r);
  return gy_copysign(gy_sel(q == 0, a, r), x);
}
#endif
#if GY_ISA == 0
GY_FN sf64 gy_fmod_float(sf64 x, sf64 y) { return __builtin_fmod(x, y); }
#else
static __attribute__((noinline, cold)) sf64 gy_fmod_far(sf64 x, sf64 y) { return __builtin_fmod(x, y); }
static __attribute__((noinline, cold)) vf64 gy_fmod_far(vf64 x, vf64 y) {
  sf64 t[GY_LANES], u[GY_LANES];
  gy_stu(t, x);
  gy_stu(u, y);
  for (si32 i = 0; i < GY_LANES; i++) t[i] = __builtin_fmod(t[i], u[i]);
  return gy_ldu<vf64>(t);
}
// The same for quotients q of doubles below 2^53.
template <class T> GY_FN T gy_fmod_near(T x, T y, T q) {
  T a = gy_abs(x), b = gy_abs(y), r = gy_mad(-q, b, a);
  r = gy_sel(r < 0, r + b, r);
  return gy_copysign(gy_sel(q == 0, a, r), x);
}
template <class T> GY_FN T gy_fmod_quotient(T x, T y) { return gy_trunc(gy_abs(x) / gy_abs(y)); }
GY_FN sf64 gy_fmod_float(sf64 x, sf64 y) {
  sf64 q = gy_fmod_quotient(x, y);
  return q < 9007199254740992.0 ? gy_fmod_near(x, y, q) : gy_fmod_far(x, y);
}
GY_FN vf64 gy_fmod_float(vf64 x, vf64 y) {
  gy_hf64 p = gy_fmod_quotient(x.lo, y.lo), q = gy_fmod_quotient(x.hi, y.hi), edge = gy_hf64{} + 9007199254740992.0;
  if (__builtin_expect(!gy_all(gy_mask(p < edge, q < edge)), 0)) return gy_fmod_far(x, y);
  return vf64{gy_fmod_near(x.lo, y.lo, p), gy_fmod_near(x.hi, y.hi, q)};
}
#endif
//% gy_fmod_int
template <class T> GY_FN T gy_fmod_int(T a, T b) {
  return gy_select(gy_eq(b, T{}), T{}, gy_sub(a, gy_mul(gy_truncdiv_int(a, b), b)));
}
//% gy_fmod
GY_EACH_FLOAT_INT(gy_fmod, gy_fmod_float, gy_fmod_int)
//% gy_wrong_side
// Whether a nonzero remainder m of a division by b has the sign that Python's rule forbids.
template <class T> GY_FN auto gy_wrong_side(T m, T b) {
  return gy_ne(m, T{}) & (gy_lt(m, T{}) ^ gy_lt(b, T{}));
}
//% gy_remainder
template <class T> GY_FN T gy_remainder_float(T a, T b) {
  T m = gy_fmod_float(a, b);
  return gy_select(gy_wrong_side(m, b), gy_add(m, b), m);
}
template <class T> GY_FN T gy_remainder_int(T a, T b) {
  T m = gy_fmod_int(a, b);
  return gy_select(gy_wrong_side(m, b), gy_add(m, b), m);
}
GY_EACH_FLOAT_INT(gy_remainder, gy_remainder_float, gy_remainder_int)
//% gy_floordiv : gy_one
// Floats as torch's floor division: the quotient of what fmod leaves, corrected to an integer.
template <class T> GY_FN T gy_floordiv_float(T a, T b) {
  T m = gy_fmod_float(a, b), one = gy_one(T{});
  T q = gy_div(gy_sub(a, m), b);
  q = gy_select(gy_wrong_side(m, b), gy_sub(q, one), q);
  T f = gy_floor(q);
  f = gy_select(gy_gt(gy_sub(q, f), gy_mul(one, gy_half_of(T{}))), gy_add(f, one), f);
  f = gy_select(gy_eq(q, T{}), gy_copysign(T{}, gy_div(a, b)), f);
  return gy_select(gy_eq(b, T{}), gy_div(a, b), f);
}
template <class T> GY_FN T gy_floordiv_int(T a, T b) {
  T q = gy_truncdiv_int(a, b), m = gy_fmod_int(a, b);
  return gy_select(gy_wrong_side(m, b), gy_sub(q, gy_one_int(T{})), q);
}
GY_EACH_FLOAT_INT(gy_floordiv, gy_floordiv_float, gy_floordiv_int)
//% gy_half_of
GY_FN sf32 gy_half_of(sf32) { return 0.5f; }
GY_FN sf64 gy_half_of(sf64) { return 0.5; }
GY_V(GY_FN vf32 gy_half_of(vf32) { return vf32{} + 0.5f; })
GY_V(GY_FN vf64 gy_half_of(vf64) { return vf64{gy_hf64{} + 0.5, gy_hf64{} + 0.5}; })
//% gy_one_int
#define GY_X(n) GY_FN s##n gy_one_int(s##n) { return 1; }
GY_INTS(GY_X)
#undef GY_X
#if GY_VEC
#define GY_X(n) GY_FN v##n gy_one_int(v##n) { return v##n{} + 1; }
GY_NATIVE_INTS(GY_X)
#undef GY_X
GY_FN vi64 gy_one_int(vi64) { return vi64{gy_hi64{} + 1, gy_hi64{} + 1}; }
GY_FN vu64 gy_one_int(vu64) { return vu64{gy_hu64{} + 1, gy_hu64{} + 1}; }
#endif
//% gy_hypot
template <class T> GY_FN T gy_hypot_d(T x, T y) {
  auto infinite = (gy_abs(x) == __builtin_inf()) | (gy_abs(y) == __builtin_inf());
  return gy_sel(infinite, T{} + __builtin_inf(), gy_sqrt(x * x + y * y));
}
GY_VIA_F64_2(gy_hypot)
sf64 gy_hypot(sf64, sf64) = delete;
//% gy_hypot_f64 : GY_WIDE_2 gy_any_w
// The root of a sum of squares in two parts, corrected once; where squares overflow or vanish, of scaled numbers.
#if GY_ISA != 0
template <class T> GY_FN T gy_hypot_w(T x, T y) {
  T p = gy_abs(x), q = gy_abs(y), back = T{} + 1.0, inf = T{} + __builtin_inf();
  T a = gy_raise(p, q), b = gy_lower(q, p);
  auto odd = (a < 3.054936363499605e-151) | (a > 3.273390607896142e+150);
  if (__builtin_expect(gy_any_w(odd), 0)) {
    T scale = gy_sel(a > 1.0, T{} + 2.409919865102884e-181, T{} + 4.149515568880993e+180);
    back = gy_sel(odd, gy_sel(a > 1.0, T{} + 4.149515568880993e+180, T{} + 2.409919865102884e-181), back);
    a = gy_sel(odd, a * scale, a);
    b = gy_sel(odd, b * scale, b);
  }
  T h = a * a, l = gy_mad(a, a, -h), g = b * b, m = gy_mad(b, b, -g), lost, s = gy_sum_w(h, g, lost), r = gy_sqrt(s);
  T miss = gy_mad(-r, r, s) + (lost + (l + m));
  r = (r + miss / gy_raise(r + r, T{} + 1e-300)) * back;
  return gy_sel((p == inf) | (q == inf), inf, r);
}
#endif
GY_WIDE_2(hypot)
