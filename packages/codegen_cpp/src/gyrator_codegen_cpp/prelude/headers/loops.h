//% gy_floor_div
GY_FN si64 gy_floor_div(si64 a, si64 b) {
  if (b == -1) return (si64)(0 - (su64)a);  // the least integer would end the process
  const si64 q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
//% gy_floor_mod
GY_FN si64 gy_floor_mod(si64 a, si64 b) {
  const si64 r = a % (b == -1 ? 1 : b);
  return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0);
}
//% gy_least
GY_FN si64 gy_least(si64 a, si64 b) { return a < b ? a : b; }
//% gy_scratch
struct gy_scratch {
  void *p;
  explicit gy_scratch(si64 bytes) : p(__builtin_malloc(bytes > 0 ? (bytes + 127) : 128)) {}
  ~gy_scratch() { __builtin_free(p); }
  void *aligned() const { return (void *)(((su64)p + 63) & ~63UL); }
};
//% GY_INDEPENDENT
// Before a loop whose iterations do not depend on each other.
#if defined(__clang__)
#define GY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define GY_INDEPENDENT _Pragma("GCC ivdep")
#endif
