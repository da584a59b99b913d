// The words of plans and their interpreter, generic over the values in registers: gyrunner.cpp runs
// plans over Python objects, standalone/executor.cpp over its own tensors.
//
// A plan is a flat array of 64-bit words (written only by encode.py), constants, and the initial
// values of integer slots.

#include <stddef.h>
#include <stdint.h>

namespace {

// The codes are shared with words.py; test_encode.py checks that the two lists agree.
enum Op : int64_t {
  OP_END = 0,
  OP_LOAD_INT = 1,  // slot, reg
  OP_EVAL = 2,      // slot, n, (code, operand) * n
  OP_LAUNCH = 3,    // release, n, pointers, sizes, then n launches
  OP_CALL_TUPLE = 4,  // dst, const fn, const args
  OP_CALL = 5,        // dst, const fn, const kwnames or -1, n, args
  OP_DROP = 6,        // reg
  OP_GET_ITEM = 7,    // dst, reg, index
  OP_RETURN = 8,      // n, args
  OP_MOVE = 9,        // dst, reg
  // function, const fn, n tensors, n numbers, then for each tensor: reg, ndim or -1, and unless
  // -1: dtype, element size, offset, sizes, strides; then the numbers
  OP_OPERATE = 10,
  OP_CONFORM = 11,   // reg, const fn, dtype, device type, index or -1, ndim, sizes, strides
  OP_SEPARATE = 12,  // const fn, n, m, n regs, m regs
};

// A launch: kernel, number, n buffers, n sizes, device launch, whether it may start before the
// previous one ends, (reg, slot of offset or -1) of each buffer, slots of sizes.
constexpr int64_t kLaunchHeader = 6;

enum ArgKind : int64_t { ARG_REG = 0, ARG_CONST = 1, ARG_INT = 2, ARG_INT_TUPLE = 3 };

enum ExprOp : int64_t {
  EXPR_ARG = 0,
  EXPR_CONST = 1,
  EXPR_ADD = 2,
  EXPR_SUB = 3,
  EXPR_MUL = 4,
  EXPR_FLOORDIV = 5,
  EXPR_MOD = 6,
  EXPR_MIN = 7,
  EXPR_MAX = 8,
  EXPR_EQ = 9,
  EXPR_NE = 10,
  EXPR_LT = 11,
  EXPR_LE = 12,
  EXPR_UNLESS = 13,  // pops a number; if it is 0, skips so many operations
  EXPR_SKIP = 14,    // skips so many operations
};

constexpr int kExprDepth = 64;  // program.py rejects deeper programs

using Kernel = int64_t (*)(void* const*, const int64_t*);

using DriverLaunch = int32_t (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, void*, void**, void**);
// `CUlaunchAttribute` and `CUlaunchConfig` of cuda.h.
struct LaunchAttribute {
  int32_t id;
  int32_t padding;
  int64_t value[8];
};
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned n_attributes;
};
using DriverLaunchWith = int32_t (*)(const LaunchConfig*, void*, void**, void**);
constexpr LaunchAttribute kOverlap = {6, 0, {1}};  // programmatic stream serialization is allowed

// A kernel to queue on a device, written by triton/launch.py and standalone/device.cpp. The driver
// takes sizes by address: the low bytes of a 64-bit size are the 32-bit one.
struct DeviceLaunch {
  DriverLaunch launch;
  DriverLaunchWith launch_with;  // null if the launch cannot start early
  int32_t (*stream)(int32_t device, void** stream);
  // Builds a function, or enters the device's context; returns 0, or -1 on failure. In the Python
  // runner it is a Python callback and needs the GIL.
  int64_t (*prepare)(const DeviceLaunch*, int64_t what);
  void* functions[2];  // for arguments that `divisors` divide, and for all others; null until built
  int64_t shared[2];
  int64_t threads;
  const int64_t* divisors;  // of buffers' addresses, then of sizes
  int64_t dimensions;
  const int64_t* grid[3];
  int64_t grid_length[3];
};
constexpr int64_t kEnterContext = 2;
constexpr int32_t kInvalidContext = 201;
constexpr int kMoreParameters = 4;  // null pointers: scratch parameters of Triton kernels

enum class Number { kFine, kBeyondRange, kZeroDivisor };

inline Number apply(int64_t code, int64_t a, int64_t b, int64_t* out) {
  const auto unless = [](bool beyond) { return beyond ? Number::kBeyondRange : Number::kFine; };
  switch (code) {
    case EXPR_ADD:
      return unless(__builtin_add_overflow(a, b, out));
    case EXPR_SUB:
      return unless(__builtin_sub_overflow(a, b, out));
    case EXPR_MUL:
      return unless(__builtin_mul_overflow(a, b, out));
    case EXPR_MIN:
      *out = a < b ? a : b;
      return Number::kFine;
    case EXPR_MAX:
      *out = a > b ? a : b;
      return Number::kFine;
    case EXPR_EQ:
      *out = a == b;
      return Number::kFine;
    case EXPR_NE:
      *out = a != b;
      return Number::kFine;
    case EXPR_LT:
      *out = a < b;
      return Number::kFine;
    case EXPR_LE:
      *out = a <= b;
      return Number::kFine;
    default:
      break;
  }
  if (b == 0) return Number::kZeroDivisor;
  if (b == -1) {
    if (code != EXPR_MOD) return unless(__builtin_sub_overflow(int64_t(0), a, out));
    *out = 0;
    return Number::kFine;
  }
  const int64_t quotient = a / b, rest = a % b;
  const bool below = rest != 0 && ((rest < 0) != (b < 0));
  *out = code == EXPR_FLOORDIV ? quotient - below : rest + (below ? b : 0);
  return Number::kFine;
}

inline Number evaluate(const int64_t* pc, int64_t n, const int64_t* ints, int64_t* out) {
  int64_t stack[kExprDepth];
  int top = 0;
  for (const int64_t* end = pc + 2 * n; pc < end; pc += 2) {
    if (pc[0] == EXPR_ARG) {
      stack[top++] = ints[pc[1]];
    } else if (pc[0] == EXPR_CONST) {
      stack[top++] = pc[1];
    } else if (pc[0] == EXPR_SKIP || pc[0] == EXPR_UNLESS) {
      if (pc[0] == EXPR_SKIP || !stack[--top]) pc += 2 * pc[1];
    } else {
      top--;
      const Number found = apply(pc[0], stack[top - 1], stack[top], &stack[top - 1]);
      if (found != Number::kFine) return found;
    }
  }
  *out = stack[0];
  return Number::kFine;
}

// Queues a kernel; returns 0, the driver's error, or -1 after a failure recorded by `on` or `prepare`.
template <class On>
int64_t launch_device(On& on, const DeviceLaunch* d, void** buffers, int64_t n_buffers,
                      int64_t* sizes, int64_t n_sizes, bool overlap) {
  int64_t grid[3] = {1, 1, 1};
  for (int64_t k = 0; k < d->dimensions; k++) {
    const Number found = evaluate(d->grid[k], d->grid_length[k], sizes, &grid[k]);
    if (found != Number::kFine) {
      on.no_number(found);
      return -1;
    }
    if (grid[k] <= 0) return 0;
  }
  typename On::template Array<void*> parameters(n_buffers + n_sizes + kMoreParameters);
  if (!parameters.data) return -1;
  void* none = nullptr;
  void** p = parameters.data;
  const int64_t* divisor = d->divisors;
  bool divided = true;
  for (int64_t k = 0; k < n_buffers; k++, divisor++) {
    divided &= reinterpret_cast<uintptr_t>(buffers[k]) % uintptr_t(*divisor) == 0;
    *p++ = &buffers[k];
  }
  for (int64_t k = 0; k < n_sizes; k++, divisor++) {
    divided &= sizes[k] % *divisor == 0;
    *p++ = &sizes[k];
  }
  for (int k = 0; k < kMoreParameters; k++) *p++ = &none;
  const int which = !divided;
  void* function = __atomic_load_n(&d->functions[which], __ATOMIC_ACQUIRE);
  if (!function) {
    if (const int64_t failed = d->prepare(d, which)) return failed;
    function = __atomic_load_n(&d->functions[which], __ATOMIC_ACQUIRE);
  }
  LaunchConfig config = {{unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2])},
                         {unsigned(d->threads), 1, 1},
                         unsigned(d->shared[which]),
                         nullptr,
                         &kOverlap,
                         1};
  d->stream(-1, &config.stream);
  for (bool again = false;; again = true) {
    const int32_t status =
        overlap && d->launch_with
            ? d->launch_with(&config, function, parameters.data, nullptr)
            : d->launch(function, config.grid[0], config.grid[1], config.grid[2], config.block[0],
                        1, 1, config.shared, config.stream, parameters.data, nullptr);
    if (status != kInvalidContext || again) return status;
    if (const int64_t failed = d->prepare(d, kEnterContext)) return failed;
  }
}

// Runs a launch group; returns the word after it, or null after a failure.
template <class On>
const int64_t* launch_group(On& on, const int64_t* pc, const int64_t* ints) {
  const int64_t n = pc[1];
  typename On::template Array<void*> pointers(pc[2]);
  typename On::template Array<int64_t> sizes(pc[3]);
  if (!pointers.data || !sizes.data) return nullptr;
  const int64_t* first = pc + 4;
  const int64_t* at = first;
  void** p = pointers.data;
  int64_t* s = sizes.data;
  for (int64_t i = 0; i < n; i++) {
    const int64_t n_buffers = at[2], n_sizes = at[3];
    at += kLaunchHeader;
    for (int64_t k = 0; k < n_buffers; k++, at += 2) {
      if (!on.pointer(at[0], p)) return nullptr;
      if (at[1] >= 0 && *p) *p = static_cast<char*>(*p) + ints[at[1]];
      p++;
    }
    for (int64_t k = 0; k < n_sizes; k++) *s++ = ints[*at++];
  }
  const int64_t* end = at;
  p = pointers.data;
  s = sizes.data;
  at = first;
  int64_t status = 0;
  on.begin(pc[0]);
  for (int64_t i = 0; i < n; i++) {
    status = on.launch(at, p, s);
    if (status) break;
    p += at[2];
    s += at[3];
    at += kLaunchHeader + 2 * at[2] + at[3];
  }
  on.end();
  if (!status) return end;
  on.failed(at, status, s);
  return nullptr;
}

// Runs words until the end of a plan; returns false after a failure, which `on` has recorded. `on`
// has the registers and implements all operations on their values.
template <class On>
bool execute(On& on, const int64_t* pc, int64_t* ints) {
  for (;;) {
    switch (*pc++) {
      case OP_LOAD_INT:
        if (!on.load_int(pc[1], &ints[pc[0]])) return false;
        pc += 2;
        break;
      case OP_EVAL: {
        const Number found = evaluate(pc + 2, pc[1], ints, &ints[pc[0]]);
        if (found != Number::kFine) return on.no_number(found);
        pc += 2 + 2 * pc[1];
        break;
      }
      case OP_LAUNCH:
        pc = launch_group(on, pc, ints);
        break;
      case OP_CALL_TUPLE:
        if (!on.call_tuple(pc[0], pc[1], pc[2])) return false;
        pc += 3;
        break;
      case OP_CALL:
        pc = on.call(pc, ints);
        break;
      case OP_OPERATE:
        pc = on.operate(pc, ints);
        break;
      case OP_CONFORM:
        pc = on.conform(pc, ints);
        break;
      case OP_SEPARATE:
        pc = on.separate(pc);
        break;
      case OP_DROP:
        on.drop(*pc++);
        break;
      case OP_GET_ITEM:
        if (!on.item(pc[0], pc[1], pc[2])) return false;
        pc += 3;
        break;
      case OP_MOVE:
        on.move(pc[0], pc[1]);
        pc += 2;
        break;
      case OP_RETURN:
        return on.give(pc, ints);
      default:
        return on.give_nothing();
    }
    if (!pc) return false;
  }
}

}  // namespace
