// Calls a program with the test double under LeakSanitizer: well, and with each call of the ABI
// failing in turn. Arguments: calls that end well. Prints how many ended in an error.
#include <stdio.h>
#include <stdlib.h>

static AtenTensorHandle tensor(int32_t dtype, int64_t rank, const int64_t* sizes, const int64_t* strides) {
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(rank, sizes, strides, dtype, 0, 0, &made) != 0) abort();
  aoti_torch_zero_(made);
  return made;
}

extern "C" int32_t gy_main(GyProgramContext*, GyValue*, GyValue*);

static int32_t once(int64_t fail_at) {
  const int64_t sizes[] = {3, 2}, square[] = {2, 2}, strides[] = {2, 1};
  AtenTensorHandle constants[] = {tensor(aoti_torch_dtype_float32(), 2, square, strides)};
  GyValue in[3] = {}, out[OUTPUTS] = {};
  in[0].kind = GY_INT;
  in[0].integer = 3;
  in[1].kind = in[2].kind = GY_TENSOR;
  in[1].tensor = tensor(aoti_torch_dtype_float32(), 2, sizes, strides);
  in[2].tensor = tensor(aoti_torch_dtype_bool(), 0, nullptr, nullptr);
  char error[256];
  GyProgramContext context{};
  context.constants = constants;
  context.error = error;
  context.error_size = sizeof error;
  double_fail_at(fail_at);
  int32_t status = gy_main(&context, in, out);
  double_fail_at(-1);
  for (const GyValue& v : out)
    if (status == GY_OK && v.kind == GY_TENSOR) aoti_torch_delete_tensor_object(v.tensor);
  if (context.culprit != nullptr) aoti_torch_delete_tensor_object(context.culprit);
  aoti_torch_delete_tensor_object(constants[0]);
  if (double_alive() != 0) {
    printf("call %lld left %lld handles\n", (long long)fail_at, (long long)double_alive());
    exit(3);
  }
  return status;
}

int main(int, char** argv) {
  for (int k = atoi(argv[1]); k > 0; --k)
    if (once(-1) != GY_OK) return 2;
  int failed = 0;
  while (once(failed) != GY_OK) ++failed;
  printf("%d\n", failed);
  return 0;
}
