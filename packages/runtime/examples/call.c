/* Calls the first entry point of a package, with ones, and prints what it gives.
 *
 *   gyrator aot library --out prefix
 *   gcc call.c -o call -Iprefix/include -Lprefix/lib -lgyrator_runtime -Wl,-rpath,$PWD/prefix/lib
 *   ./call model.gya
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gyrator.h"

#define CHECK(call)                                                            \
  do {                                                                         \
    gyr_status status_ = (call);                                               \
    if (status_) {                                                             \
      fprintf(stderr, "%s: %s\n", gyr_status_name(status_), gyr_last_error()); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* A size: what it is, or what it is with its symbol at 3, or as near as it may be. */
static int64_t size_of(const gyr_entry *entry, const gyr_size *size) {
  if (size->symbol < 0) return size->offset;
  const gyr_symbol *symbol = &entry->symbols[size->symbol];
  int64_t number = 3;
  if (number < symbol->least) number = symbol->least;
  if (number > symbol->most) number = symbol->most;
  return size->factor * number + size->offset;
}

static gyr_tensor ones(const gyr_entry *entry, const gyr_value *like) {
  int64_t count = 1, *sizes = malloc(sizeof(int64_t) * (size_t)(like->ndim + 1));
  for (int k = 0; k < like->ndim; k++) count *= sizes[k] = size_of(entry, &like->sizes[k]);
  float *data = malloc(sizeof(float) * (size_t)(count + 1));
  for (int64_t k = 0; k < count; k++) data[k] = 1;
  gyr_tensor made = {.data = data, .dtype = GYR_FLOAT32, .ndim = like->ndim, .sizes = sizes};
  return made;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s model.gya\n", argv[0]);
    return 2;
  }
  gyr_package *package;
  gyr_instance *model;
  gyr_entry entry;
  CHECK(gyr_package_open(argv[1], NULL, &package));
  CHECK(gyr_instance_create(package, NULL, &model));
  CHECK(gyr_package_entry(package, 0, &entry));

  gyr_tensor *inputs = calloc(entry.n_inputs + 1, sizeof *inputs);
  gyr_tensor *outputs = calloc(entry.n_outputs + 1, sizeof *outputs);
  for (size_t k = 0; k < entry.n_inputs; k++) inputs[k] = ones(&entry, &entry.inputs[k]);
  CHECK(gyr_run(model, 0, inputs, entry.n_inputs, outputs, entry.n_outputs));

  for (size_t k = 0; k < entry.n_outputs; k++) {
    int64_t count = 1;
    for (int d = 0; d < outputs[k].ndim; d++) count *= outputs[k].sizes[d];
    for (int64_t n = 0; outputs[k].dtype == GYR_FLOAT32 && n < count; n++)
      printf("%.9g\n", ((float *)outputs[k].data)[n]);
    gyr_tensor_release(&outputs[k]);
  }
  for (size_t k = 0; k < entry.n_inputs; k++) {
    free((void *)inputs[k].sizes);
    free(inputs[k].data);
  }
  free(inputs);
  free(outputs);
  gyr_instance_close(model);
  gyr_package_close(package);
  return 0;
}
