#include "operators.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <utility>

#include "error.h"
#include "shim.h"

namespace gyr {

namespace {

// In the message of libtorch's dispatcher about an operator that does not exist.
constexpr const char* kUnknown = "Could not find schema";

// Returns the message of libtorch's last error; empty before torch 2.13.
const char* reason() {
  const char* message = torch_exception_get_what_without_backtrace
                         ? torch_exception_get_what_without_backtrace()
                         : nullptr;
  return message ? message : "";
}

void check(AOTITorchError code, const std::string& what) {
  if (!code) return;
  const std::string message = reason();
  if (!message.empty()) fail(GYR_ERROR_OPERATOR, words(what, ": ", message));
  fail(GYR_ERROR_OPERATOR, words(what, " failed; before 2.13, torch prints the reason to stderr"));
}

// libtorch's codes of dtypes, indexed by ours.
using Code = int32_t (*)();
constexpr Code kCodes[] = {
    aoti_torch_dtype_float64,         aoti_torch_dtype_float32,
    aoti_torch_dtype_float16,         aoti_torch_dtype_bfloat16,
    aoti_torch_dtype_float8_e4m3fn,   aoti_torch_dtype_float8_e5m2,
    aoti_torch_dtype_float8_e4m3fnuz, aoti_torch_dtype_float8_e5m2fnuz,
    aoti_torch_dtype_int64,           aoti_torch_dtype_int32,
    aoti_torch_dtype_int16,           aoti_torch_dtype_int8,
    aoti_torch_dtype_uint64,          aoti_torch_dtype_uint32,
    aoti_torch_dtype_uint16,          aoti_torch_dtype_uint8,
    aoti_torch_dtype_bool,            aoti_torch_dtype_complex64,
    aoti_torch_dtype_complex128,
};

gyr_dtype dtype_of_code(int32_t code) {
  for (size_t k = 0; k < sizeof kCodes / sizeof *kCodes; k++)
    if (kCodes[k]() == code) return gyr_dtype(k + 1);
  return GYR_NONE;
}

bool is_complex(gyr_dtype dtype) { return dtype == GYR_COMPLEX64 || dtype == GYR_COMPLEX128; }

struct Word {
  const char* name;
  Code code;
};
constexpr Word kLayouts[] = {{"strided", aoti_torch_layout_strided}};
constexpr Word kFormats[] = {
    {"contiguous_format", aoti_torch_memory_format_contiguous_format},
    {"channels_last", aoti_torch_memory_format_channels_last},
    {"channels_last_3d", aoti_torch_memory_format_channels_last_3d},
    {"preserve_format", aoti_torch_memory_format_preserve_format},
};

// A tensor of libtorch, released unless it is taken.
class Handle {
 public:
  Handle() = default;
  explicit Handle(AtenTensorHandle owned) : at_(owned) {}
  Handle(Handle&& other) noexcept : at_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }
  ~Handle() {
    if (at_) aoti_torch_delete_tensor_object(at_);
  }
  AtenTensorHandle get() const { return at_; }
  AtenTensorHandle* out() { return &at_; }
  AtenTensorHandle release() { return std::exchange(at_, nullptr); }

 private:
  AtenTensorHandle at_ = nullptr;
};

// Functions of libtorch's CUDA library; null if libtorch is built without CUDA.
struct Cuda {
  AOTITorchError (*current_stream)(int32_t device, void** stream) = nullptr;
  AOTITorchError (*guard)(void* stream, int32_t device, void** guard) = nullptr;
  AOTITorchError (*end_guard)(void* guard) = nullptr;
  void* library = dlopen("libtorch_cuda.so", RTLD_NOW);

  Cuda() {
    find(current_stream, "aoti_torch_get_current_cuda_stream");
    find(guard, "aoti_torch_create_cuda_stream_guard");
    find(end_guard, "aoti_torch_delete_cuda_stream_guard");
  }
  template <class F>
  void find(F& function, const char* name) const {
    if (library) function = reinterpret_cast<F>(dlsym(library, name));
  }
  bool there() const { return current_stream && guard && end_guard; }
};

const Cuda& cuda() {
  static const Cuda found;
  return found;
}

// Returns a libtorch tensor in the memory of one of ours, on the host or on the device with an index.
Handle borrowed(Tensor* of, int32_t index) {
  if (of->packed) {
    Handle made;
    const auto owner = static_cast<AtenTensorHandle>(of->storage->allocator.context);
    check(aoti_torch_new_tensor_handle(owner, made.out()), "a packed tensor");
    return made;
  }
  const bool host = of->device == GYR_CPU;
  const int32_t type = host ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
  Handle made;
  check(aoti_torch_create_tensor_from_blob(of->data, of->ndim, of->sizes(), of->strides(), 0,
                                           kCodes[of->dtype - 1](), type, host ? -1 : index,
                                           made.out()),
        "a tensor of libtorch");
  return made;
}

void release_tensor(void* owner) {
  aoti_torch_delete_tensor_object(static_cast<AtenTensorHandle>(owner));
}

// Converts a libtorch tensor in a library's own layout to one of ours.
Own packed_of(Handle handle, const std::string& op) {
  int32_t layout = 0, code = 0;
  check(aoti_torch_get_layout(handle.get(), &layout), op);
  check(aoti_torch_get_dtype(handle.get(), &code), op);
  if (layout != aoti_torch_layout__mkldnn())
    fail(GYR_ERROR_OPERATOR, words(op, " returns a tensor that is not packed"));
  Own made(Tensor::make(dtype_of_code(code), 0, nullptr, nullptr));
  made->packed = made->lasting = true;
  made->storage = Storage::of_owner(handle.get(), release_tensor);
  handle.release();
  return made;
}

// Converts a libtorch tensor to one of ours. If it is in the memory of an argument, they share it.
Value taken_over(Handle handle, const std::vector<Tensor*>& arguments, const std::string& op) {
  bool defined = false;
  check(aoti_torch_is_defined(handle.get(), &defined), op);
  if (!defined) return Value::none();
  int32_t code = 0, device = 0, layout = 0;
  int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  void* data = nullptr;
  check(aoti_torch_get_dtype(handle.get(), &code), op);
  check(aoti_torch_get_device_type(handle.get(), &device), op);
  check(aoti_torch_get_layout(handle.get(), &layout), op);
  const gyr_dtype dtype = dtype_of_code(code);
  const bool host = device == aoti_torch_device_type_cpu();
  const bool known = host || device == aoti_torch_device_type_cuda();
  if (!dtype || !known || layout != aoti_torch_layout_strided())
    fail(GYR_ERROR_OPERATOR, words(op, " returns a tensor that is not dense, or not on a known device"));
  check(aoti_torch_get_dim(handle.get(), &ndim), op);
  check(aoti_torch_get_sizes(handle.get(), &sizes), op);
  check(aoti_torch_get_strides(handle.get(), &strides), op);
  check(aoti_torch_get_data_ptr(handle.get(), &data), op);
  if (ndim > GYR_MAX_NDIM) fail(GYR_ERROR_OPERATOR, words(op, " returns too many dimensions"));
  Own made(Tensor::make(dtype, int(ndim), sizes, strides));
  made->data = static_cast<char*>(data);
  made->device = host ? GYR_CPU : GYR_CUDA;
  for (Tensor* argument : arguments) {
    const auto range = argument->range();
    if (range.first > data || data >= range.second) continue;
    made->storage = argument->storage ? argument->storage->share() : nullptr;
    return Value::of(made.release());
  }
  made->storage = Storage::of_owner(handle.get(), release_tensor);
  handle.release();
  return Value::of(made.release());
}

enum class Base { kTensor, kInteger, kReal, kText, kType, kLayout, kFormat, kDevice, kOther };

// The type of an argument or a result: `Tensor?[]`, `int[2]`.
struct Kind {
  std::string name;
  Base base = Base::kOther;
  // Its suffixes, outermost last: -1 for `?`; for a list, the number in brackets, or 0.
  std::vector<int64_t> around;

  static Kind read(const std::string& text) {
    static constexpr std::pair<const char*, Base> kBases[] = {
        {"Tensor", Base::kTensor}, {"int", Base::kInteger},    {"bool", Base::kInteger},
        {"float", Base::kReal},    {"str", Base::kText},       {"ScalarType", Base::kType},
        {"Layout", Base::kLayout}, {"MemoryFormat", Base::kFormat}, {"Device", Base::kDevice},
    };
    Kind made;
    made.name = text;
    const size_t end = text.find_first_of("?[");
    for (const auto& [name, base] : kBases)
      if (text.compare(0, end, name) == 0) made.base = base;
    for (size_t at = end; at < text.size(); at++) {
      if (text[at] == '?') made.around.push_back(-1);
      else if (text[at] == '[') made.around.push_back(atoll(text.c_str() + at + 1));
    }
    return made;
  }

  void drop(StableIValue value, size_t level) const {
    if (level == 0) {
      if (base == Base::kTensor) Handle released(reinterpret_cast<AtenTensorHandle>(value));
      else if (base == Base::kText) torch_delete_string(reinterpret_cast<StringHandle>(value));
    } else if (around[level - 1] < 0) {
      auto* box = reinterpret_cast<StableIValue*>(value);
      if (!box) return;
      drop(*box, level - 1);
      delete box;
    } else {
      auto* list = reinterpret_cast<StableListHandle>(value);
      size_t size = 0;
      torch_list_size(list, &size);
      for (size_t k = 0; k < size; k++) {
        StableIValue item = 0;
        if (!torch_list_get_item(list, k, &item)) drop(item, level - 1);
      }
      torch_delete_list(list);
    }
  }
};

// An encoded value, released unless it is taken.
class Slot {
 public:
  Slot(const Kind& kind, size_t level, StableIValue value)
      : kind_(&kind), level_(level), value_(value) {}
  Slot(Slot&& other) noexcept
      : kind_(std::exchange(other.kind_, nullptr)), level_(other.level_), value_(other.value_) {}
  Slot& operator=(Slot&&) = delete;
  ~Slot() {
    if (kind_) kind_->drop(value_, level_);
  }
  StableIValue peek() const { return value_; }
  StableIValue take() {
    kind_ = nullptr;
    return value_;
  }

 private:
  const Kind* kind_;
  size_t level_;
  StableIValue value_;
};

// The source of an argument: at most one member is set; none for None.
struct Item {
  const Const* constant = nullptr;
  const Value* value = nullptr;
  const Given* sizes = nullptr;
  const int64_t* number = nullptr;

  static Item of(const Const& constant) {
    Item made;
    if (constant.kind != Const::Kind::kNone) made.constant = &constant;
    return made;
  }
  static Item of(const Value& value) {
    Item made;
    if (value.kind != Value::Kind::kNone) made.value = &value;
    return made;
  }
  static Item of(const int64_t& number) {
    Item made;
    made.number = &number;
    return made;
  }
  static Item of(const Given& given) {
    if (given.constant) return of(*given.constant);
    if (given.value.kind != Value::Kind::kEmpty) return of(given.value);
    Item made;
    made.sizes = &given;
    return made;
  }

  bool none() const { return !constant && !value && !sizes && !number; }
  bool listed() const {
    return sizes || (value && value->kind == Value::Kind::kList) ||
           (constant && constant->kind == Const::Kind::kSequence);
  }
  size_t count() const {
    return sizes ? sizes->n_computed : value ? value->list->size() : constant->items.size();
  }
  Item operator[](size_t k) const {
    return sizes ? of(sizes->computed[k]) : value ? of((*value->list)[k]) : of(constant->items[k]);
  }
  Tensor* tensor() const {
    if (value && value->kind == Value::Kind::kTensor) return value->tensor;
    return constant ? constant->tensor : nullptr;
  }
  bool integer(int64_t* out) const {
    if (number) *out = *number;
    else if (constant && constant->kind == Const::Kind::kInteger) *out = constant->integer;
    else if (value && (value->kind == Value::Kind::kInteger || value->kind == Value::Kind::kBool))
      *out = value->integer;
    else return false;
    return true;
  }
  bool real(double* out) const {
    int64_t whole;
    if (integer(&whole)) *out = double(whole);
    else if (constant && constant->kind == Const::Kind::kReal) *out = constant->real;
    else if (value && value->kind == Value::Kind::kReal) *out = value->real;
    else return false;
    return true;
  }
};

// The arguments of one call, encoded.
class Encoder {
 public:
  Encoder(const std::string& op, int32_t index) : op_(op), index_(index) {}
  std::vector<Tensor*> tensors;  // borrowed tensors

  Slot encode(const Kind& kind, const Item& item, size_t level) {
    if (level == 0) return Slot(kind, 0, plain(kind, item));
    if (kind.around[level - 1] < 0) {
      if (item.none()) return Slot(kind, level, 0);
      Slot inner = encode(kind, item, level - 1);
      auto* box = new StableIValue(inner.peek());  // libtorch frees it with delete
      inner.take();
      return Slot(kind, level, reinterpret_cast<StableIValue>(box));
    }
    return list(kind, item, level);
  }

 private:
  [[noreturn]] void wrong(const Kind& kind) const {
    fail(GYR_ERROR_INTERNAL, words("a plan passes ", op_, " no ", kind.name));
  }

  Slot list(const Kind& kind, const Item& item, size_t level) {
    if (!item.listed() && (item.none() || kind.around[level - 1] == 0)) wrong(kind);
    const size_t n = item.listed() ? item.count() : size_t(kind.around[level - 1]);
    StableListHandle made = nullptr;
    check(torch_new_list_reserve_size(n, &made), op_);
    Slot whole(kind, level, reinterpret_cast<StableIValue>(made));
    for (size_t k = 0; k < n; k++) {
      Slot part = encode(kind, item.listed() ? item[k] : item, level - 1);
      check(torch_list_push_back(made, part.peek()), op_);
      part.take();
    }
    return whole;
  }

  StableIValue plain(const Kind& kind, const Item& item) {
    int64_t integer = 0;
    switch (kind.base) {
      case Base::kTensor:
        return tensor(kind, item);
      case Base::kInteger:
        if (item.integer(&integer)) return StableIValue(integer);
        wrong(kind);
      case Base::kReal: {
        double real;
        StableIValue bits;
        if (!item.real(&real)) wrong(kind);
        memcpy(&bits, &real, sizeof bits);
        return bits;
      }
      case Base::kText: {
        StringHandle made = nullptr;
        if (!item.constant || item.constant->kind != Const::Kind::kText) wrong(kind);
        const std::string& text = item.constant->text;
        check(torch_new_string_handle(text.data(), text.size(), &made), op_);
        return reinterpret_cast<StableIValue>(made);
      }
      case Base::kType:
        if (item.integer(&integer)) return StableIValue(integer);
        if (!item.constant || !item.constant->dtype) wrong(kind);
        return StableIValue(kCodes[item.constant->dtype - 1]());
      case Base::kLayout:
        return word(kind, item, std::begin(kLayouts), std::end(kLayouts));
      case Base::kFormat:
        return word(kind, item, std::begin(kFormats), std::end(kFormats));
      case Base::kDevice: {
        if (!item.constant || item.constant->kind != Const::Kind::kOther) wrong(kind);
        const bool host = item.constant->device == GYR_CPU;
        const int32_t type = host ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda();
        return StableIValue(uint32_t(type)) << 32 | uint32_t(host ? -1 : index_);
      }
      default:
        fail(GYR_ERROR_MISFIT,
             words(op_, " takes a ", kind.name, ", which libtorch's C ABI does not pass"));
    }
  }

  StableIValue tensor(const Kind& kind, const Item& item) {
    Handle made;
    if (item.none()) {
      check(aoti_torch_new_uninitialized_tensor(made.out()), op_);
    } else {
      Tensor* given = item.tensor();
      if (!given) wrong(kind);
      tensors.push_back(given);
      made = borrowed(given, index_);
    }
    return reinterpret_cast<StableIValue>(made.release());
  }

  StableIValue word(const Kind& kind, const Item& item, const Word* begin, const Word* end) const {
    int64_t integer;
    if (item.integer(&integer)) return StableIValue(integer);
    for (; item.constant && begin != end; begin++)
      if (item.constant->text == begin->name) return StableIValue(begin->code());
    wrong(kind);
  }

  const std::string& op_;
  const int32_t index_;  // of the device, if any
};

// Matrix products that libtorch's C ABI offers without the dispatcher, which cannot pass a `Scalar`.
using Plain = AOTITorchError (*)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle);
using Scaled = AOTITorchError (*)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle,
                                  AtenTensorHandle, double, double);
struct Product {
  const char* name;
  Plain plain;
  Scaled scaled;
  const char* on_device;
};
constexpr Product kProducts[] = {
    {"aten.mm.out", aoti_torch_cpu_mm_out, nullptr, "aoti_torch_cuda_mm_out"},
    {"aten.bmm.out", aoti_torch_cpu_bmm_out, nullptr, "aoti_torch_cuda_bmm_out"},
    {"aten.addmm.out", nullptr, aoti_torch_cpu_addmm_out, "aoti_torch_cuda_addmm_out"},
    {"aten.baddbmm.out", nullptr, aoti_torch_cpu_baddbmm_out, "aoti_torch_cuda_baddbmm_out"},
};

// Reads the arguments of one of oneDNN's functions, in order.
class Reader {
 public:
  Reader(const std::vector<Item>& items, const std::string& op) : next_(items.data()), op_(op) {}
  std::vector<Tensor*> tensors;  // those read

  struct Integers {
    const int64_t* data;
    int64_t n;
  };
  struct Numbers {
    const double** data;
    int64_t n;
  };

  AtenTensorHandle* optional_tensor() {
    const Item& item = *next_++;
    Tensor* given = item.tensor();
    if (!given) return item.none() ? nullptr : wrong();
    tensors.push_back(given);
    handles_.push_back(borrowed(given, -1));
    return handles_.back().out();
  }
  AtenTensorHandle tensor() {
    const AtenTensorHandle* found = optional_tensor();
    return found ? *found : *wrong();
  }
  int64_t integer() { return integer_of(*next_++); }
  Integers integers() {
    const Item& item = *next_++;
    if (!item.listed()) wrong();
    std::vector<int64_t>& made = integers_.emplace_back();
    for (size_t k = 0; k < item.count(); k++) made.push_back(integer_of(item[k]));
    return {made.data(), int64_t(made.size())};
  }
  double* optional_number() {
    const Item& item = *next_++;
    if (item.none()) return nullptr;
    numbers_.emplace_back();
    if (!item.real(&numbers_.back())) wrong();
    return &numbers_.back();
  }
  Numbers numbers() {
    const Item& item = *next_++;
    if (!item.listed()) wrong();
    for (size_t k = 0; k < item.count(); k++) {
      numbers_.emplace_back();
      if (!item[k].real(&numbers_.back())) wrong();
      each_.push_back(&numbers_.back());
    }
    return {each_.data(), int64_t(each_.size())};
  }
  const char** optional_text() {
    const Item& item = *next_++;
    if (item.none()) return nullptr;
    if (!item.constant || item.constant->kind != Const::Kind::kText) wrong();
    texts_.push_back(item.constant->text.c_str());
    return &texts_.back();
  }
  const char* text() {
    const char* const* found = optional_text();
    if (!found) wrong();
    return *found;
  }

 private:
  [[noreturn]] AtenTensorHandle* wrong() const {
    fail(GYR_ERROR_INTERNAL, words("a plan passes ", op_, " a wrong argument"));
  }
  int64_t integer_of(const Item& item) const {
    int64_t found = 0;
    if (!item.integer(&found)) wrong();
    return found;
  }

  const Item* next_;
  const std::string& op_;
  std::deque<Handle> handles_;
  std::deque<std::vector<int64_t>> integers_;
  std::deque<double> numbers_;
  std::vector<const double*> each_;
  std::deque<const char*> texts_;
};

AOTITorchError linear(Reader& from, AtenTensorHandle* result) {
  const auto x = from.tensor(), weight = from.tensor();
  const auto bias = from.optional_tensor();
  const auto function = from.text();
  const auto numbers = from.numbers();
  return aoti_torch_cpu__linear_pointwise(x, weight, bias, function, numbers.data, numbers.n,
                                          from.optional_text(), result);
}

AOTITorchError convolution(Reader& from, AtenTensorHandle* result) {
  const auto x = from.tensor(), weight = from.tensor();
  const auto bias = from.optional_tensor();
  const auto padding = from.integers(), stride = from.integers(), dilation = from.integers();
  const auto groups = from.integer();
  const auto function = from.text();
  const auto numbers = from.numbers();
  return aoti_torch_cpu_mkldnn__convolution_pointwise(
      x, weight, bias, padding.data, padding.n, stride.data, stride.n, dilation.data, dilation.n,
      groups, function, numbers.data, numbers.n, from.optional_text(), result);
}

AOTITorchError transposed_convolution(Reader& from, AtenTensorHandle* result) {
  const auto x = from.tensor(), weight = from.tensor();
  const auto bias = from.optional_tensor();
  const auto padding = from.integers(), more = from.integers(), stride = from.integers();
  const auto dilation = from.integers();
  const auto groups = from.integer();
  const auto function = from.text();
  const auto numbers = from.numbers();
  return aoti_torch_cpu_mkldnn__convolution_transpose_pointwise(
      x, weight, bias, padding.data, padding.n, more.data, more.n, stride.data, stride.n,
      dilation.data, dilation.n, groups, function, numbers.data, numbers.n, from.optional_text(),
      result);
}

AOTITorchError convolution_and_addition(Reader& from, AtenTensorHandle* result) {
  const auto x = from.tensor(), other = from.tensor(), weight = from.tensor();
  const auto bias = from.optional_tensor();
  const auto padding = from.integers(), stride = from.integers(), dilation = from.integers();
  const auto groups = from.integer();
  const auto binary = from.text();
  const auto alpha = from.optional_number();
  const auto function = from.optional_text();
  const auto numbers = from.numbers();
  return aoti_torch_cpu_mkldnn__convolution_pointwise_binary(
      x, other, weight, bias, padding.data, padding.n, stride.data, stride.n, dilation.data,
      dilation.n, groups, binary, alpha, function, numbers.data, numbers.n, from.optional_text(),
      result);
}

// oneDNN's functions with those that follow them. libtorch's C ABI offers them without the dispatcher,
// which does not pass their numbers, and leaks each text (torch 2.11 to 2.13).
struct Fused {
  const char* name;
  AOTITorchError (*run)(Reader& from, AtenTensorHandle* result);
};
constexpr Fused kFused[] = {
    {"mkldnn._linear_pointwise.default", linear},
    {"mkldnn._convolution_pointwise.default", convolution},
    {"mkldnn._convolution_transpose_pointwise.default", transposed_convolution},
    {"mkldnn._convolution_pointwise.binary", convolution_and_addition},
};

struct Parameter {
  std::string name;
  Kind kind;
  Const otherwise;
};

class TorchOperator final : public Operator {
 public:
  TorchOperator(const Json& row, const Device* device)
      : name_(row["name"].text()), index_(device ? device->index() : -1) {
    const size_t first = name_.find('.'), second = name_.find('.', first + 1);
    if (second == std::string::npos) fail(GYR_ERROR_FILE, words(name_, " is not the name of an operator"));
    op_ = words(name_.substr(0, first), "::", name_.substr(first + 1, second - first - 1));
    overload_ = name_.substr(second + 1);
    if (overload_ == "default") overload_.clear();
    for (const Json& a : row["arguments"].list())
      parameters_.push_back(
          {a["name"].text(), Kind::read(a["kind"].text()), constant_of(a["default"])});
    for (const Json& r : row["returns"].list()) {
      returns_.push_back(Kind::read(r.text()));
      const Kind& kind = returns_.back();
      const bool plain = kind.base == Base::kTensor || kind.base == Base::kInteger;
      const bool known = kind.around.empty() || (kind.around.size() == 1 && kind.around[0] == 0);
      if (!plain || !known)
        fail(GYR_ERROR_MISFIT, words("it calls ", name_, ", which returns a ", kind.name));
    }
    for (const Fused& f : kFused)
      if (name_ == f.name && aoti_torch_cpu__linear_pointwise) fused_ = f.run;
    for (const Product& p : kProducts) {
      if (name_ != p.name) continue;
      here_ = p;
      if (!device) continue;
      if (p.plain) cuda().find(there_.plain, p.on_device);
      else cuda().find(there_.scaled, p.on_device);
    }
  }

  Value call(Arguments given, const Const* names) const override {
    const std::vector<Item> items = matched(given, names);
    if (here_.name) return product_of(items);
    if (fused_) {
      Reader from(items, name_);
      Handle found;
      check(fused_(from, found.out()), name_);
      return taken_over(std::move(found), from.tensors, name_);
    }
    Encoder encoder(name_, index_);
    return results(dispatched(items, encoder), encoder.tensors);
  }

  Own pack(Arguments given) const override {
    if (returns_.size() != 1 || returns_[0].name != "Tensor")
      fail(GYR_ERROR_FILE, words(name_, " does not pack a tensor"));
    Encoder encoder(name_, index_);
    const StableIValue found = dispatched(matched(given, nullptr), encoder)[0];
    return packed_of(Handle(reinterpret_cast<AtenTensorHandle>(found)), name_);
  }

  void operate(const std::vector<Tensor*>& t, const std::vector<double>& numbers) const override {
    std::vector<Handle> h;
    for (Tensor* tensor : t) h.push_back(borrowed(tensor, index_));
    const Product& product = !t.empty() && t[0]->device != GYR_CPU ? there_ : here_;
    if (product.plain && h.size() == 3)
      return check(product.plain(h[0].get(), h[1].get(), h[2].get()), name_);
    if (!product.scaled || h.size() != 4 || numbers.size() != 2)
      fail(GYR_ERROR_FILE, words("a plan has an unknown product ", name_));
    check(product.scaled(h[0].get(), h[1].get(), h[2].get(), h[3].get(), numbers[0], numbers[1]),
          name_);
  }

 private:
  // Calls the operator, and returns its results, which the caller owns.
  std::vector<StableIValue> dispatched(const std::vector<Item>& items, Encoder& encoder) const {
    std::vector<Slot> slots;
    slots.reserve(items.size());
    for (size_t k = 0; k < items.size(); k++) {
      const Kind& kind = parameters_[k].kind;
      slots.push_back(encoder.encode(kind, items[k], kind.around.size()));
    }
    std::vector<StableIValue> stack(std::max<size_t>({slots.size(), returns_.size(), 1}));
    for (size_t k = 0; k < slots.size(); k++) stack[k] = slots[k].peek();
    const AOTITorchError code =
        aoti_torch_call_dispatcher(op_.c_str(), overload_.c_str(), stack.data());
    // An operator that does not exist takes none of the arguments.
    const bool taken = !code || std::string(reason()).find(kUnknown) == std::string::npos;
    for (Slot& slot : slots)
      if (taken) slot.take();
    check(code, name_);
    return stack;
  }

  // The source of each argument.
  std::vector<Item> matched(Arguments given, const Const* names) const {
    const size_t n_named = names ? names->items.size() : 0, placed = given.n - n_named;
    if (placed > parameters_.size())
      fail(GYR_ERROR_FILE, words("a plan passes ", name_, " too many arguments"));
    std::vector<Item> items;
    for (const Parameter& p : parameters_) items.push_back(Item::of(p.otherwise));
    for (size_t k = 0; k < placed; k++) items[k] = Item::of(given[k]);
    for (size_t n = 0; n < n_named; n++) {
      size_t k = 0;
      while (k < parameters_.size() && parameters_[k].name != names->items[n].text) k++;
      if (k == parameters_.size())
        fail(GYR_ERROR_FILE, words(name_, " has no argument ", names->items[n].text));
      items[k] = Item::of(given[placed + n]);
    }
    return items;
  }

  Value product_of(const std::vector<Item>& items) const {
    std::vector<Tensor*> tensors;
    std::vector<double> numbers;
    for (const Item& item : items) {
      double number;
      if (Tensor* tensor = item.tensor()) tensors.push_back(tensor);
      else if (item.real(&number)) numbers.push_back(number);
    }
    if (tensors.empty()) fail(GYR_ERROR_FILE, words("a plan passes ", name_, " no tensors"));
    std::rotate(tensors.begin(), tensors.end() - 1, tensors.end());  // the result is last
    operate(tensors, numbers);
    return Value::of(tensors[0]->share());
  }

  Value results(const std::vector<StableIValue>& stack, const std::vector<Tensor*>& given) const {
    std::vector<Slot> slots;
    slots.reserve(returns_.size());
    for (size_t k = 0; k < returns_.size(); k++)
      slots.emplace_back(returns_[k], returns_[k].around.size(), stack[k]);
    Values made;
    for (size_t k = 0; k < slots.size(); k++) made.push_back(result(returns_[k], slots[k], given));
    if (made.size() == 1) return std::move(made[0]);
    return Value::of(std::move(made));
  }

  Value result(const Kind& kind, Slot& slot, const std::vector<Tensor*>& given) const {
    if (kind.base == Base::kInteger) return Value::of(int64_t(slot.take()));
    if (kind.around.empty()) return tensor(slot.take(), given);
    auto* list = reinterpret_cast<StableListHandle>(slot.take());
    size_t size = 0;
    std::vector<Handle> handles;
    AOTITorchError code = torch_list_size(list, &size);
    for (size_t k = 0; !code && k < size; k++) {
      StableIValue item = 0;
      code = torch_list_get_item(list, k, &item);
      if (!code) handles.emplace_back(reinterpret_cast<AtenTensorHandle>(item));
    }
    torch_delete_list(list);
    check(code, name_);
    Values made;
    for (Handle& h : handles)
      made.push_back(tensor(reinterpret_cast<StableIValue>(h.release()), given));
    return Value::of(std::move(made));
  }

  // Only complex tensors can have a pending conjugation or negation.
  Value tensor(StableIValue value, const std::vector<Tensor*>& given) const {
    Handle handle(reinterpret_cast<AtenTensorHandle>(value));
    int32_t code = 0;
    bool lazy = false, defined = false;
    check(aoti_torch_is_defined(handle.get(), &defined), name_);
    if (defined) {
      check(aoti_torch_get_dtype(handle.get(), &code), name_);
      lazy = is_complex(dtype_of_code(code));
      for (Tensor* t : given) lazy = lazy || is_complex(t->dtype);
    }
    for (const char* op : {"aten::resolve_conj", "aten::resolve_neg"}) {
      if (!lazy) break;
      auto one = reinterpret_cast<StableIValue>(handle.release());
      check(aoti_torch_call_dispatcher(op, "", &one), op);
      handle = Handle(reinterpret_cast<AtenTensorHandle>(one));
    }
    return taken_over(std::move(handle), given, name_);
  }

  std::string name_, op_, overload_;
  std::vector<Parameter> parameters_;
  std::vector<Kind> returns_;
  int32_t index_;  // of the device, or -1
  Product here_{}, there_{};  // of the host, and of the device
  decltype(Fused::run) fused_ = nullptr;
};

}  // namespace

bool has_operators() { return true; }

std::shared_ptr<const Operator> operator_of(const Json& row, const Device* device) {
  if (device && !cuda().there())
    fail(GYR_ERROR_MISFIT, "it runs on cuda, and libtorch_cuda.so cannot be opened");
  return std::make_shared<TorchOperator>(row, device);
}

void* current_stream(int32_t index) {
  void* stream = nullptr;
  if (cuda().there()) check(cuda().current_stream(index, &stream), "the current stream");
  return stream;
}

Surroundings::Surroundings(const Device* device, void* stream)
    : recorded_(aoti_torch_grad_mode_is_enabled()) {
  if (device && cuda().there()) check(cuda().guard(stream, device->index(), &guard_), "a stream");
  if (recorded_) aoti_torch_grad_mode_set_enabled(false);
}
Surroundings::~Surroundings() {
  if (recorded_) aoti_torch_grad_mode_set_enabled(true);
  if (guard_) cuda().end_guard(guard_);
}

}  // namespace gyr
