typedef long long gy_i64;
typedef int gy_i32;
typedef unsigned char gy_u8;
typedef struct { gy_i32 min, extent, stride; unsigned flags; } gy_dim;
typedef struct { gy_u8 code, bits; unsigned short lanes; } gy_type;
// halide_buffer_t of HalideRuntime.h.
typedef struct {
  unsigned long long device;
  const void *interface;
  gy_u8 *host;
  unsigned long long flags;
  gy_type type;
  gy_i32 dimensions;
  gy_dim *dim;
  void *padding;
} gy_buffer;
#define GY_OWN extern "C" __attribute__((visibility("hidden")))
typedef int (*gy_task)(void *, int, gy_u8 *);
extern "C" int posix_memalign(void **, unsigned long, unsigned long);
extern "C" void free(void *);
// What Halide's code asks of its runtime. The user's context says whether threads share the work.
GY_OWN void *halide_malloc(void *, unsigned long size) {
  void *made = nullptr;
  return posix_memalign(&made, 128, size) ? nullptr : made;
}
GY_OWN void halide_free(void *, void *memory) { free(memory); }
GY_OWN int halide_do_par_for(void *context, gy_task task, int least, int count, gy_u8 *closure) {
  int status = 0;
#pragma omp parallel for if (context)
  for (int k = least; k < least + count; k++)
    if (int failed = task(context, k, closure)) __atomic_store_n(&status, failed, __ATOMIC_RELAXED);
  return status;
}
GY_OWN int halide_error_out_of_memory(void *) { return -11; }
static gy_i64 gy_mod(gy_i64 a, gy_i64 b) { return b == 0 ? 0 : (a % b + b) % b; }
static gy_i64 gy_div(gy_i64 a, gy_i64 b) { return b == 0 ? 0 : (a - gy_mod(a, b)) / b; }
// Elements that Halide's 32-bit coordinates reach.
static const gy_i64 gy_most = 0x7fffffff;
static gy_u8 gy_nothing[64];
// A copy of what a kernel reads, where it also writes there.
struct gy_copy {
  void *made = nullptr;
  void *of(void *from, gy_i64 bytes, bool wanted) {
    if (!wanted || !from || bytes <= 0 || posix_memalign(&made, 128, bytes + 64)) return from;
    __builtin_memcpy(made, from, bytes);
    return made;
  }
  ~gy_copy() { free(made); }
};
static gy_buffer gy_view(void *host, gy_i64 offset, int size, gy_u8 code, gy_dim *dim, int rank) {
  gy_u8 *at = host ? (gy_u8 *)host + offset * size : gy_nothing;
  return {0, nullptr, at, 0, {code, (gy_u8)(8 * size), 1}, rank, dim, nullptr};
}
