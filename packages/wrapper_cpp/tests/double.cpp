// A test double of the part of libtorch's C ABI that host programs use: strided tensors on malloc,
// a few ops behind the dispatcher, a count of what is alive, and a switch that fails the n-th call.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

enum : int32_t { U8, I8, I16, I32, I64, F16, F32, F64, BOOL, BF16, U16, U32, U64, OTHER };

static int64_t alive = 0;
static int64_t calls = 0;
static int64_t fail_at = -1;

extern "C" int64_t double_alive() { return alive; }
extern "C" int64_t double_calls() { return calls; }
extern "C" void double_fail_at(int64_t n) {
  calls = 0;
  fail_at = n;
}
static bool failing() { return calls++ == fail_at; }
#define MAY_FAIL if (failing()) return 1

struct Counted {
  Counted() { ++alive; }
  Counted(const Counted&) { ++alive; }
  ~Counted() { --alive; }
};
struct AtenTensorOpaque : Counted {
  std::shared_ptr<std::vector<char>> storage;
  int64_t offset = 0;
  int32_t dtype = F32;
  std::vector<int64_t> sizes, strides;
};
struct StableListOpaque : Counted {
  std::vector<StableIValue> items;
};
struct StringOpaque : Counted {
  std::string text;
};
struct DeviceGuardOpaque : Counted {};
struct AtenRecordFunctionOpaque : Counted {};
struct StreamOpaque : Counted {};
using T = AtenTensorOpaque;

static int64_t width(int32_t dtype) {
  static const int64_t sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 1, 2, 2, 4, 8, 1};
  return sizes[dtype];
}
static int64_t span(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  int64_t last = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last;
}
static char* base(const T* t) { return t->storage->data() + t->offset * width(t->dtype); }
static int64_t numel(const T* t) {
  int64_t n = 1;
  for (int64_t s : t->sizes) n *= s;
  return n;
}
static bool fits(const T* t) {
  int64_t n = span(t->sizes, t->strides);
  return t->offset >= 0 &&
         (t->offset + n) * width(t->dtype) <= static_cast<int64_t>(t->storage->size());
}
static T* make(int32_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  T* t = new T;
  t->dtype = dtype;
  int64_t bytes = span(sizes, strides) * width(dtype);
  t->storage = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes), '\xAB');
  t->sizes = std::move(sizes);
  t->strides = std::move(strides);
  return t;
}
static double get(const T* t, int64_t at) {
  const char* p = base(t) + at * width(t->dtype);
  switch (t->dtype) {
    case F32: return *reinterpret_cast<const float*>(p);
    case F64: return *reinterpret_cast<const double*>(p);
    case I64: return static_cast<double>(*reinterpret_cast<const int64_t*>(p));
    case I32: return *reinterpret_cast<const int32_t*>(p);
    default: return *reinterpret_cast<const unsigned char*>(p);
  }
}
static void put(T* t, int64_t at, double v) {
  char* p = base(t) + at * width(t->dtype);
  switch (t->dtype) {
    case F32: *reinterpret_cast<float*>(p) = static_cast<float>(v); break;
    case F64: *reinterpret_cast<double*>(p) = v; break;
    case I64: *reinterpret_cast<int64_t*>(p) = static_cast<int64_t>(v); break;
    case I32: *reinterpret_cast<int32_t*>(p) = static_cast<int32_t>(v); break;
    default: *p = static_cast<char>(v);
  }
}
static int64_t place(const T* t, int64_t k) {
  int64_t at = 0;
  for (size_t d = t->sizes.size(); d-- > 0; k /= t->sizes[d]) at += k % t->sizes[d] * t->strides[d];
  return at;
}

extern "C" {

#define CODE(name, value) \
  int32_t aoti_torch_##name() { return value; }
CODE(device_type_cpu, 0) CODE(device_type_cuda, 1) CODE(device_type_meta, 2)
CODE(device_type_xpu, 3) CODE(device_type_mps, 4)
CODE(dtype_float8_e5m2, 100) CODE(dtype_float8_e4m3fn, 101) CODE(dtype_float8_e5m2fnuz, 102)
CODE(dtype_float8_e4m3fnuz, 103) CODE(dtype_bfloat16, BF16) CODE(dtype_float16, F16)
CODE(dtype_float32, F32) CODE(dtype_float64, F64) CODE(dtype_uint8, U8) CODE(dtype_uint16, U16)
CODE(dtype_uint32, U32) CODE(dtype_uint64, U64) CODE(dtype_int8, I8) CODE(dtype_int16, I16)
CODE(dtype_int32, I32) CODE(dtype_int64, I64) CODE(dtype_bool, BOOL) CODE(dtype_complex32, 104)
CODE(dtype_complex64, 105) CODE(dtype_complex128, 106)
CODE(layout_strided, 0) CODE(memory_format_contiguous_format, 0)
size_t aoti_torch_dtype_element_size(int32_t dtype) { return static_cast<size_t>(width(dtype)); }
AOTITorchError torch_parse_device_string(const char* text, uint32_t* type, int32_t* index) {
  MAY_FAIL;
  *type = std::strncmp(text, "mydev", 5) == 0 ? 20 : 0;
  *index = 0;
  return 0;
}
AOTITorchError aoti_torch_delete_tensor_object(T* t) {
  delete t;
  return 0;
}
AOTITorchError aoti_torch_new_tensor_handle(T* t, T** out) {
  MAY_FAIL;
  *out = new T(*t);
  return 0;
}
AOTITorchError aoti_torch_new_uninitialized_tensor(T** out) {
  MAY_FAIL;
  *out = new T();
  return 0;
}
AOTITorchError aoti_torch_get_data_ptr(T* t, void** out) {
  MAY_FAIL;
  *out = base(t);
  return 0;
}
AOTITorchError aoti_torch_get_dim(T* t, int64_t* out) {
  MAY_FAIL;
  *out = static_cast<int64_t>(t->sizes.size());
  return 0;
}
AOTITorchError aoti_torch_get_numel(T* t, int64_t* out) {
  MAY_FAIL;
  *out = numel(t);
  return 0;
}
AOTITorchError aoti_torch_get_size(T* t, int64_t d, int64_t* out) {
  MAY_FAIL;
  *out = t->sizes.at(static_cast<size_t>(d));
  return 0;
}
AOTITorchError aoti_torch_get_stride(T* t, int64_t d, int64_t* out) {
  MAY_FAIL;
  *out = t->strides.at(static_cast<size_t>(d));
  return 0;
}
AOTITorchError aoti_torch_get_dtype(T* t, int32_t* out) {
  MAY_FAIL;
  *out = t->dtype;
  return 0;
}
AOTITorchError aoti_torch_get_sizes(T* t, int64_t** out) {
  MAY_FAIL;
  *out = t->sizes.data();
  return 0;
}
AOTITorchError aoti_torch_get_strides(T* t, int64_t** out) {
  MAY_FAIL;
  *out = t->strides.data();
  return 0;
}
AOTITorchError aoti_torch_get_device_type(T*, int32_t* out) {
  MAY_FAIL;
  *out = aoti_torch_device_type_cpu();
  return 0;
}
AOTITorchError aoti_torch_get_device_index(T*, int32_t* out) {
  MAY_FAIL;
  *out = 0;
  return 0;
}
AOTITorchError aoti_torch_get_storage_offset(T* t, int64_t* out) {
  MAY_FAIL;
  *out = t->offset;
  return 0;
}
static AOTITorchError give(T* made, T** out) {
  if (!fits(made)) {
    delete made;
    return 1;
  }
  *out = made;
  return 0;
}
AOTITorchError aoti_torch__alloc_from_pool(
    T* t, int64_t offset, int32_t dtype, int64_t ndim, const int64_t* sizes,
    const int64_t* strides, T** out) {
  MAY_FAIL;
  if (t->offset != 0 || offset % width(dtype) != 0) return 1;
  T* made = new T(*t);
  made->dtype = dtype;
  made->offset = offset / width(dtype);
  made->sizes.assign(sizes, sizes + ndim);
  made->strides.assign(strides, strides + ndim);
  return give(made, out);
}
AOTITorchError aoti_torch__reinterpret_tensor(
    T* t, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset, T** out) {
  MAY_FAIL;
  T* made = new T(*t);
  made->offset += offset;
  made->sizes.assign(sizes, sizes + ndim);
  made->strides.assign(strides, strides + ndim);
  return give(made, out);
}
AOTITorchError aoti_torch_clone(T* t, T** out) {
  MAY_FAIL;
  *out = new T(*t);
  (*out)->storage = std::make_shared<std::vector<char>>(*t->storage);
  return 0;
}
AOTITorchError aoti_torch_empty_strided(
    int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t, int32_t,
    T** out) {
  MAY_FAIL;
  *out = make(dtype, {sizes, sizes + ndim}, {strides, strides + ndim});
  return 0;
}
AOTITorchError aoti_torch_copy_(T* to, T* from, int32_t) {
  MAY_FAIL;
  if (to->sizes != from->sizes) return 1;
  if (to->dtype == from->dtype && numel(to) == 1)
    std::memcpy(base(to), base(from), static_cast<size_t>(width(to->dtype)));
  else
    for (int64_t k = 0; k < numel(to); ++k) put(to, place(to, k), get(from, place(from, k)));
  return 0;
}
AOTITorchError aoti_torch_zero_(T* t) {
  MAY_FAIL;
  for (int64_t k = 0; k < numel(t); ++k) put(t, place(t, k), 0);
  return 0;
}
AOTITorchError aoti_torch_check_inf_and_nan(const char*, T* t) {
  MAY_FAIL;
  for (int64_t k = 0; k < numel(t); ++k)
    if (!std::isfinite(get(t, place(t, k)))) return 1;
  return 0;
}
#define ITEM(name, type)                                       \
  AOTITorchError aoti_torch_item_##name(T* t, type* out) {     \
    MAY_FAIL;                                                  \
    if (numel(t) != 1) return 1;                               \
    std::memcpy(out, base(t), sizeof(type));                   \
    return 0;                                                  \
  }
ITEM(float32, float) ITEM(float64, double) ITEM(uint8, uint8_t) ITEM(uint16, uint16_t)
ITEM(uint32, uint32_t) ITEM(uint64, uint64_t) ITEM(int8, int8_t) ITEM(int16, int16_t)
ITEM(int32, int32_t) ITEM(int64, int64_t) ITEM(bool, bool)

AOTITorchError torch_new_list_reserve_size(size_t, StableListHandle* out) {
  MAY_FAIL;
  *out = new StableListOpaque;
  return 0;
}
AOTITorchError torch_list_size(StableListHandle l, size_t* out) {
  *out = l->items.size();
  return 0;
}
AOTITorchError torch_list_get_item(StableListHandle l, size_t k, StableIValue* out) {
  *out = l->items.at(k);
  return 0;
}
AOTITorchError torch_list_push_back(StableListHandle l, StableIValue v) {
  MAY_FAIL;
  l->items.push_back(v);
  return 0;
}
AOTITorchError torch_delete_list(StableListHandle l) {
  delete l;
  return 0;
}
AOTITorchError torch_new_string_handle(const char* text, size_t n, StringHandle* out) {
  MAY_FAIL;
  *out = new StringOpaque;
  (*out)->text.assign(text, n);
  return 0;
}
AOTITorchError torch_delete_string(StringHandle s) {
  delete s;
  return 0;
}
AOTITorchError aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* out) {
  MAY_FAIL;
  *out = new DeviceGuardOpaque;
  return 0;
}
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle g) {
  delete g;
  return 0;
}
AOTITorchError aoti_record_function_start(
    const char*, void*, const void*, uint64_t, AtenRecordFunctionHandle* out) {
  MAY_FAIL;
  *out = new AtenRecordFunctionOpaque;
  return 0;
}
AOTITorchError aoti_record_function_end(AtenRecordFunctionHandle h) {
  delete h;
  return 0;
}
}

// Ops --------------------------------------------------------------------------------------------

using Owned = std::unique_ptr<T>;
static Owned owned(StableIValue v) { return Owned(reinterpret_cast<T*>(v)); }
static StableIValue given(T* t) { return reinterpret_cast<StableIValue>(t); }
static Owned unary(const T* x, double (*f)(double, double), double n, int32_t dtype) {
  std::vector<int64_t> strides(x->sizes.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * x->sizes[d];
  Owned made(make(dtype, x->sizes, strides));
  for (int64_t k = 0; k < numel(x); ++k) put(made.get(), k, f(get(x, place(x, k)), n));
  return made;
}
static int split(StableIValue* s, bool fails) {
  std::unique_ptr<StableListOpaque> list(reinterpret_cast<StableListHandle>(s[0]));
  std::vector<Owned> items;
  for (StableIValue v : list->items) items.push_back(owned(v));
  std::unique_ptr<int64_t> count(reinterpret_cast<int64_t*>(s[2]));
  std::unique_ptr<StringOpaque> text(reinterpret_cast<StringHandle>(s[5]));
  if (fails || text->text != "row") return 1;
  auto* made = new StableListOpaque;
  for (auto& x : items) {
    Owned row(new T(*x));
    row->sizes.pop_back();
    row->strides.pop_back();
    made->items.push_back(given(row.release()));
  }
  int64_t extra = count != nullptr ? *count : 0;
  s[1] = static_cast<StableIValue>(static_cast<int64_t>(s[1]) + extra);
  s[0] = reinterpret_cast<StableIValue>(made);
  s[2] = given(make(F32, {}, {}));
  return 0;
}
static int mm(StableIValue* s, bool fails) {
  Owned a = owned(s[0]), b = owned(s[1]), out = owned(s[2]);
  if (fails || a->sizes[1] != b->sizes[0]) return 1;
  for (int64_t i = 0; i < a->sizes[0]; ++i)
    for (int64_t j = 0; j < b->sizes[1]; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < a->sizes[1]; ++k)
        sum += get(a.get(), i * a->strides[0] + k * a->strides[1]) *
               get(b.get(), k * b->strides[0] + j * b->strides[1]);
      put(out.get(), i * out->strides[0] + j * out->strides[1], sum);
    }
  s[0] = given(out.release());
  return 0;
}
extern "C" AOTITorchError aoti_torch_call_dispatcher(
    const char* op, const char* overload, StableIValue* s) {
  bool fails = failing();
  std::string name = std::string(op) + "." + overload;
  if (name == "test::split.") return split(s, fails);
  if (name == "aten::mm.out") return mm(s, fails);
  if (name == "test::zero.") {
    if (fails) return 1;
    T* t = make(I64, {}, {});
    put(t, 0, 0);
    s[0] = given(t);
    return 0;
  }
  Owned x = owned(s[0]);
  if (name == "_c10d_functional::all_reduce.") {
    delete reinterpret_cast<StringHandle>(s[1]);
    delete reinterpret_cast<StringHandle>(s[2]);
  }
  if (fails) return 1;
  if (name == "_c10d_functional::wait_tensor." || name == "test::same.") {
    s[0] = given(x.release());
    return 0;
  }
  double n = static_cast<double>(static_cast<int64_t>(s[1]));
  if (name == "test::double." || name == "_c10d_functional::all_reduce.") {
    s[0] = given(unary(x.get(), [](double a, double) { return 2 * a; }, 0, x->dtype).release());
  } else if (name == "test::below.") {
    s[0] = given(unary(x.get(), [](double a, double b) { return double(a < b); }, n, BOOL).release());
  } else if (name == "test::next.") {
    s[0] = given(unary(x.get(), [](double a, double) { return a + 1; }, 0, x->dtype).release());
  } else {
    return 1;
  }
  return 0;
}
