//% GY_COMPARE
#define GY_COMPARE_S(name, op, n) GY_FN sbool name(s##n a, s##n b) { return a op b; }
#define GY_COMPARE_V(name, op, n) GY_FN vbool name(v##n a, v##n b) { return gy_mask(a op b); }
#define GY_COMPARE_P(name, op, n) GY_FN gy_wbool name(v##n a, v##n b) { return gy_wide_mask(a.lo op b.lo, a.hi op b.hi); }
#define GY_COMPARE_EACH(X, name, op) X(name, op, i8) X(name, op, i16) X(name, op, i32) X(name, op, u8) X(name, op, u16) X(name, op, u32) X(name, op, f32)
#define GY_COMPARE_WIDE(X, name, op) X(name, op, f64) X(name, op, i64) X(name, op, u64)
#define GY_COMPARE(name, op, mask) \
  GY_COMPARE_EACH(GY_COMPARE_S, name, op) GY_COMPARE_WIDE(GY_COMPARE_S, name, op) GY_COMPARE_S(name, op, bool) \
  GY_V(GY_COMPARE_EACH(GY_COMPARE_V, name, op) GY_COMPARE_WIDE(GY_COMPARE_P, name, op) \
  GY_FN vbool name(vbool a, vbool b) { return mask; })
//% gy_lt
GY_COMPARE(gy_lt, <, ~a & b)
//% gy_le
GY_COMPARE(gy_le, <=, ~a | b)
//% gy_gt
GY_COMPARE(gy_gt, >, a & ~b)
//% gy_ge
GY_COMPARE(gy_ge, >=, a | ~b)
//% gy_eq
GY_COMPARE(gy_eq, ==, ~(a ^ b))
//% gy_ne
GY_COMPARE(gy_ne, !=, a ^ b)
