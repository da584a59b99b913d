// The host runtime of this program: owning handles, and one function per instruction. It includes
// only C headers: C++ headers take longer to compile than the rest of a small program.
#include <initializer_list>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// Not inlined: code that runs once per program, or on failure.
#define GY_COLD static __attribute__((cold, noinline, unused))

// Programs are compiled without optimisation to save time, but the functions called for every
// instruction are worth optimising. Other compilers ignore the pragma.
#pragma GCC push_options
#pragma GCC optimize("Og")

namespace gy {

struct Error {
  int32_t status;
  char text[2048];
};

[[noreturn]] GY_COLD __attribute__((format(printf, 2, 3))) void fail(
    int32_t status, const char* format, ...) {
  Error error;
  error.status = status;
  va_list list;
  va_start(list, format);
  vsnprintf(error.text, sizeof error.text, format, list);
  va_end(list);
  throw error;
}

[[noreturn]] GY_COLD void abi_failed(const char* what) {
  const char* said = torch_exception_get_what_without_backtrace
                         ? torch_exception_get_what_without_backtrace()
                         : nullptr;
  if (said != nullptr && *said != 0) fail(GY_RUNTIME_ERROR, "%s", said);
  fail(GY_RUNTIME_ERROR, "%s failed", what);
}

inline void check(AOTITorchError code, const char* what) {
  if (__builtin_expect(code != 0, 0)) abi_failed(what);
}

inline int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) fail(GY_DIVISION_ERROR, "a size is divided by zero");
  if (b == -1 && a == INT64_MIN) fail(GY_OVERFLOW_ERROR, "a size exceeds 64 bits");
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

inline int64_t floor_mod(int64_t a, int64_t b) { return b == -1 ? 0 : a - floor_div(a, b) * b; }

using Ints = std::initializer_list<int64_t>;

// Tensors ----------------------------------------------------------------------------------------

// Frames are zeroed as a whole, so members have no initialisers: Tensor{} is unbound.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle owned) : handle_(owned), owned_(true) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&& other) noexcept : handle_(other.handle_), owned_(other.owned_) {
    other.handle_ = nullptr;
  }
  Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.handle_;
      owned_ = other.owned_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  ~Tensor() { reset(); }

  static Tensor borrowed(AtenTensorHandle handle) {
    Tensor made(handle);
    made.owned_ = false;
    return made;
  }
  AtenTensorHandle get() const {
    if (__builtin_expect(handle_ == nullptr, 0)) fail(GY_RUNTIME_ERROR, "a tensor is not bound");
    return handle_;
  }
  AtenTensorHandle new_handle() const {
    AtenTensorHandle made = nullptr;
    check(aoti_torch_new_tensor_handle(get(), &made), "new_tensor_handle");
    return made;
  }
  Tensor share() const { return Tensor(new_handle()); }
  AtenTensorHandle release() {
    if (!owned_) return new_handle();
    AtenTensorHandle handle = get();
    handle_ = nullptr;
    return handle;
  }
  void reset() noexcept {
    if (handle_ != nullptr && owned_) aoti_torch_delete_tensor_object(handle_);
    handle_ = nullptr;
  }
  void* data() const {
    void* found = nullptr;
    check(aoti_torch_get_data_ptr(get(), &found), "get_data_ptr");
    return found;
  }
  int64_t size(int64_t dim) const {
    int64_t found = 0;
    check(aoti_torch_get_size(get(), dim, &found), "get_size");
    return found;
  }
  int64_t stride(int64_t dim) const {
    int64_t found = 0;
    check(aoti_torch_get_stride(get(), dim, &found), "get_stride");
    return found;
  }
  int64_t numel() const {
    int64_t found = 0;
    check(aoti_torch_get_numel(get(), &found), "get_numel");
    return found;
  }
  int32_t dtype() const {
    int32_t found = 0;
    check(aoti_torch_get_dtype(get(), &found), "get_dtype");
    return found;
  }

 private:
  AtenTensorHandle handle_;
  bool owned_;
};

struct Device {
  int32_t type;
  int32_t index;
};

inline Device device(const char* text) {
  uint32_t type = 0;
  int32_t index = 0;
  check(torch_parse_device_string(text, &type, &index), "parse_device_string");
  return {static_cast<int32_t>(type), index};
}

inline Tensor allocate(Ints sizes, Ints strides, int32_t dtype, Device where) {
  AtenTensorHandle made = nullptr;
  check(
      aoti_torch_empty_strided(
          static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(), dtype, where.type,
          where.index, &made),
      "empty_strided");
  return Tensor(made);
}

inline Tensor bytes(int64_t count, Device where) {
  return allocate({count}, {1}, aoti_torch_dtype_uint8(), where);
}

inline int64_t storage_offset(const Tensor& tensor) {
  int64_t found = 0;
  check(aoti_torch_get_storage_offset(tensor.get(), &found), "get_storage_offset");
  return found;
}

inline Tensor strided(const Tensor& from, Ints sizes, Ints strides, int64_t offset) {
  AtenTensorHandle made = nullptr;
  check(
      aoti_torch__reinterpret_tensor(
          from.get(), static_cast<int64_t>(sizes.size()), sizes.begin(), strides.begin(), offset,
          &made),
      "reinterpret_tensor");
  return Tensor(made);
}

// A tensor `offset` bytes after the first element of another. The ABI creates views relative to the
// start of a storage, so the base is first converted to that.
inline Tensor placed(
    const Tensor& from, int64_t offset, int32_t dtype, Ints sizes, Ints strides) {
  int64_t start = storage_offset(from);
  int64_t width = static_cast<int64_t>(aoti_torch_dtype_element_size(from.dtype()));
  int64_t first = start * width + offset;
  if (first % static_cast<int64_t>(aoti_torch_dtype_element_size(dtype)) != 0)
    fail(GY_RUNTIME_ERROR, "a tensor at byte %lld is not aligned", static_cast<long long>(first));
  Tensor moved{};
  if (start != 0) moved = strided(from, {0}, {1}, -start);
  AtenTensorHandle made = nullptr;
  check(
      aoti_torch__alloc_from_pool(
          start != 0 ? moved.get() : from.get(), first, dtype, static_cast<int64_t>(sizes.size()),
          sizes.begin(), strides.begin(), &made),
      "alloc_from_pool");
  return Tensor(made);
}

// `offset` counts elements of `dtype`.
inline Tensor view(
    const Tensor& from, int32_t dtype, Ints sizes, Ints strides, int64_t offset = 0) {
  if (from.dtype() == dtype) return strided(from, sizes, strides, offset);
  int64_t width = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  return placed(from, offset * width, dtype, sizes, strides);
}

inline Tensor reuse(Tensor& from, int32_t dtype, Ints sizes, Ints strides) {
  Tensor made = view(from, dtype, sizes, strides);
  from.reset();
  return made;
}

inline void copy(const Tensor& to, const Tensor& from, bool non_blocking) {
  check(aoti_torch_copy_(to.get(), from.get(), non_blocking), "copy_");
}

// Scalars ----------------------------------------------------------------------------------------

inline double half_bits(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023;
  double size = exponent == 31  ? (fraction != 0 ? __builtin_nan("") : __builtin_inf())
                : exponent == 0 ? __builtin_ldexp(fraction, -24)
                                : __builtin_ldexp(fraction + 1024, exponent - 25);
  return (bits >> 15) != 0 ? -size : size;
}

inline double bfloat_bits(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  memcpy(&value, &wide, sizeof value);
  return value;
}

inline bool is_float(int32_t dtype) {
  return dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_float64() ||
         dtype == aoti_torch_dtype_float16() || dtype == aoti_torch_dtype_bfloat16() ||
         dtype == aoti_torch_dtype_float8_e4m3fn() || dtype == aoti_torch_dtype_float8_e5m2();
}

template <typename T>
T item(AOTITorchError (*read)(AtenTensorHandle, T*), const Tensor& tensor) {
  T value{};
  check(read(tensor.get(), &value), "item");
  return value;
}

// The only element of a small float tensor, copied to the CPU if necessary.
inline uint16_t two_bytes(const Tensor& tensor) {
  Tensor here = allocate({}, {}, tensor.dtype(), {aoti_torch_device_type_cpu(), 0});
  Tensor flat = strided(tensor, {}, {}, 0);
  copy(here, flat, false);
  uint16_t bits = 0;
  memcpy(&bits, here.data(), sizeof bits);
  return bits;
}

inline double read_float(const Tensor& tensor) {
  int32_t dtype = tensor.dtype();
  if (tensor.numel() != 1) fail(GY_RUNTIME_ERROR, "a scalar is read from several elements");
  if (dtype == aoti_torch_dtype_float32()) return item(aoti_torch_item_float32, tensor);
  if (dtype == aoti_torch_dtype_float64()) return item(aoti_torch_item_float64, tensor);
  if (dtype == aoti_torch_dtype_float16()) return half_bits(two_bytes(tensor));
  if (dtype == aoti_torch_dtype_bfloat16()) return bfloat_bits(two_bytes(tensor));
  fail(GY_RUNTIME_ERROR, "scalars of dtype %d cannot be read", dtype);
}

inline int64_t read_scalar(const Tensor& tensor) {
  int32_t dtype = tensor.dtype();
  if (dtype == aoti_torch_dtype_int64()) return item(aoti_torch_item_int64, tensor);
  if (dtype == aoti_torch_dtype_int32()) return item(aoti_torch_item_int32, tensor);
  if (dtype == aoti_torch_dtype_bool()) return item(aoti_torch_item_bool, tensor);
  if (dtype == aoti_torch_dtype_int16()) return item(aoti_torch_item_int16, tensor);
  if (dtype == aoti_torch_dtype_int8()) return item(aoti_torch_item_int8, tensor);
  if (dtype == aoti_torch_dtype_uint8()) return item(aoti_torch_item_uint8, tensor);
  if (dtype == aoti_torch_dtype_uint16()) return item(aoti_torch_item_uint16, tensor);
  if (dtype == aoti_torch_dtype_uint32()) return item(aoti_torch_item_uint32, tensor);
  if (dtype == aoti_torch_dtype_uint64())
    return static_cast<int64_t>(item(aoti_torch_item_uint64, tensor));
  double value = read_float(tensor);
  if (!(value > -9.3e18 && value < 9.3e18)) fail(GY_RUNTIME_ERROR, "a size is not finite");
  return static_cast<int64_t>(value);
}

inline bool truth(const Tensor& tensor) {
  return is_float(tensor.dtype()) ? read_float(tensor) != 0 : read_scalar(tensor) != 0;
}

// Checks -----------------------------------------------------------------------------------------

struct Text {
  char at[512];
  explicit Text(Ints values) {
    size_t used = static_cast<size_t>(snprintf(at, sizeof at, "("));
    for (const int64_t* v = values.begin(); v != values.end() && used + 24 < sizeof at; ++v)
      used += static_cast<size_t>(snprintf(
          at + used, sizeof at - used, v + 1 == values.end() && values.size() > 1 ? "%lld" : "%lld, ",
          static_cast<long long>(*v)));
    snprintf(at + used, sizeof at - used, ")");
  }
};

// The layout and the device of a tensor.
struct Form {
  int64_t rank;
  int64_t* sizes;
  int64_t* strides;
  Device where;
  explicit Form(const Tensor& of) {
    check(aoti_torch_get_dim(of.get(), &rank), "get_dim");
    check(aoti_torch_get_sizes(of.get(), &sizes), "get_sizes");
    check(aoti_torch_get_strides(of.get(), &strides), "get_strides");
    check(aoti_torch_get_device_type(of.get(), &where.type), "get_device_type");
    check(aoti_torch_get_device_index(of.get(), &where.index), "get_device_index");
  }
};

struct Found {
  char at[512] = "(";
  explicit Found(const Tensor& tensor) {
    const Form form(tensor);
    size_t used = 1;
    for (int64_t d = 0; d < 2 * form.rank && used + 48 < sizeof at; ++d)
      used += static_cast<size_t>(snprintf(
          at + used, sizeof at - used, "%s%lld",
          d == form.rank ? "), strides (" : (d == 0 ? "" : ", "),
          static_cast<long long>(d < form.rank ? form.sizes[d] : form.strides[d - form.rank])));
    snprintf(at + used, sizeof at - used, form.rank == 0 ? "), strides ()" : ")");
  }
};

// The differences of an external tensor that a copy may fix; others raise an error.
enum Mend : int32_t { NOTHING, PENDING, ALL };

[[noreturn]] GY_COLD void differs(
    const Tensor& tensor, Ints sizes, Ints strides, int32_t dtype, const char* name,
    const char* what) {
  const bool input = *what == 0;
  fail(
      input ? GY_INPUT_ERROR : GY_RESULT_ERROR,
      input ? "the input %s is of dtype %d, sizes %s; the program was compiled for dtype %d, %s, %s"
            : "%s returned a tensor of dtype %d, sizes %s where its meta function says dtype %d, "
              "%s, %s",
      input ? name : what, tensor.dtype(), Found(tensor).at, dtype, Text(sizes).at, Text(strides).at);
}

// Returns whether a tensor has the conjugate or negative bit.
inline bool pending(const Tensor& tensor) {
  for (const char* op : {"aten::is_conj", "aten::is_neg"}) {
    auto slot = reinterpret_cast<StableIValue>(tensor.new_handle());
    check(aoti_torch_call_dispatcher(op, "", &slot), op);
    if (slot & 1) return true;
  }
  return false;
}

// A tensor with one element of each dimension of stride 0.
inline Tensor once(const Tensor& tensor, Ints sizes, Ints strides, const int64_t* steps) {
  auto* less = static_cast<int64_t*>(__builtin_alloca(sizeof(int64_t) * (sizes.size() + 1)));
  for (size_t d = 0; d < sizes.size(); ++d)
    less[d] = strides.begin()[d] == 0 && sizes.begin()[d] > 1 ? 1 : sizes.begin()[d];
  AtenTensorHandle made = nullptr;
  check(
      aoti_torch__reinterpret_tensor(
          tensor.get(), static_cast<int64_t>(sizes.size()), less, steps, 0, &made),
      "reinterpret_tensor");
  return Tensor(made);
}

// Converts an external tensor to the layout that the program expects; `lazy` says that it may have
// the conjugate or negative bit.
inline void conform(
    Tensor& tensor, Ints sizes, Ints strides, int32_t dtype, Device where, int32_t mend, bool lazy,
    const char* name, const char* what) {
  const Form form(tensor);
  const int64_t* wanted = sizes.begin();
  bool same = form.rank == static_cast<int64_t>(sizes.size()), empty = false, laid = true;
  for (int64_t d = 0; same && d < form.rank; ++d) {
    same = form.sizes[d] == wanted[d];
    empty = empty || wanted[d] == 0;
    laid = laid && (wanted[d] < 2 || form.strides[d] == strides.begin()[d]);
  }
  if (!same) differs(tensor, sizes, strides, dtype, name, what);
  const bool anywhere = where.index < 0 || where.type == aoti_torch_device_type_cpu();
  const bool there =
      form.where.type == where.type && (anywhere || form.where.index == where.index);
  const bool other = tensor.dtype() != dtype || !there || !(laid || empty);
  const bool late = lazy && pending(tensor);
  if (!other && !late) return;
  if (mend < (other ? ALL : PENDING)) differs(tensor, sizes, strides, dtype, name, what);
  Tensor made = allocate(sizes, strides, dtype, where);
  const Tensor from = once(tensor, sizes, strides, form.strides);
  copy(once(made, sizes, strides, strides.begin()), from, false);
  tensor = static_cast<Tensor&&>(made);
}

// The address of a tensor's storage; null for an empty one.
inline const char* storage(const Tensor& tensor) {
  const auto width = static_cast<int64_t>(aoti_torch_dtype_element_size(tensor.dtype()));
  const auto* data = tensor.numel() == 0 ? nullptr : static_cast<const char*>(tensor.data());
  return data == nullptr ? nullptr : data - storage_offset(tensor) * width;
}

// Copies those of `tensors` that share their storage with one of `others`, or with an earlier one.
inline void separate(
    std::initializer_list<Tensor*> tensors, std::initializer_list<const Tensor*> others) {
  const size_t count = tensors.size() + others.size();
  auto** seen = static_cast<const char**>(__builtin_alloca(sizeof(char*) * count));
  size_t known = 0;
  for (const Tensor* other : others) seen[known++] = storage(*other);
  for (Tensor* tensor : tensors) {
    const char* own = storage(*tensor);
    bool shared = false;
    for (size_t k = 0; k < known; ++k) shared = shared || (own != nullptr && seen[k] == own);
    AtenTensorHandle made = nullptr;
    if (shared) check(aoti_torch_clone(tensor->get(), &made), "clone");
    if (shared) *tensor = Tensor(made);
    seen[known++] = storage(*tensor);
  }
}

// A tensor in a wider type, since isfinite does not support 8-bit floats.
inline Tensor widened(const Tensor& from) {
  const Form form(from);
  AtenTensorHandle made = nullptr;
  check(
      aoti_torch_empty_strided(
          form.rank, form.sizes, form.strides, aoti_torch_dtype_float32(), form.where.type,
          form.where.index, &made),
      "empty_strided");
  Tensor wide(made);
  copy(wide, from, false);
  return wide;
}

inline void assert_finite(
    GyProgramContext* context, const Tensor& tensor, const char* name, const char* what) {
  int32_t dtype = tensor.dtype();
  if (!is_float(dtype) && dtype != aoti_torch_dtype_complex64() &&
      dtype != aoti_torch_dtype_complex128())
    return;
  Tensor wide{};
  if (aoti_torch_dtype_element_size(dtype) == 1) wide = widened(tensor);
  AtenTensorHandle tested = aoti_torch_dtype_element_size(dtype) == 1 ? wide.get() : tensor.get();
  if (aoti_torch_check_inf_and_nan(name, tested) == 0) return;
  context->culprit = tensor.new_handle();
  fail(GY_NAN_ERROR, "%s", what);
}

// Work -------------------------------------------------------------------------------------------

inline int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Concurrent launches of one kernel in several threads may lose counts.
GY_COLD int64_t timed(
    GyProgramContext* context, int64_t kernel, void* const* buffers, const int64_t* sizes) {
  int64_t start = nanoseconds();
  int64_t code = context->kernels[kernel](buffers, sizes);
  int64_t spent = nanoseconds() - start;
  GyTimes& row = context->times[kernel];
  row.least = row.calls == 0 || spent < row.least ? spent : row.least;
  row.total += spent;
  ++row.calls;
  return code;
}

inline void launch(
    GyProgramContext* context, int64_t kernel, std::initializer_list<const Tensor*> tensors,
    Ints sizes) {
  auto** buffers = static_cast<void**>(__builtin_alloca(sizeof(void*) * (tensors.size() + 1)));
  void** next = buffers;
  for (const Tensor* t : tensors) *next++ = t->data();
  int64_t code = __builtin_expect(context->times != nullptr, 0)
                     ? timed(context, kernel, buffers, sizes.begin())
                     : context->kernels[kernel](buffers, sizes.begin());
  if (__builtin_expect(code != 0, 0)) {
    context->kernel = kernel;
    context->kernel_code = code;
    fail(
        GY_KERNEL_ERROR, "kernel %lld failed its check %lld", static_cast<long long>(kernel),
        static_cast<long long>(code));
  }
}

}  // namespace gy
