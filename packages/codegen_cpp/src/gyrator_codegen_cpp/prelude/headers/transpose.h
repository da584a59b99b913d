//% gy_transpose
// Butterflies at distances 1, 2, 4, 8; named values, because arrays of vectors stay in memory at -O2.
#if GY_ISA == 512
#define GY_SHUF_1_LO(a, b) __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define GY_SHUF_1_HI(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define GY_SHUF_2_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define GY_SHUF_2_HI(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define GY_SHUF_4_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define GY_SHUF_4_HI(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define GY_SHUF_8_LO(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define GY_SHUF_8_HI(a, b) __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
template <class T> GY_FN void gy_transpose(T &r0, T &r1, T &r2, T &r3, T &r4, T &r5, T &r6, T &r7, T &r8, T &r9, T &r10, T &r11, T &r12, T &r13, T &r14, T &r15) {
  T t0_0 = GY_SHUF_1_LO(r0, r1), t0_1 = GY_SHUF_1_HI(r0, r1);
  T t0_2 = GY_SHUF_1_LO(r2, r3), t0_3 = GY_SHUF_1_HI(r2, r3);
  T t0_4 = GY_SHUF_1_LO(r4, r5), t0_5 = GY_SHUF_1_HI(r4, r5);
  T t0_6 = GY_SHUF_1_LO(r6, r7), t0_7 = GY_SHUF_1_HI(r6, r7);
  T t0_8 = GY_SHUF_1_LO(r8, r9), t0_9 = GY_SHUF_1_HI(r8, r9);
  T t0_10 = GY_SHUF_1_LO(r10, r11), t0_11 = GY_SHUF_1_HI(r10, r11);
  T t0_12 = GY_SHUF_1_LO(r12, r13), t0_13 = GY_SHUF_1_HI(r12, r13);
  T t0_14 = GY_SHUF_1_LO(r14, r15), t0_15 = GY_SHUF_1_HI(r14, r15);
  T t1_0 = GY_SHUF_2_LO(t0_0, t0_2), t1_2 = GY_SHUF_2_HI(t0_0, t0_2);
  T t1_1 = GY_SHUF_2_LO(t0_1, t0_3), t1_3 = GY_SHUF_2_HI(t0_1, t0_3);
  T t1_4 = GY_SHUF_2_LO(t0_4, t0_6), t1_6 = GY_SHUF_2_HI(t0_4, t0_6);
  T t1_5 = GY_SHUF_2_LO(t0_5, t0_7), t1_7 = GY_SHUF_2_HI(t0_5, t0_7);
  T t1_8 = GY_SHUF_2_LO(t0_8, t0_10), t1_10 = GY_SHUF_2_HI(t0_8, t0_10);
  T t1_9 = GY_SHUF_2_LO(t0_9, t0_11), t1_11 = GY_SHUF_2_HI(t0_9, t0_11);
  T t1_12 = GY_SHUF_2_LO(t0_12, t0_14), t1_14 = GY_SHUF_2_HI(t0_12, t0_14);
  T t1_13 = GY_SHUF_2_LO(t0_13, t0_15), t1_15 = GY_SHUF_2_HI(t0_13, t0_15);
  T t2_0 = GY_SHUF_4_LO(t1_0, t1_4), t2_4 = GY_SHUF_4_HI(t1_0, t1_4);
  T t2_1 = GY_SHUF_4_LO(t1_1, t1_5), t2_5 = GY_SHUF_4_HI(t1_1, t1_5);
  T t2_2 = GY_SHUF_4_LO(t1_2, t1_6), t2_6 = GY_SHUF_4_HI(t1_2, t1_6);
  T t2_3 = GY_SHUF_4_LO(t1_3, t1_7), t2_7 = GY_SHUF_4_HI(t1_3, t1_7);
  T t2_8 = GY_SHUF_4_LO(t1_8, t1_12), t2_12 = GY_SHUF_4_HI(t1_8, t1_12);
  T t2_9 = GY_SHUF_4_LO(t1_9, t1_13), t2_13 = GY_SHUF_4_HI(t1_9, t1_13);
  T t2_10 = GY_SHUF_4_LO(t1_10, t1_14), t2_14 = GY_SHUF_4_HI(t1_10, t1_14);
  T t2_11 = GY_SHUF_4_LO(t1_11, t1_15), t2_15 = GY_SHUF_4_HI(t1_11, t1_15);
  T t3_0 = GY_SHUF_8_LO(t2_0, t2_8), t3_8 = GY_SHUF_8_HI(t2_0, t2_8);
  T t3_1 = GY_SHUF_8_LO(t2_1, t2_9), t3_9 = GY_SHUF_8_HI(t2_1, t2_9);
  T t3_2 = GY_SHUF_8_LO(t2_2, t2_10), t3_10 = GY_SHUF_8_HI(t2_2, t2_10);
  T t3_3 = GY_SHUF_8_LO(t2_3, t2_11), t3_11 = GY_SHUF_8_HI(t2_3, t2_11);
  T t3_4 = GY_SHUF_8_LO(t2_4, t2_12), t3_12 = GY_SHUF_8_HI(t2_4, t2_12);
  T t3_5 = GY_SHUF_8_LO(t2_5, t2_13), t3_13 = GY_SHUF_8_HI(t2_5, t2_13);
  T t3_6 = GY_SHUF_8_LO(t2_6, t2_14), t3_14 = GY_SHUF_8_HI(t2_6, t2_14);
  T t3_7 = GY_SHUF_8_LO(t2_7, t2_15), t3_15 = GY_SHUF_8_HI(t2_7, t2_15);
  r0 = t3_0;
  r1 = t3_1;
  r2 = t3_2;
  r3 = t3_3;
  r4 = t3_4;
  r5 = t3_5;
  r6 = t3_6;
  r7 = t3_7;
  r8 = t3_8;
  r9 = t3_9;
  r10 = t3_10;
  r11 = t3_11;
  r12 = t3_12;
  r13 = t3_13;
  r14 = t3_14;
  r15 = t3_15;
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
//% gy_turn
// Vectors of which lane k is read along the row at `from + k * step`: `rows` of them go to `to`.
#if GY_VEC
#define GY_READ(n) auto r##n = gy_vload(from + n * step + k);
#define GY_WRITE(n) gy_store(to + GY_LANES * (k + n), r##n);
template <class P, class T> GY_FN void gy_turn(const P *from, si64 step, T *to, si64 rows, si64 live) {
  si64 k = 0;
  if constexpr (sizeof(T) == 4)
    if (live == GY_LANES)
      for (; k + GY_LANES <= rows; k += GY_LANES) {
        GY_EACH_LANE(GY_READ)
        GY_TURN_LANES
        GY_EACH_LANE(GY_WRITE)
      }
  for (si64 lane = 0; lane < live; lane++)
    for (si64 j = k; j < rows; j++) to[GY_LANES * j + lane] = gy_sload(from + lane * step + j);
}
#undef GY_READ
#undef GY_WRITE
#endif
