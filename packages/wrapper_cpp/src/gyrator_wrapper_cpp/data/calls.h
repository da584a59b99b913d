// Calls of this program: ops, hooks, users' kernels; scopes; the entry.

namespace gy {

using Drop = void (*)(StableIValue);

// An encoded argument, and the function that frees it if it is not consumed.
struct Slot {
  StableIValue value;
  Drop drop;
};

inline void drop_tensor(StableIValue v) {
  aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(v));
}
inline void drop_string(StableIValue v) { torch_delete_string(reinterpret_cast<StringHandle>(v)); }
inline void drop_generator(StableIValue v) {
  torch_delete_generator(reinterpret_cast<AtenGeneratorHandle>(v));
}

inline Slot none() { return {0, nullptr}; }
inline Slot integer(int64_t value) { return {static_cast<StableIValue>(value), nullptr}; }
inline Slot boolean(bool value) { return {static_cast<StableIValue>(value), nullptr}; }
inline Slot real(double value) {
  StableIValue bits = 0;
  memcpy(&bits, &value, sizeof value);
  return {bits, nullptr};
}
inline Slot tensor(const Tensor& value) {
  return {reinterpret_cast<StableIValue>(value.new_handle()), drop_tensor};
}
// The encoding of an undefined tensor.
inline Slot undefined() {
  AtenTensorHandle made = nullptr;
  check(aoti_torch_new_uninitialized_tensor(&made), "new_uninitialized_tensor");
  return {reinterpret_cast<StableIValue>(made), drop_tensor};
}
inline Slot text(const char* value, size_t length) {
  StringHandle made = nullptr;
  check(torch_new_string_handle(value, length, &made), "new_string_handle");
  return {reinterpret_cast<StableIValue>(made), drop_string};
}
inline Slot where(Device device) {
  StableIValue index = static_cast<uint32_t>(device.index);
  return {static_cast<StableIValue>(static_cast<uint32_t>(device.type)) << 32 | index, nullptr};
}
inline Slot generator(const GyValue& value) {
  if (torch_new_generator_handle == nullptr)
    fail(GY_RUNTIME_ERROR, "generator arguments need torch 2.13");
  AtenGeneratorHandle made = nullptr;
  check(
      torch_new_generator_handle(reinterpret_cast<AtenGeneratorHandle>(value.bits), &made),
      "new_generator_handle");
  return {reinterpret_cast<StableIValue>(made), drop_generator};
}

// A value of an optional type is stored in a box, which the call frees, as it frees lists. Those
// that are not consumed free their contents: drop functions have no state, so there is one for each
// kind of content.
template <Drop inner>
void drop_box(StableIValue v) {
  auto* box = reinterpret_cast<StableIValue*>(v);
  if (box != nullptr && inner != nullptr) inner(*box);
  delete box;
}

template <Drop inner>
void drop_list(StableIValue v) {
  auto* list = reinterpret_cast<StableListHandle>(v);
  size_t size = 0;
  if (inner != nullptr && torch_list_size(list, &size) == 0)
    for (size_t k = 0; k < size; ++k) {
      StableIValue item = 0;
      if (torch_list_get_item(list, k, &item) == 0) inner(item);
    }
  torch_delete_list(list);
}

inline Drop drop_list_of(Drop inner) {
  return inner == drop_tensor             ? drop_list<drop_tensor>
         : inner == drop_string           ? drop_list<drop_string>
         : inner == drop_box<drop_tensor> ? drop_list<drop_box<drop_tensor>>
                                          : drop_list<nullptr>;
}

inline Drop drop_box_of(Drop inner) {
  return inner == drop_tensor                          ? drop_box<drop_tensor>
         : inner == drop_string                        ? drop_box<drop_string>
         : inner == drop_generator                     ? drop_box<drop_generator>
         : inner == drop_list<nullptr>                 ? drop_box<drop_list<nullptr>>
         : inner == drop_list<drop_tensor>             ? drop_box<drop_list<drop_tensor>>
         : inner == drop_list<drop_box<drop_tensor>>   ? drop_box<drop_list<drop_box<drop_tensor>>>
                                                       : drop_box<nullptr>;
}

inline Slot some(Slot content) {
  StableIValue* box = nullptr;
  AOTITorchError code = 0;
  if (torch_new_stable_ivalue != nullptr)
    code = torch_new_stable_ivalue(&box);
  else
    box = new StableIValue;
  if (code != 0) {
    if (content.drop != nullptr) content.drop(content.value);
    abi_failed("new_stable_ivalue");
  }
  *box = content.value;
  return {reinterpret_cast<StableIValue>(box), drop_box_of(content.drop)};
}

inline Slot maybe_generator(const GyValue& value) {
  return value.kind == GY_NONE ? none() : some(generator(value));
}

class List {
 public:
  explicit List(size_t size) {
    check(torch_new_list_reserve_size(size, &handle_), "new_list");
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() {
    if (handle_ != nullptr) drop_list_of(inner_)(reinterpret_cast<StableIValue>(handle_));
  }
  List& add(Slot item) {
    if (torch_list_push_back(handle_, item.value) != 0) {
      if (item.drop != nullptr) item.drop(item.value);
      abi_failed("list_push_back");
    }
    if (item.drop != nullptr) inner_ = item.drop;
    return *this;
  }
  Slot take() {
    Slot made{reinterpret_cast<StableIValue>(handle_), drop_list_of(inner_)};
    handle_ = nullptr;
    return made;
  }

 private:
  StableListHandle handle_ = nullptr;
  Drop inner_ = nullptr;
};

// Moves the tensors out of a list, and frees it.
inline void unpack(StableListHandle list, Tensor* const* into, size_t count) {
  size_t found = 0;
  AOTITorchError code = torch_list_size(list, &found);
  for (size_t k = 0; code == 0 && k < found; ++k) {
    StableIValue item = 0;
    code = torch_list_get_item(list, k, &item);
    if (code != 0) break;
    Tensor owned(reinterpret_cast<AtenTensorHandle>(item));
    if (k < count && into[k] != nullptr) *into[k] = static_cast<Tensor&&>(owned);
  }
  torch_delete_list(list);
  check(code, "list_get_item");
  if (found < count)
    fail(GY_RUNTIME_ERROR, "an op returned a list of %zu tensors, expected %zu", found, count);
}

// A call through the dispatcher. It owns arguments until libtorch consumes them, and results until
// they are moved out.
template <int size>
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (int k = 0; k < count_; ++k)
      if (drops_[k] != nullptr) drops_[k](slots_[k]);
  }
  Call& push(Slot slot) {
    slots_[count_] = slot.value;
    drops_[count_++] = slot.drop;
    return *this;
  }
  // `results` has a letter for each: T for a tensor, L for a list of tensors, else a number.
  void call(const char* op, const char* overload, const char* results) {
    count_ = 0;
    check(aoti_torch_call_dispatcher(op, overload, slots_), op);
    for (const char* r = results; *r != 0; ++r)
      drops_[count_++] = *r == 'T'   ? drop_tensor
                         : *r == 'L' ? drop_list<drop_tensor>
                                     : static_cast<Drop>(nullptr);
  }
  Tensor tensor(int k) {
    drops_[k] = nullptr;
    return Tensor(reinterpret_cast<AtenTensorHandle>(slots_[k]));
  }
  int64_t integer(int k) const { return static_cast<int64_t>(slots_[k]); }
  void list(int k, std::initializer_list<Tensor*> into) {
    drops_[k] = nullptr;
    unpack(reinterpret_cast<StableListHandle>(slots_[k]), into.begin(), into.size());
  }

 private:
  StableIValue slots_[size] = {};
  Drop drops_[size] = {};
  int count_ = 0;
};

// Returns whether a CPU operator may be called for a result: it ignores the conjugate bit, which
// complex tensors may have. `known` says that the result is known to be suitable.
inline bool direct(const void* function, const Tensor& out, bool known) {
  int32_t type = 0;
  if (function == nullptr) return false;
  if (known) return true;
  check(aoti_torch_get_device_type(out.get(), &type), "get_device_type");
  return type == aoti_torch_device_type_cpu() && is_float(out.dtype());
}

inline bool product(
    AOTITorchError (*function)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle), const char* op,
    bool known, const Tensor& out, const Tensor& a, const Tensor& b) {
  if (!direct(reinterpret_cast<const void*>(function), out, known)) return false;
  check(function(out.get(), a.get(), b.get()), op);
  return true;
}

inline bool product(
    AOTITorchError (*function)(
        AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double),
    const char* op, bool known, const Tensor& out, const Tensor& c, const Tensor& a,
    const Tensor& b, double beta, double alpha) {
  if (!direct(reinterpret_cast<const void*>(function), out, known)) return false;
  check(function(out.get(), c.get(), a.get(), b.get(), beta, alpha), op);
  return true;
}

// Values passed between programs and hooks; tensors that remain in them are freed.
template <int size>
struct Values {
  GyValue at[size == 0 ? 1 : size] = {};
  ~Values() {
    for (GyValue& v : at)
      if (v.kind == GY_TENSOR) aoti_torch_delete_tensor_object(v.tensor);
  }
};

inline GyValue value_none() { return GyValue{GY_NONE, 0, {nullptr}}; }
inline GyValue value_int(int64_t v) {
  GyValue made{GY_INT, 0, {nullptr}};
  made.integer = v;
  return made;
}
inline GyValue value_bool(bool v) {
  GyValue made{GY_BOOL, 0, {nullptr}};
  made.integer = v;
  return made;
}
inline GyValue value_float(double v) {
  GyValue made{GY_FLOAT, 0, {nullptr}};
  made.real = v;
  return made;
}
template <int32_t N>
GyValue value_text(const char (&v)[N], int32_t kind = GY_TEXT) {
  GyValue made{kind, N - 1, {nullptr}};
  made.text = v;
  return made;
}
inline GyValue value_tensor(AtenTensorHandle v) {
  GyValue made{GY_TENSOR, 0, {nullptr}};
  made.tensor = v;
  return made;
}
inline GyValue value_list(const GyValue* items, int32_t count, int32_t kind = GY_LIST) {
  GyValue made{kind, count, {nullptr}};
  made.items = items;
  return made;
}
inline GyValue value_descriptor(const GyDescriptor* v) {
  GyValue made{GY_DESCRIPTOR, 0, {nullptr}};
  made.descriptor = v;
  return made;
}

inline Tensor take(GyValue& value, const char* name) {
  if (value.kind == GY_LENT) return Tensor::borrowed(value.tensor);
  if (value.kind != GY_TENSOR) fail(GY_RUNTIME_ERROR, "%s is not a tensor", name);
  value.kind = GY_NONE;
  return Tensor(value.tensor);
}

inline int64_t int_of(const GyValue& value, const char* name) {
  if (value.kind != GY_INT && value.kind != GY_BOOL)
    fail(GY_RUNTIME_ERROR, "%s is not an integer", name);
  return value.integer;
}

inline void call_op(
    GyProgramContext* context, const char* op, const char* overload, const GyValue* args,
    int32_t n_args, const char* wanted, GyValue* results, int32_t n_results) {
  if (context->call_op == nullptr) fail(GY_RUNTIME_ERROR, "there is no hook to call %s", op);
  Error error{};
  error.status = context->call_op(
      context->state, op, overload, args, n_args, wanted, results, n_results, error.text,
      sizeof error.text);
  if (error.status != 0) throw error;
}

inline void launch_user(
    GyProgramContext* context, const char* kernel, const int64_t* grids, int32_t n_grids,
    const char* const* names, const GyValue* values, int32_t n_values, int32_t n_constants) {
  if (context->launch_user == nullptr)
    fail(GY_RUNTIME_ERROR, "there is no hook to launch %s", kernel);
  Error error{};
  error.status = context->launch_user(
      context->state, kernel, grids, n_grids, names, values, n_values, n_constants, error.text,
      sizeof error.text);
  if (error.status != 0) throw error;
}

// Scopes ----------------------------------------------------------------------------------------

struct Descriptor {
  GyDescriptor at;
  int64_t shape[8];
  int64_t block[8];
  Tensor tensor;

  void set(const Tensor& of, Ints sizes, Ints blocks, int64_t element_bytes, bool stable) {
    tensor = of.share();
    memcpy(shape, sizes.begin(), sizes.size() * sizeof(int64_t));
    memcpy(block, blocks.begin(), blocks.size() * sizeof(int64_t));
    at = {tensor.get(), static_cast<int32_t>(sizes.size()), stable, element_bytes, shape, block};
  }
  void reset() { tensor.reset(); }
};

class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    check(
        aoti_torch_create_device_guard(device.index < 0 ? 0 : device.index, &handle_),
        "create_device_guard");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { aoti_torch_delete_device_guard(handle_); }

 private:
  DeviceGuardHandle handle_ = nullptr;
};

class ProfileRange {
 public:
  explicit ProfileRange(const char* name) {
    check(aoti_record_function_start(name, nullptr, nullptr, 0, &handle_), "record_function");
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
  ~ProfileRange() { aoti_record_function_end(handle_); }

 private:
  AtenRecordFunctionHandle handle_ = nullptr;
};

inline void drop_tensors(GyValue* values, int count) {
  for (int k = 0; k < count; ++k)
    if (values[k].kind == GY_TENSOR) {
      aoti_torch_delete_tensor_object(values[k].tensor);
      values[k] = value_none();
    }
}

using Run = void (*)(GyProgramContext*, GyValue* inputs, GyValue* outputs);

// Runs a program; on failure, frees the inputs that it has not consumed, and its outputs.
inline int32_t enter(
    Run run, GyProgramContext* context, GyValue* inputs, int n_inputs, GyValue* outputs,
    int n_outputs) {
  const char* text = "an unknown C++ exception";
  int32_t status = GY_RUNTIME_ERROR;
  for (int k = 0; k < n_outputs; ++k) outputs[k] = value_none();
  Error caught;
  try {
    run(context, inputs, outputs);
    return GY_OK;
  } catch (const Error& error) {
    caught = error;
    text = caught.text;
    status = caught.status;
  } catch (...) {
  }
  drop_tensors(inputs, n_inputs);
  drop_tensors(outputs, n_outputs);
  if (context->error != nullptr && context->error_size > 0)
    snprintf(context->error, static_cast<size_t>(context->error_size), "%s", text);
  return status;
}

}  // namespace gy

#pragma GCC pop_options
