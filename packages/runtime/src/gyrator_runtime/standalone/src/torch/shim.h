// The part of libtorch's C ABI that is used (torch/csrc/inductor/aoti_torch/c/shim.h and
// torch/csrc/stable/c/shim.h, as of torch 2.11), declared here so that no PyTorch header is needed.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct AtenTensorOpaque;
struct StableListOpaque;
struct StringOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
using StableListHandle = StableListOpaque*;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;

int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
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
int32_t aoti_torch_dtype_complex64();
int32_t aoti_torch_dtype_complex128();
int32_t aoti_torch_layout_strided();
int32_t aoti_torch_layout__mkldnn();
int32_t aoti_torch_memory_format_contiguous_format();
int32_t aoti_torch_memory_format_channels_last();
int32_t aoti_torch_memory_format_channels_last_3d();
int32_t aoti_torch_memory_format_preserve_format();

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle);
AOTITorchError aoti_torch_new_uninitialized_tensor(AtenTensorHandle*);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle, AtenTensorHandle* made);
AOTITorchError aoti_torch_create_tensor_from_blob(
    void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset,
    int32_t dtype, int32_t device_type, int32_t device_index, AtenTensorHandle*);
AOTITorchError aoti_torch_is_defined(AtenTensorHandle, bool*);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle, void**);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle, int64_t*);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle, int64_t** borrowed);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle, int64_t** borrowed);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t*);
AOTITorchError aoti_torch_get_layout(AtenTensorHandle, int32_t*);

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

AOTITorchError aoti_torch_cpu_mm_out(AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle);
AOTITorchError aoti_torch_cpu_bmm_out(AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle);
AOTITorchError aoti_torch_cpu_addmm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double beta,
    double alpha);
AOTITorchError aoti_torch_cpu_baddbmm_out(
    AtenTensorHandle out, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double beta,
    double alpha);

// Null in a libtorch without oneDNN.
__attribute__((weak)) AOTITorchError aoti_torch_cpu__linear_pointwise(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, const char* function,
    const double** numbers, int64_t n_numbers, const char** algorithm, AtenTensorHandle*);
__attribute__((weak)) AOTITorchError aoti_torch_cpu_mkldnn__convolution_pointwise(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, const int64_t* padding,
    int64_t n_padding, const int64_t* stride, int64_t n_stride, const int64_t* dilation,
    int64_t n_dilation, int64_t groups, const char* function, const double** numbers,
    int64_t n_numbers, const char** algorithm, AtenTensorHandle*);
__attribute__((weak)) AOTITorchError aoti_torch_cpu_mkldnn__convolution_transpose_pointwise(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, const int64_t* padding,
    int64_t n_padding, const int64_t* more, int64_t n_more, const int64_t* stride, int64_t n_stride,
    const int64_t* dilation, int64_t n_dilation, int64_t groups, const char* function,
    const double** numbers, int64_t n_numbers, const char** algorithm, AtenTensorHandle*);
__attribute__((weak)) AOTITorchError aoti_torch_cpu_mkldnn__convolution_pointwise_binary(
    AtenTensorHandle x, AtenTensorHandle other, AtenTensorHandle weight, AtenTensorHandle* bias,
    const int64_t* padding, int64_t n_padding, const int64_t* stride, int64_t n_stride,
    const int64_t* dilation, int64_t n_dilation, int64_t groups, const char* binary, double* alpha,
    const char** function, const double** numbers, int64_t n_numbers, const char** algorithm,
    AtenTensorHandle*);

// Since torch 2.13; null in earlier versions.
__attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
}
