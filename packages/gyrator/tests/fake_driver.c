/* A driver of devices that are none: what standalone/device.cpp calls of libcuda.so.1. Its memory is
 * the host's, and its machine code is the path of a shared library whose functions take the addresses
 * of a launch's arguments. Two devices, of compute capabilities 9.0 and 8.6. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 2
enum { OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_CONTEXT = 201 };

struct block {
  size_t bytes;
  int32_t device;
  char pad[52];
};

static _Thread_local char *current;
static char contexts[DEVICES], pools[DEVICES];
static int32_t retained[DEVICES];
static const char *const errors[] = {"no error", "an invalid value", "out of memory"};

/* What tests look at. */
atomic_long fake_bytes, fake_launches, fake_overlaps, fake_libraries, fake_waits;
void *fake_stream, *fake_function, *fake_freed_on;
int32_t fake_device, fake_shared, fake_fails_allocation, fake_fails_launch, fake_version = 12030;
int64_t fake_context(void) { return current ? current - contexts : -1; }
void fake_set_context(int64_t k) { current = k < 0 ? NULL : contexts + k; }
int32_t fake_retained(void) { return retained[0] + retained[1]; }

int32_t cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int32_t cuDeviceGetCount(int32_t *count) { return *count = DEVICES, OK; }
int32_t cuDeviceGet(int32_t *device, int32_t k) { return *device = k, OK; }
int32_t cuDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t device) {
  const int32_t known[DEVICES][2] = {{9, 0}, {8, 6}};
  *value = known[device][attribute - 75];
  return OK;
}
int32_t cuDevicePrimaryCtxRetain(void **context, int32_t device) {
  retained[device]++;
  return *context = contexts + device, OK;
}
int32_t cuDevicePrimaryCtxRelease_v2(int32_t device) { return retained[device]--, OK; }
int32_t cuCtxGetCurrent(void **context) { return *context = current, OK; }
int32_t cuCtxSetCurrent(void *context) { return current = context, OK; }
int32_t cuCtxGetDevice(int32_t *device) {
  if (!current) return INVALID_CONTEXT;
  return *device = (int32_t)(current - contexts), OK;
}
int32_t cuCtxSynchronize(void) {
  fake_waits++;
  return current ? OK : INVALID_CONTEXT;
}
int32_t cuStreamSynchronize(void *stream) { return fake_stream = stream, OK; }
int32_t cuGetErrorString(int32_t status, const char **text) {
  if (status < 0 || status > NO_MEMORY) return INVALID_VALUE;
  return *text = errors[status], OK;
}

int32_t cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d,
                          void *e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *library = dlopen(code, RTLD_NOW);
  if (!*library) return INVALID_VALUE;
  fake_libraries++;
  return OK;
}
int32_t cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return (*kernel = dlsym(library, name)) ? OK : INVALID_VALUE;
}
int32_t cuLibraryUnload(void *library) {
  fake_libraries--;
  return dlclose(library);
}
int32_t cuKernelSetAttribute(int32_t attribute, int32_t value, void *kernel, int32_t device) {
  (void)kernel, (void)device;
  if (attribute != 8) return INVALID_VALUE;
  return fake_shared = value, OK;
}
int32_t cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads,
                       unsigned b, unsigned c, unsigned shared, void *stream, void **parameters,
                       void **more) {
  (void)x, (void)y, (void)z, (void)threads, (void)b, (void)c, (void)shared, (void)more;
  if (!current) return INVALID_CONTEXT;
  if (fake_fails_launch) return INVALID_VALUE;
  fake_launches++;
  fake_stream = stream;
  fake_function = function;
  fake_device = (int32_t)(current - contexts);
  ((void (*)(void **))function)(parameters);
  return OK;
}

struct config {
  unsigned grid[3], block[3], shared;
  void *stream;
  const int32_t *attributes;
  unsigned n_attributes;
};
int32_t cuLaunchKernelEx(const struct config *with, void *function, void **parameters,
                         void **more) {
  if (with->n_attributes != 1 || with->attributes[0] != 6 || !with->attributes[2])
    return INVALID_VALUE;
  fake_overlaps++;
  return cuLaunchKernel(function, with->grid[0], with->grid[1], with->grid[2], with->block[0],
                        with->block[1], with->block[2], with->shared, with->stream, parameters,
                        more);
}
int32_t cuDriverGetVersion(int32_t *version) { return *version = fake_version, OK; }

int32_t cuMemPoolCreate(void **pool, const int32_t *properties) {
  return *pool = pools + properties[3], OK;
}
int32_t cuMemPoolDestroy(void *pool) { return pool ? OK : INVALID_VALUE; }
int32_t cuMemPoolSetAttribute(void *pool, int32_t attribute, void *value) {
  (void)pool;
  return attribute == 4 && *(uint64_t *)value ? OK : INVALID_VALUE;
}
int32_t cuMemAllocFromPoolAsync(void **data, size_t bytes, void *pool, void *stream) {
  (void)stream;
  if (!bytes || current - contexts != (char *)pool - pools) return INVALID_VALUE;
  if (fake_fails_allocation && !--fake_fails_allocation) return NO_MEMORY;
  struct block *made = aligned_alloc(64, (sizeof *made + bytes + 63) / 64 * 64);
  made->bytes = bytes;
  made->device = (int32_t)((char *)pool - pools);
  fake_bytes += (long)bytes;
  return *data = made + 1, OK;
}
int32_t cuMemFreeAsync(void *data, void *stream) {
  struct block *of = (struct block *)data - 1;
  if (current - contexts != of->device) return INVALID_VALUE;
  fake_freed_on = stream;
  fake_bytes -= (long)of->bytes;
  free(of);
  return OK;
}

static int32_t moved(void *to, const void *from, size_t bytes) {
  if (!current) return INVALID_CONTEXT;
  memcpy(to, from, bytes);
  return OK;
}
int32_t cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) { return moved(to, from, bytes); }
int32_t cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  return moved(to, from, bytes);
}
int32_t cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  return moved(to, from, bytes);
}

struct side {
  size_t x, y;
  int32_t memory;
  void *host;
  char *device;
  void *array;
  size_t pitch;
};
struct copy {
  struct side from, to;
  size_t width, height;
};
int32_t cuMemcpy2DAsync_v2(const struct copy *copy, void *stream) {
  (void)stream;
  if (copy->from.memory != 2 || copy->to.memory != 2) return INVALID_VALUE;
  if (copy->from.pitch < copy->width || copy->to.pitch < copy->width) return INVALID_VALUE;
  for (size_t k = 0; k < copy->height; k++)
    memcpy(copy->to.device + k * copy->to.pitch, copy->from.device + k * copy->from.pitch,
           copy->width);
  return OK;
}
