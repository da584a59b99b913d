//% gy_transpose
// Of 16 lanes by pairs of lanes, of pairs and of quarters, each one instruction without a table; of fewer by butterflies at
// distances 1, 2, 4. Named values, because arrays of vectors stay in memory at -O2.
#if GY_ISA == 512
#define GY_SHUF_1_LO(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define GY_SHUF_1_HI(a, b) __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define GY_SHUF_2_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define GY_SHUF_2_HI(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define GY_SHUF_4_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define GY_SHUF_4_HI(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
template <class T> GY_FN void gy_transpose(T &r0, T &r1, T &r2, T &r3, T &r4, T &r5, T &r6, T &r7, T &r8, T &r9, T &r10, T &r11, T &r12, T &r13, T &r14, T &r15) {
  T t0 = GY_SHUF_1_LO(r0, r1), t1 = GY_SHUF_1_HI(r0, r1);
  T t2 = GY_SHUF_1_LO(r2, r3), t3 = GY_SHUF_1_HI(r2, r3);
  T t4 = GY_SHUF_1_LO(r4, r5), t5 = GY_SHUF_1_HI(r4, r5);
  T t6 = GY_SHUF_1_LO(r6, r7), t7 = GY_SHUF_1_HI(r6, r7);
  T t8 = GY_SHUF_1_LO(r8, r9), t9 = GY_SHUF_1_HI(r8, r9);
  T t10 = GY_SHUF_1_LO(r10, r11), t11 = GY_SHUF_1_HI(r10, r11);
  T t12 = GY_SHUF_1_LO(r12, r13), t13 = GY_SHUF_1_HI(r12, r13);
  T t14 = GY_SHUF_1_LO(r14, r15), t15 = GY_SHUF_1_HI(r14, r15);
  T u0 = GY_SHUF_2_LO(t0, t2), u1 = GY_SHUF_2_HI(t0, t2);
  T u2 = GY_SHUF_2_LO(t1, t3), u3 = GY_SHUF_2_HI(t1, t3);
  T u4 = GY_SHUF_2_LO(t4, t6), u5 = GY_SHUF_2_HI(t4, t6);
  T u6 = GY_SHUF_2_LO(t5, t7), u7 = GY_SHUF_2_HI(t5, t7);
  T u8 = GY_SHUF_2_LO(t8, t10), u9 = GY_SHUF_2_HI(t8, t10);
  T u10 = GY_SHUF_2_LO(t9, t11), u11 = GY_SHUF_2_HI(t9, t11);
  T u12 = GY_SHUF_2_LO(t12, t14), u13 = GY_SHUF_2_HI(t12, t14);
  T u14 = GY_SHUF_2_LO(t13, t15), u15 = GY_SHUF_2_HI(t13, t15);
  T v0 = GY_SHUF_4_LO(u0, u4), v4 = GY_SHUF_4_HI(u0, u4);
  T v1 = GY_SHUF_4_LO(u1, u5), v5 = GY_SHUF_4_HI(u1, u5);
  T v2 = GY_SHUF_4_LO(u2, u6), v6 = GY_SHUF_4_HI(u2, u6);
  T v3 = GY_SHUF_4_LO(u3, u7), v7 = GY_SHUF_4_HI(u3, u7);
  T v8 = GY_SHUF_4_LO(u8, u12), v12 = GY_SHUF_4_HI(u8, u12);
  T v9 = GY_SHUF_4_LO(u9, u13), v13 = GY_SHUF_4_HI(u9, u13);
  T v10 = GY_SHUF_4_LO(u10, u14), v14 = GY_SHUF_4_HI(u10, u14);
  T v11 = GY_SHUF_4_LO(u11, u15), v15 = GY_SHUF_4_HI(u11, u15);
  r0 = GY_SHUF_4_LO(v0, v8);
  r8 = GY_SHUF_4_HI(v0, v8);
  r4 = GY_SHUF_4_LO(v4, v12);
  r12 = GY_SHUF_4_HI(v4, v12);
  r1 = GY_SHUF_4_LO(v1, v9);
  r9 = GY_SHUF_4_HI(v1, v9);
  r5 = GY_SHUF_4_LO(v5, v13);
  r13 = GY_SHUF_4_HI(v5, v13);
  r2 = GY_SHUF_4_LO(v2, v10);
  r10 = GY_SHUF_4_HI(v2, v10);
  r6 = GY_SHUF_4_LO(v6, v14);
  r14 = GY_SHUF_4_HI(v6, v14);
  r3 = GY_SHUF_4_LO(v3, v11);
  r11 = GY_SHUF_4_HI(v3, v11);
  r7 = GY_SHUF_4_LO(v7, v15);
  r15 = GY_SHUF_4_HI(v7, v15);
}
#elif GY_ISA == 256
#define GY_SHUF_1_LO(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define GY_SHUF_1_HI(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define GY_SHUF_2_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define GY_SHUF_2_HI(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define GY_SHUF_4_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define GY_SHUF_4_HI(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
template <class T> GY_FN void gy_transpose(T &r0, T &r1, T &r2, T &r3, T &r4, T &r5, T &r6, T &r7) {
  T t0_0 = GY_SHUF_1_LO(r0, r1), t0_1 = GY_SHUF_1_HI(r0, r1);
  T t0_2 = GY_SHUF_1_LO(r2, r3), t0_3 = GY_SHUF_1_HI(r2, r3);
  T t0_4 = GY_SHUF_1_LO(r4, r5), t0_5 = GY_SHUF_1_HI(r4, r5);
  T t0_6 = GY_SHUF_1_LO(r6, r7), t0_7 = GY_SHUF_1_HI(r6, r7);
  T t1_0 = GY_SHUF_2_LO(t0_0, t0_2), t1_2 = GY_SHUF_2_HI(t0_0, t0_2);
  T t1_1 = GY_SHUF_2_LO(t0_1, t0_3), t1_3 = GY_SHUF_2_HI(t0_1, t0_3);
  T t1_4 = GY_SHUF_2_LO(t0_4, t0_6), t1_6 = GY_SHUF_2_HI(t0_4, t0_6);
  T t1_5 = GY_SHUF_2_LO(t0_5, t0_7), t1_7 = GY_SHUF_2_HI(t0_5, t0_7);
  T t2_0 = GY_SHUF_4_LO(t1_0, t1_4), t2_4 = GY_SHUF_4_HI(t1_0, t1_4);
  T t2_1 = GY_SHUF_4_LO(t1_1, t1_5), t2_5 = GY_SHUF_4_HI(t1_1, t1_5);
  T t2_2 = GY_SHUF_4_LO(t1_2, t1_6), t2_6 = GY_SHUF_4_HI(t1_2, t1_6);
  T t2_3 = GY_SHUF_4_LO(t1_3, t1_7), t2_7 = GY_SHUF_4_HI(t1_3, t1_7);
  r0 = t2_0;
  r1 = t2_1;
  r2 = t2_2;
  r3 = t2_3;
  r4 = t2_4;
  r5 = t2_5;
  r6 = t2_6;
  r7 = t2_7;
}
#elif GY_LANES == 4
#define GY_SHUF_1_LO(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define GY_SHUF_1_HI(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#define GY_SHUF_2_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define GY_SHUF_2_HI(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
template <class T> GY_FN void gy_transpose(T &r0, T &r1, T &r2, T &r3) {
  T t0_0 = GY_SHUF_1_LO(r0, r1), t0_1 = GY_SHUF_1_HI(r0, r1);
  T t0_2 = GY_SHUF_1_LO(r2, r3), t0_3 = GY_SHUF_1_HI(r2, r3);
  r0 = GY_SHUF_2_LO(t0_0, t0_2);
  r1 = GY_SHUF_2_LO(t0_1, t0_3);
  r2 = GY_SHUF_2_HI(t0_0, t0_2);
  r3 = GY_SHUF_2_HI(t0_1, t0_3);
}
#endif
//% GY_EACH_LANE GY_TURN_LANES
#if GY_ISA == 512
#define GY_EACH_LANE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define GY_TURN_LANES gy_transpose(r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15);
#elif GY_ISA == 256
#define GY_EACH_LANE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define GY_TURN_LANES gy_transpose(r0, r1, r2, r3, r4, r5, r6, r7);
#elif GY_LANES == 4
#define GY_EACH_LANE(X) X(0) X(1) X(2) X(3)
#define GY_TURN_LANES gy_transpose(r0, r1, r2, r3);
#else
#define GY_EACH_LANE(X) X(0)
#define GY_TURN_LANES
#endif
//% gy_transpose_64
// Of half a vector's lanes of 64 bits: by pairs of lanes, then of pairs.
#if GY_ISA == 512
#define GY_SHUF_64(a, b, x, y) \
  __builtin_shufflevector(a, b, x, y, x + 4, y + 4, x + 8, y + 8, x + 12, y + 12)
GY_FN void gy_transpose_64(gy_hi64 &r0, gy_hi64 &r1, gy_hi64 &r2, gy_hi64 &r3, gy_hi64 &r4, gy_hi64 &r5, gy_hi64 &r6, gy_hi64 &r7) {
#define GY_PAIRS(a, b, i) __builtin_shufflevector(a, b, i, i + 8, i + 2, i + 10, i + 4, i + 12, i + 6, i + 14)
  gy_hi64 t0 = GY_PAIRS(r0, r1, 0), t1 = GY_PAIRS(r0, r1, 1), t2 = GY_PAIRS(r2, r3, 0), t3 = GY_PAIRS(r2, r3, 1);
  gy_hi64 t4 = GY_PAIRS(r4, r5, 0), t5 = GY_PAIRS(r4, r5, 1), t6 = GY_PAIRS(r6, r7, 0), t7 = GY_PAIRS(r6, r7, 1);
  gy_hi64 u0 = GY_SHUF_64(t0, t2, 0, 1), u2 = GY_SHUF_64(t0, t2, 2, 3), u1 = GY_SHUF_64(t1, t3, 0, 1), u3 = GY_SHUF_64(t1, t3, 2, 3);
  gy_hi64 u4 = GY_SHUF_64(t4, t6, 0, 1), u6 = GY_SHUF_64(t4, t6, 2, 3), u5 = GY_SHUF_64(t5, t7, 0, 1), u7 = GY_SHUF_64(t5, t7, 2, 3);
  r0 = GY_SHUF_64(u0, u4, 0, 1), r4 = GY_SHUF_64(u0, u4, 2, 3), r1 = GY_SHUF_64(u1, u5, 0, 1), r5 = GY_SHUF_64(u1, u5, 2, 3);
  r2 = GY_SHUF_64(u2, u6, 0, 1), r6 = GY_SHUF_64(u2, u6, 2, 3), r3 = GY_SHUF_64(u3, u7, 0, 1), r7 = GY_SHUF_64(u3, u7, 2, 3);
#undef GY_PAIRS
}
#undef GY_SHUF_64
#define GY_EACH_WIDE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define GY_TURN_WIDE gy_transpose_64(r0, r1, r2, r3, r4, r5, r6, r7);
#elif GY_ISA == 256
GY_FN void gy_transpose_64(gy_hi64 &r0, gy_hi64 &r1, gy_hi64 &r2, gy_hi64 &r3) {
  gy_hi64 t0 = __builtin_shufflevector(r0, r1, 0, 4, 2, 6), t1 = __builtin_shufflevector(r0, r1, 1, 5, 3, 7);
  gy_hi64 t2 = __builtin_shufflevector(r2, r3, 0, 4, 2, 6), t3 = __builtin_shufflevector(r2, r3, 1, 5, 3, 7);
  r0 = __builtin_shufflevector(t0, t2, 0, 1, 4, 5);
  r1 = __builtin_shufflevector(t1, t3, 0, 1, 4, 5);
  r2 = __builtin_shufflevector(t0, t2, 2, 3, 6, 7);
  r3 = __builtin_shufflevector(t1, t3, 2, 3, 6, 7);
}
#define GY_EACH_WIDE(X) X(0) X(1) X(2) X(3)
#define GY_TURN_WIDE gy_transpose_64(r0, r1, r2, r3);
#elif GY_VEC
GY_FN void gy_transpose_64(gy_hi64 &r0, gy_hi64 &r1) {
  gy_hi64 t = __builtin_shufflevector(r0, r1, 0, 2);
  r1 = __builtin_shufflevector(r0, r1, 1, 3);
  r0 = t;
}
#define GY_EACH_WIDE(X) X(0) X(1)
#define GY_TURN_WIDE gy_transpose_64(r0, r1);
#endif
//% gy_turn
// Vectors of which lane k is read along the row at `from + k * step`: `rows` of them go to `to`.
#if GY_VEC
#define GY_READ(n) auto r##n = gy_vload(from + n * step + k);
#define GY_WRITE(n) gy_store(to + GY_LANES * (k + n), r##n);
// Two elements of 16 bits are turned as one of 32.
#define GY_READ_PAIRS(n) auto r##n = gy_ldu<vu32>(from + n * step + k);
#define GY_WRITE_PAIRS(n) \
  gy_stu(to + GY_LANES * (k + 2 * n), gy_pack16(r##n & 0xffff)); \
  gy_stu(to + GY_LANES * (k + 2 * n + 1), gy_pack16(r##n >> 16));
// Bytes are turned as 32 bits.
#define GY_READ_BYTES(n) auto r##n = gy_widen(gy_ldu<vi8>(from + n * step + k));
#define GY_WRITE_BYTES(n) gy_stu(to + GY_LANES * (k + n), gy_narrow(r##n));
#define GY_READ_WIDE(n) auto r##n = gy_ldu<gy_hi64>(from + (first + n) * step + k);
#define GY_WRITE_WIDE(n) gy_stu(to + GY_LANES * (k + n) + first, r##n);
template <class P, class T> GY_FN void gy_turn(const P *from, si64 step, T *to, si64 rows, si64 live) {
  si64 k = 0, turned = GY_LANES;
  if constexpr (sizeof(T) == 4)
    if (live == GY_LANES)
      for (; k + GY_LANES <= rows; k += GY_LANES) {
        GY_EACH_LANE(GY_READ)
        GY_TURN_LANES
        GY_EACH_LANE(GY_WRITE)
      }
  if constexpr (sizeof(T) == 2 && sizeof(P) == 2)
    if (live == GY_LANES)
      for (; k + 2 * GY_LANES <= rows; k += 2 * GY_LANES) {
        GY_EACH_LANE(GY_READ_PAIRS)
        GY_TURN_LANES
        GY_EACH_LANE(GY_WRITE_PAIRS)
      }
  if constexpr (sizeof(T) == 1 && sizeof(P) == 1)
    if (live == GY_LANES)
      for (; k + GY_LANES <= rows; k += GY_LANES) {
        GY_EACH_LANE(GY_READ_BYTES)
        GY_TURN_LANES
        GY_EACH_LANE(GY_WRITE_BYTES)
      }
  if constexpr (sizeof(T) == 8 && sizeof(P) == 8) {
    constexpr si64 half = GY_LANES / 2;
    turned = live / half * half;
    for (; k + half <= rows; k += half)
      for (si64 first = 0; first < turned; first += half) {
        GY_EACH_WIDE(GY_READ_WIDE)
        GY_TURN_WIDE
        GY_EACH_WIDE(GY_WRITE_WIDE)
      }
  }
  for (si64 lane = 0; lane < live; lane++)
    for (si64 j = lane < turned ? k : 0; j < rows; j++) to[GY_LANES * j + lane] = gy_sload(from + lane * step + j);
}
#undef GY_READ
#undef GY_WRITE
#undef GY_READ_PAIRS
#undef GY_WRITE_PAIRS
#undef GY_READ_BYTES
#undef GY_WRITE_BYTES
#undef GY_READ_WIDE
#undef GY_WRITE_WIDE
#endif
