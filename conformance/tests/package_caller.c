/* package_caller PACKAGE LEVEL: one call of a standalone package, on the tensors of stdin; results
 * go to stdout. A tensor is five numbers of 64 bits and more: element type, dimensions, sizes,
 * strides, bytes; then its memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gyrator.h"

#define MOST 64

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, gyr_last_error());
  exit(1);
}

static void take(void *to, size_t bytes) {
  if (bytes && fread(to, bytes, 1, stdin) != 1) fail("stdin");
}

static int64_t number(void) {
  int64_t n;
  take(&n, sizeof n);
  return n;
}

static gyr_tensor read_tensor(void) {
  const gyr_dtype dtype = (gyr_dtype)number();
  const int32_t ndim = (int32_t)number();
  int64_t *shape = malloc(2 * sizeof *shape * (size_t)(ndim + 1));
  take(shape, 2 * sizeof *shape * (size_t)ndim);
  const size_t bytes = (size_t)number();
  void *data = aligned_alloc(64, (bytes + 127) / 64 * 64);
  take(data, bytes);
  const gyr_tensor made = {.data = data, .dtype = dtype, .ndim = ndim, .sizes = shape,
                           .strides = shape + ndim};
  return made;
}

static void write_tensor(const gyr_tensor *t) {
  int64_t bytes = t->dtype == GYR_NONE ? 0 : (int64_t)gyr_dtype_size(t->dtype), last = 0;
  for (int32_t d = 0; d < t->ndim; d++) {
    if (!t->sizes[d]) bytes = 0;
    last += (t->sizes[d] - 1) * t->strides[d];
  }
  bytes *= last + 1;
  const int64_t head[] = {t->dtype, t->ndim};
  fwrite(head, sizeof head, 1, stdout);
  fwrite(t->sizes, sizeof *t->sizes, (size_t)t->ndim, stdout);
  fwrite(t->strides, sizeof *t->strides, (size_t)t->ndim, stdout);
  fwrite(&bytes, sizeof bytes, 1, stdout);
  if (bytes) fwrite(t->data, (size_t)bytes, 1, stdout);
}

int main(int argc, char **argv) {
  gyr_package *package;
  gyr_instance *model;
  gyr_entry entry;
  if (argc != 3) return 2;
  if (gyr_package_open(argv[1], NULL, &package)) fail("open");
  if (strcmp(gyr_package_isa(package), argv[2])) fail(gyr_package_isa(package));
  if (gyr_instance_create(package, NULL, &model)) fail("instance");
  if (gyr_package_entry(package, 0, &entry)) fail("entry");
  gyr_tensor inputs[MOST], outputs[MOST];
  memset(outputs, 0, sizeof outputs);
  if (entry.n_inputs > MOST || entry.n_outputs > MOST) fail("too many tensors");
  for (size_t k = 0; k < entry.n_inputs; k++) inputs[k] = read_tensor();
  if (gyr_run(model, 0, inputs, entry.n_inputs, outputs, entry.n_outputs)) fail("run");
  for (size_t k = 0; k < entry.n_outputs; k++) {
    write_tensor(&outputs[k]);
    gyr_tensor_release(&outputs[k]);
  }
  gyr_instance_close(model);
  gyr_package_close(package);
  return 0;
}
