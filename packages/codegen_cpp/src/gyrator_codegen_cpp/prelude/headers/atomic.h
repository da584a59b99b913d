//% GY_ATOMIC
// A compare-and-swap loop on the element's bits: W is an unsigned integer of its size.
#define GY_ATOMIC(name, n, W, combine) \
  GY_FN void name(s##n *p, s##n x) { \
    W old = __atomic_load_n((W *)p, __ATOMIC_RELAXED), next; \
    do { \
      s##n a, b = x; \
      __builtin_memcpy(&a, &old, sizeof a); \
      a = combine(a, b); \
      __builtin_memcpy(&next, &a, sizeof a); \
    } while (!__atomic_compare_exchange_n((W *)p, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
  }
#define GY_ATOMIC_HALF(name, combine) \
  GY_FN void name(gy_bf16 *p, sf32 x) { \
    su16 old = __atomic_load_n(&p->bits, __ATOMIC_RELAXED), next; \
    do next = (su16)gy_bf16_bits(combine(gy_bf16_value((su32)old), x)); \
    while (!__atomic_compare_exchange_n(&p->bits, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
  } \
  GY_FN void name(gy_f16 *p, sf32 x) { \
    su16 old = __atomic_load_n(&p->bits, __ATOMIC_RELAXED), next; \
    do next = (su16)gy_f16_bits(combine(gy_f16_value((su32)old), x)); \
    while (!__atomic_compare_exchange_n(&p->bits, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
  }
#define GY_ATOMIC_ALL(name, combine) \
  GY_ATOMIC(name, f32, su32, combine) GY_ATOMIC(name, f64, su64, combine) GY_ATOMIC(name, i8, su8, combine) \
  GY_ATOMIC(name, i16, su16, combine) GY_ATOMIC(name, i32, su32, combine) GY_ATOMIC(name, i64, su64, combine) \
  GY_ATOMIC(name, u8, su8, combine) GY_ATOMIC(name, u16, su16, combine) GY_ATOMIC(name, u32, su32, combine) \
  GY_ATOMIC(name, u64, su64, combine) GY_ATOMIC_HALF(name, combine)
//% gy_atomic_add : gy_bf16_bits gy_f16_bits
#define GY_X(n) GY_FN void gy_atomic_add(s##n *p, s##n x) { __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
GY_INTS(GY_X)
#undef GY_X
GY_ATOMIC(gy_atomic_add, f32, su32, gy_add)
GY_ATOMIC(gy_atomic_add, f64, su64, gy_add)
GY_ATOMIC_HALF(gy_atomic_add, gy_add)
//% gy_atomic_min : gy_bf16_bits gy_f16_bits
GY_ATOMIC_ALL(gy_atomic_min, gy_minimum)
//% gy_atomic_max : gy_bf16_bits gy_f16_bits
GY_ATOMIC_ALL(gy_atomic_max, gy_maximum)
//% gy_atomic_mul : gy_bf16_bits gy_f16_bits
GY_ATOMIC_ALL(gy_atomic_mul, gy_mul)
