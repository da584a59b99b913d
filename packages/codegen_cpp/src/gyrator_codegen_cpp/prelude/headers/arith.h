//% GY_RING
// Signed addition, subtraction and multiplication run on unsigned lanes, where they wrap.
#define GY_RING_S(name, op, n, u) GY_FN s##n name(s##n a, s##n b) { return (s##n)((u)a op (u)b); }
#define GY_RING_V(name, op, n, u) GY_FN v##n name(v##n a, v##n b) { return (v##n)((u)a op (u)b); }
#define GY_RING_P(name, op, n, u) \
  GY_FN gy_h##n name(gy_h##n a, gy_h##n b) { return (gy_h##n)((u)a op (u)b); } \
  GY_FN v##n name(v##n a, v##n b) { return v##n{name(a.lo, b.lo), name(a.hi, b.hi)}; }
#define GY_RING(name, op) \
  GY_RING_S(name, op, f32, sf32) GY_RING_S(name, op, f64, sf64) GY_RING_S(name, op, i8, su32) GY_RING_S(name, op, u8, su32) \
  GY_RING_S(name, op, i16, su32) GY_RING_S(name, op, u16, su32) GY_RING_S(name, op, i32, su32) \
  GY_RING_S(name, op, u32, su32) GY_RING_S(name, op, i64, su64) GY_RING_S(name, op, u64, su64) \
  GY_V(GY_RING_V(name, op, f32, vf32) GY_RING_V(name, op, i8, vu8) GY_RING_V(name, op, u8, vu8) GY_RING_V(name, op, i16, vu16) \
  GY_RING_V(name, op, u16, vu16) GY_RING_V(name, op, i32, vu32) GY_RING_V(name, op, u32, vu32) \
  GY_RING_P(name, op, f64, gy_hf64) GY_RING_P(name, op, i64, gy_hu64) GY_RING_P(name, op, u64, gy_hu64))
//% gy_add
GY_RING(gy_add, +)
//% gy_sub
GY_RING(gy_sub, -)
//% gy_mul
GY_RING(gy_mul, *)
//% GY_UNARY
// The body is one expression of a for every lane type; 64-bit lanes are done half by half.
#define GY_UNARY_S(name, e, n) GY_FN s##n name(s##n a) { typedef s##n T; return (T)(e); }
#define GY_UNARY_V(name, e, n) GY_FN v##n name(v##n a) { typedef v##n T; return (T)(e); }
#define GY_UNARY_P(name, e, n) \
  GY_FN gy_h##n name(gy_h##n a) { typedef gy_h##n T; return (T)(e); } \
  GY_FN v##n name(v##n a) { return v##n{name(a.lo), name(a.hi)}; }
#define GY_UNARY_SIGNED(name, es, ev) \
  GY_UNARY_S(name, es, i8) GY_UNARY_S(name, es, i16) GY_UNARY_S(name, es, i32) GY_UNARY_S(name, es, i64) \
  GY_V(GY_UNARY_V(name, ev, i8) GY_UNARY_V(name, ev, i16) GY_UNARY_V(name, ev, i32) GY_UNARY_P(name, ev, i64))
#define GY_UNARY_UNSIGNED(name, es, ev) \
  GY_UNARY_S(name, es, u8) GY_UNARY_S(name, es, u16) GY_UNARY_S(name, es, u32) GY_UNARY_S(name, es, u64) \
  GY_V(GY_UNARY_V(name, ev, u8) GY_UNARY_V(name, ev, u16) GY_UNARY_V(name, ev, u32) GY_UNARY_P(name, ev, u64))
#define GY_UNARY_FLOAT(name, e) \
  GY_UNARY_S(name, e, f32) GY_UNARY_S(name, e, f64) GY_V(GY_UNARY_V(name, e, f32) GY_UNARY_P(name, e, f64))
//% gy_neg
GY_UNARY_FLOAT(gy_neg, -a)
GY_UNARY_SIGNED(gy_neg, gy_sub(T(0), a), gy_sub(T{}, a))
GY_UNARY_UNSIGNED(gy_neg, gy_sub(T(0), a), gy_sub(T{}, a))
//% gy_square
GY_UNARY_FLOAT(gy_square, a * a)
GY_UNARY_SIGNED(gy_square, gy_mul(a, a), gy_mul(a, a))
GY_UNARY_UNSIGNED(gy_square, gy_mul(a, a), gy_mul(a, a))
//% gy_reciprocal
GY_UNARY_FLOAT(gy_reciprocal, 1 / a)
//% gy_relu
GY_UNARY_FLOAT(gy_relu, gy_raise(a, T{}))
GY_UNARY_SIGNED(gy_relu, a < 0 ? T(0) : a, a < 0 ? T{} : a)
GY_UNARY_UNSIGNED(gy_relu, a, a)
//% gy_sign
GY_UNARY_FLOAT(gy_sign, a > 0 ? T{} + 1 : (a < 0 ? T{} - 1 : T{}))
GY_UNARY_SIGNED(gy_sign, (0 < a) - (a < 0), (a < T{}) - (a > T{}))
GY_UNARY_UNSIGNED(gy_sign, 0 != a, -(T)(a != T{}))
//% gy_abs
GY_UNARY_SIGNED(gy_abs, a < 0 ? gy_sub(T(0), a) : a, a < 0 ? gy_sub(T{}, a) : a)
GY_UNARY_UNSIGNED(gy_abs, a, a)
GY_FN sf32 gy_abs(sf32 a) { return gy_float(gy_bits(a) & 0x7fffffff); }
GY_FN sf64 gy_abs(sf64 a) { return gy_float(gy_bits(a) & 0x7fffffffffffffff); }
#if GY_VEC
GY_FN vf32 gy_abs(vf32 a) { return (vf32)((vi32)a & 0x7fffffff); }
GY_FN gy_hf64 gy_abs(gy_hf64 a) { return (gy_hf64)((gy_hi64)a & 0x7fffffffffffffff); }
GY_FN vf64 gy_abs(vf64 a) { return vf64{gy_abs(a.lo), gy_abs(a.hi)}; }
#endif
//% GY_BINARY_FLOAT
#define GY_BINARY_FLOAT(name, e) \
  GY_FN sf32 name(sf32 a, sf32 b) { return e; } \
  GY_FN sf64 name(sf64 a, sf64 b) { return e; } \
  GY_V(GY_FN vf32 name(vf32 a, vf32 b) { return e; } \
  GY_FN gy_hf64 name(gy_hf64 a, gy_hf64 b) { return e; } \
  GY_FN vf64 name(vf64 a, vf64 b) { return vf64{name(a.lo, b.lo), name(a.hi, b.hi)}; })
//% gy_div
GY_BINARY_FLOAT(gy_div, a / b)
//% gy_fmin
GY_BINARY_FLOAT(gy_fmin, (((a <= b) | (b != b)) ? a : b))
//% gy_fmax
GY_BINARY_FLOAT(gy_fmax, (((a >= b) | (b != b)) ? a : b))
//% GY_BINARY_INT
#define GY_BINARY_INT_S(name, e, n) GY_FN s##n name(s##n a, s##n b) { return e; }
#define GY_BINARY_INT_V(name, e, n) GY_FN v##n name(v##n a, v##n b) { return e; }
#define GY_BINARY_INT_P(name, e, n) \
  GY_FN gy_h##n name(gy_h##n a, gy_h##n b) { return e; } \
  GY_FN v##n name(v##n a, v##n b) { return v##n{name(a.lo, b.lo), name(a.hi, b.hi)}; }
#define GY_BINARY_INT_EACH(X, name, e) X(name, e, i8) X(name, e, i16) X(name, e, i32) X(name, e, u8) X(name, e, u16) X(name, e, u32)
#define GY_BINARY_INT_WIDE(X, name, e) X(name, e, i64) X(name, e, u64)
#define GY_BINARY_INT(name, e) \
  GY_BINARY_INT_EACH(GY_BINARY_INT_S, name, e) GY_BINARY_INT_WIDE(GY_BINARY_INT_S, name, e) \
  GY_V(GY_BINARY_INT_EACH(GY_BINARY_INT_V, name, e) GY_BINARY_INT_WIDE(GY_BINARY_INT_P, name, e))
//% gy_minimum
// Of equals, which differ if they are zeros, the second, as the machine's own instruction has it.
// Folds pass what they gathered first: gcc's value numbering doubles its time with each link of a
// chain in which that operand is the one tested for NaN.
GY_BINARY_FLOAT(gy_minimum, (((b <= a) | (b != b)) ? b : a))
GY_BINARY_INT(gy_minimum, (a < b ? a : b))
GY_FN sbool gy_minimum(sbool a, sbool b) { return a & b; }
GY_V(GY_FN vbool gy_minimum(vbool a, vbool b) { return a & b; })
//% gy_maximum
GY_BINARY_FLOAT(gy_maximum, (((b >= a) | (b != b)) ? b : a))
GY_BINARY_INT(gy_maximum, (a > b ? a : b))
GY_FN sbool gy_maximum(sbool a, sbool b) { return a | b; }
GY_V(GY_FN vbool gy_maximum(vbool a, vbool b) { return a | b; })
//% gy_clamp
template <class T> GY_FN T gy_clamp(T x, T lo, T hi) { return gy_minimum(gy_maximum(x, lo), hi); }
//% gy_copysign
GY_FN sf32 gy_copysign(sf32 a, sf32 b) { return gy_float((gy_bits(a) & 0x7fffffff) | (gy_bits(b) & ~0x7fffffff)); }
GY_FN sf64 gy_copysign(sf64 a, sf64 b) {
  return gy_float((gy_bits(a) & 0x7fffffffffffffff) | (gy_bits(b) & ~0x7fffffffffffffff));
}
#if GY_VEC
GY_FN vf32 gy_copysign(vf32 a, vf32 b) { return (vf32)(((vi32)a & 0x7fffffff) | ((vi32)b & ~0x7fffffff)); }
GY_FN gy_hf64 gy_copysign(gy_hf64 a, gy_hf64 b) {
  return (gy_hf64)(((gy_hi64)a & 0x7fffffffffffffff) | ((gy_hi64)b & ~0x7fffffffffffffff));
}
GY_FN vf64 gy_copysign(vf64 a, vf64 b) { return vf64{gy_copysign(a.lo, b.lo), gy_copysign(a.hi, b.hi)}; }
#endif
//% gy_signbit
#define GY_X(n) GY_FN sbool gy_signbit(s##n a) { return a < 0; } GY_V(GY_FN vbool gy_signbit(v##n a) { return gy_mask(a < 0); })
GY_X(i8) GY_X(i16) GY_X(i32)
#undef GY_X
#define GY_X(n) GY_FN sbool gy_signbit(s##n) { return false; } GY_V(GY_FN vbool gy_signbit(v##n) { return vbool{}; })
GY_X(u8) GY_X(u16) GY_X(u32) GY_X(u64)
#undef GY_X
GY_FN sbool gy_signbit(si64 a) { return a < 0; }
GY_V(GY_FN vbool gy_signbit(vi64 a) { return gy_mask(a.lo < 0, a.hi < 0); })
GY_FN sbool gy_signbit(sf32 a) { return gy_bits(a) < 0; }
GY_FN sbool gy_signbit(sf64 a) { return gy_bits(a) < 0; }
GY_V(GY_FN vbool gy_signbit(vf32 a) { return gy_signbit(gy_bits(a)); })
GY_V(GY_FN vbool gy_signbit(vf64 a) { return gy_signbit(gy_bits(a)); })
//% GY_TEST_FLOAT
#define GY_TEST_FLOAT(name, e32, e64) \
  GY_FN sbool name(sf32 a) { typedef si32 I __attribute__((unused)); return e32; } \
  GY_FN sbool name(sf64 a) { typedef si64 I __attribute__((unused)); return e64; } \
  GY_V(GY_FN vbool name(vf32 a) { typedef vi32 I __attribute__((unused)); return gy_mask(e32); } \
  GY_FN gy_hi64 name##_h(gy_hf64 a) { typedef gy_hi64 I __attribute__((unused)); return e64; } \
  GY_FN gy_wbool name(vf64 a) { return gy_wide_mask(name##_h(a.lo), name##_h(a.hi)); })
//% gy_isnan
GY_TEST_FLOAT(gy_isnan, a != a, a != a)
//% gy_isinf
GY_TEST_FLOAT(gy_isinf, (gy_bits(a) & 0x7fffffff) == I{} + 0x7f800000, (gy_bits(a) & 0x7fffffffffffffff) == I{} + 0x7ff0000000000000)
//% gy_isfinite
GY_TEST_FLOAT(gy_isfinite, (gy_bits(a) & 0x7f800000) != I{} + 0x7f800000, (gy_bits(a) & 0x7ff0000000000000) != I{} + 0x7ff0000000000000)
