// The part of libtorch's C ABI that this program uses, declared here so that no header is needed.
#include <stddef.h>
#include <stdint.h>

#define GY_WEAK __attribute__((weak))

extern "C" {

struct AtenTensorOpaque;
struct AtenGeneratorOpaque;
struct AtenRecordFunctionOpaque;
struct DeviceGuardOpaque;
struct StableListOpaque;
struct StringOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using AtenGeneratorHandle = AtenGeneratorOpaque*;
using AtenRecordFunctionHandle = AtenRecordFunctionOpaque*;
using DeviceGuardHandle = DeviceGuardOpaque*;
using StableListHandle = StableListOpaque*;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_device_type_meta();
int32_t aoti_torch_device_type_xpu();
int32_t aoti_torch_device_type_mps();
AOTITorchError torch_parse_device_string(const char*, uint32_t* type, int32_t* index);

int32_t aoti_torch_dtype_float8_e5m2();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_float8_e5m2fnuz();
int32_t aoti_torch_dtype_float8_e4m3fnuz();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_uint16();
int32_t aoti_torch_dtype_uint32();
int32_t aoti_torch_dtype_uint64();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_bool();
int32_t aoti_torch_dtype_complex32();
int32_t aoti_torch_dtype_complex64();
int32_t aoti_torch_dtype_complex128();
size_t aoti_torch_dtype_element_size(int32_t);
int32_t aoti_torch_layout_strided();
int32_t aoti_torch_layout_sparse_coo();
int32_t aoti_torch_layout_sparse_csr();
int32_t aoti_torch_layout_sparse_csc();
int32_t aoti_torch_layout_sparse_bsr();
int32_t aoti_torch_layout_sparse_bsc();
int32_t aoti_torch_layout__mkldnn();
int32_t aoti_torch_layout_jagged();
int32_t aoti_torch_memory_format_contiguous_format();
int32_t aoti_torch_memory_format_channels_last();
int32_t aoti_torch_memory_format_channels_last_3d();
int32_t aoti_torch_memory_format_preserve_format();

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle, AtenTensorHandle*);
AOTITorchError aoti_torch_new_uninitialized_tensor(AtenTensorHandle*);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle, void**);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle, int64_t*);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle, int64_t** borrowed);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle, int64_t** borrowed);
AOTITorchError aoti_torch_get_numel(AtenTensorHandle, int64_t*);
AOTITorchError aoti_torch_get_size(AtenTensorHandle, int64_t, int64_t*);
AOTITorchError aoti_torch_get_stride(AtenTensorHandle, int64_t, int64_t*);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_get_storage_offset(AtenTensorHandle, int64_t*);
AOTITorchError aoti_torch__alloc_from_pool(
    AtenTensorHandle, int64_t offset_bytes, int32_t dtype, int64_t ndim, const int64_t* sizes,
    const int64_t* strides, AtenTensorHandle*);
AOTITorchError aoti_torch__reinterpret_tensor(
    AtenTensorHandle, int64_t ndim, const int64_t* sizes, const int64_t* strides,
    int64_t offset_increment, AtenTensorHandle*);
AOTITorchError aoti_torch_empty_strided(
    int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
    int32_t device_index, AtenTensorHandle*);
AOTITorchError aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle src, int32_t non_blocking);
AOTITorchError aoti_torch_clone(AtenTensorHandle self, AtenTensorHandle*);
AOTITorchError aoti_torch_check_inf_and_nan(const char* name, AtenTensorHandle);
AOTITorchError aoti_torch_item_float32(AtenTensorHandle, float*);
AOTITorchError aoti_torch_item_float64(AtenTensorHandle, double*);
AOTITorchError aoti_torch_item_uint8(AtenTensorHandle, uint8_t*);
AOTITorchError aoti_torch_item_uint16(AtenTensorHandle, uint16_t*);
AOTITorchError aoti_torch_item_uint32(AtenTensorHandle, uint32_t*);
AOTITorchError aoti_torch_item_uint64(AtenTensorHandle, uint64_t*);
AOTITorchError aoti_torch_item_int8(AtenTensorHandle, int8_t*);
AOTITorchError aoti_torch_item_int16(AtenTensorHandle, int16_t*);
AOTITorchError aoti_torch_item_int32(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_item_int64(AtenTensorHandle, int64_t*);
AOTITorchError aoti_torch_item_bool(AtenTensorHandle, bool*);

bool aoti_torch_grad_mode_is_enabled();
void aoti_torch_grad_mode_set_enabled(bool);

AOTITorchError aoti_torch_call_dispatcher(const char* op, const char* overload, StableIValue*);
AOTITorchError torch_new_list_reserve_size(size_t, StableListHandle*);
AOTITorchError torch_list_size(StableListHandle, size_t*);
AOTITorchError torch_list_get_item(StableListHandle, size_t, StableIValue*);
AOTITorchError torch_list_push_back(StableListHandle, StableIValue);
AOTITorchError torch_delete_list(StableListHandle);
AOTITorchError torch_new_string_handle(const char*, size_t, StringHandle*);
AOTITorchError torch_delete_string(StringHandle);

AOTITorchError aoti_torch_create_device_guard(int32_t index, DeviceGuardHandle*);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle);
AOTITorchError aoti_record_function_start(
    const char* name, void* kwargs, const void* inputs, uint64_t n_inputs,
    AtenRecordFunctionHandle*);
AOTITorchError aoti_record_function_end(AtenRecordFunctionHandle);

// CPU operators that bypass the dispatcher. Null if libtorch lacks them.
GY_WEAK AOTITorchError aoti_torch_cpu_mm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle);
GY_WEAK AOTITorchError aoti_torch_cpu_bmm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle);
GY_WEAK AOTITorchError aoti_torch_cpu_addmm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double beta,
    double alpha);
GY_WEAK AOTITorchError aoti_torch_cpu_baddbmm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double beta,
    double alpha);

// Since 2.13; null before.
GY_WEAK const char* torch_exception_get_what_without_backtrace();
GY_WEAK AOTITorchError torch_new_stable_ivalue(StableIValue**);
GY_WEAK AOTITorchError torch_new_generator_handle(AtenGeneratorHandle, AtenGeneratorHandle*);
GY_WEAK AOTITorchError torch_delete_generator(AtenGeneratorHandle);

// The interface of a host program -----------------------------------------------------------------

enum GyStatus : int32_t {
  GY_OK = 0,
  GY_RUNTIME_ERROR = 1,    // raise RuntimeError(error)
  GY_KERNEL_ERROR = 3,     // check `kernel_code` of kernel number `kernel` failed
  GY_NAN_ERROR = 4,        // `culprit`, which `error` describes, holds NaN or infinity
  GY_DIVISION_ERROR = 5,   // raise ZeroDivisionError(error)
  GY_HOOK_ERROR = 6,       // a hook failed and stores its own error
  GY_INPUT_ERROR = 7,      // an input is not what the program was compiled for; `error` says how
  GY_RESULT_ERROR = 8,     // a result of an op differs from that of its meta function
  GY_INDEX_ERROR = 9,      // raise IndexError(error)
  GY_OVERFLOW_ERROR = 10,  // raise OverflowError(error)
  GY_VALUE_ERROR = 11,     // raise ValueError(error)
};

enum GyKind : int32_t {
  GY_NONE = 0,
  GY_TENSOR = 1,
  GY_INT = 2,
  GY_FLOAT = 3,
  GY_BOOL = 4,        // in `integer`
  GY_TEXT = 5,        // `count` bytes at `text`, which outlive the program
  GY_TYPE = 6,        // `text` is "dtype:float32", "device:cpu", "layout:...", "memory_format:..."
  GY_OPAQUE = 7,      // the bits of a handle, never owned by a program
  GY_LIST = 8,        // `count` values at `items`
  GY_DESCRIPTOR = 9,
  GY_COMPLEX = 10,    // two floats at `items`
  GY_LENT = 11,       // in `tensor`, owned by the caller for the duration of the call
};

struct GyDescriptor;

struct GyValue {
  int32_t kind;
  int32_t count;
  union {
    AtenTensorHandle tensor;
    int64_t integer;
    double real;
    const char* text;
    uint64_t bits;
    const GyValue* items;
    const GyDescriptor* descriptor;
  };
};

// A tensor map for a user's kernel. The tensor is borrowed.
struct GyDescriptor {
  AtenTensorHandle tensor;
  int32_t rank;
  int32_t stable;
  int64_t element_bytes;
  const int64_t* shape;
  const int64_t* block;
};

using GyKernel = int64_t (*)(void* const* buffers, const int64_t* sizes);

// Calls an op that the C ABI does not support. `args` match the schema and are borrowed. `wanted`
// has a letter for each of the op's results: 1 for a tensor or an integer, L for a list of tensors,
// 0 for an unused one. `results` receives them in order, with lists flattened; its tensors are
// owned by the caller. Returns 0, or a GyStatus with the message in `error`.
using GyCallOp = int32_t (*)(
    void* state, const char* op, const char* overload, const GyValue* args, int32_t n_args,
    const char* wanted, GyValue* results, int32_t n_results, char* error, int64_t error_size);

// Launches a user's kernel: `n_grids` grids of 3, then named arguments, the last `n_constants` of
// which are compile-time constants. Returns the same as GyCallOp.
using GyLaunchUser = int32_t (*)(
    void* state, const char* kernel, const int64_t* grids, int32_t n_grids,
    const char* const* names, const GyValue* values, int32_t n_values, int32_t n_constants,
    char* error, int64_t error_size);

// A function of another translation unit of the same program, which is cast to its type there.
using GyPart = void (*)();

// Calls, total and least nanoseconds of a kernel's launches.
struct GyTimes {
  int64_t calls;
  int64_t total;
  int64_t least;
};

struct GyProgramContext {
  const GyKernel* kernels;            // in the order of Program.kernels
  const AtenTensorHandle* constants;  // in the order of Program.constants, borrowed
  char* error;                        // receives a message that ends in a zero byte
  int64_t error_size;                 // bytes there
  int64_t kernel;                     // set with GY_KERNEL_ERROR
  int64_t kernel_code;                // set with GY_KERNEL_ERROR
  void* state;                        // passed to the hooks, which may be null if unused
  GyCallOp call_op;
  GyLaunchUser launch_user;
  const GyPart* parts;                // the symbols of the second, third ... unit, in order
  GyTimes* times;                     // null, or a row for each kernel, updated by launches
  AtenTensorHandle culprit;           // set with GY_NAN_ERROR, for the caller to free
};
}
