// A custom operator, registered by libtorch's C ABI when the library is loaded.
#include <cstdint>

extern "C" {
using Tensor = void*;
int32_t aoti_torch_library_init_fragment(const char*, const char*, uint32_t, void**);
int32_t aoti_torch_library_init_impl(const char*, const char*, const char*, uint32_t, void**);
int32_t aoti_torch_library_def(void*, const char*);
int32_t aoti_torch_library_impl(void*, const char*, void (*)(uint64_t*, uint64_t, uint64_t));
int32_t aoti_torch_clone(Tensor, Tensor*);
int32_t aoti_torch_delete_tensor_object(Tensor);
int32_t aoti_torch_get_data_ptr(Tensor, void**);
int32_t aoti_torch_get_numel(Tensor, int64_t*);
}

static void twice(uint64_t* stack, uint64_t, uint64_t) {
  Tensor given = reinterpret_cast<Tensor>(stack[0]), made = nullptr;
  void* data = nullptr;
  int64_t count = 0;
  aoti_torch_clone(given, &made);
  aoti_torch_delete_tensor_object(given);
  aoti_torch_get_data_ptr(made, &data);
  aoti_torch_get_numel(made, &count);
  for (int64_t k = 0; k < count; k++) static_cast<float*>(data)[k] *= 2;
  stack[0] = reinterpret_cast<uint64_t>(made);
}

__attribute__((constructor)) static void registered() {
  void *schema = nullptr, *kernel = nullptr;
  aoti_torch_library_init_fragment("gyrator_tests", __FILE__, __LINE__, &schema);
  aoti_torch_library_def(schema, "twice(Tensor x) -> Tensor");
  aoti_torch_library_init_impl("gyrator_tests", "CPU", __FILE__, __LINE__, &kernel);
  aoti_torch_library_impl(kernel, "twice", twice);
}
