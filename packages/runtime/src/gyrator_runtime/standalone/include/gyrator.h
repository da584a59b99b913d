/* Packages of compiled models from C, without Python.
 *
 * A package is a file written by `gyrator.aot.compile`. libgyrator_runtime runs packages with
 * runtime="standalone" and does not need libtorch; libgyrator_torch runs these and packages with
 * runtime="libtorch", which call ATen operators. Packages contain native code: open only files from
 * sources that you trust to run programs as you.
 *
 *   gyr_package *package;
 *   gyr_instance *model;
 *   gyr_package_open("model.gya", NULL, &package);
 *   gyr_instance_create(package, NULL, &model);
 *   gyr_tensor x = {.data = data, .dtype = GYR_FLOAT32, .ndim = 2, .sizes = (int64_t[]){7, 16}};
 *   gyr_tensor y = {0};
 *   if (gyr_run(model, 0, &x, 1, &y, 1)) fprintf(stderr, "%s\n", gyr_last_error());
 *   ...
 *   gyr_tensor_release(&y);
 *   gyr_instance_close(model);
 *   gyr_package_close(package);
 *
 * All functions are thread-safe, also on the same object, except those that close or release an
 * object, which must not be in use. No function terminates the process. A function that fails returns
 * a status and sets no outputs, but it may have written to the caller's result buffers.
 */
#ifndef GYRATOR_H
#define GYRATOR_H

#include <stddef.h>
#include <stdint.h>

#define GYR_ABI_VERSION 1
#define GYR_MAX_NDIM 64

#if defined(__GNUC__)
#define GYR_API __attribute__((visibility("default")))
#else
#define GYR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Status of a function. The codes in brackets refer to the list of errors in the manual. */
typedef int32_t gyr_status;
enum {
  GYR_OK = 0,
  GYR_ERROR_ARGUMENT = 1, /* a null pointer, or an index or name that does not exist */
  GYR_ERROR_FILE = 2,     /* the file is unreadable or not a complete package (GY-PACKAGE-001) */
  GYR_ERROR_FORMAT = 3,   /* the package format is not supported by this library (-002) */
  GYR_ERROR_ALTERED = 4,  /* the package was modified (-003) */
  GYR_ERROR_MISFIT = 5,   /* the package does not match this machine or library (-004) */
  GYR_ERROR_CALL = 6,     /* wrong number of inputs or outputs (-006) */
  GYR_ERROR_INPUT = 7,    /* an input with the wrong type, size, layout or alignment (-007) */
  GYR_ERROR_OUTPUT = 8,   /* a buffer that does not match its result */
  GYR_ERROR_WEIGHT = 9,   /* a weight that does not match (-008) */
  GYR_ERROR_MEMORY = 10,  /* an allocator is out of memory */
  GYR_ERROR_CHECK = 11,   /* a check of the program failed: an index is out of range, ... */
  GYR_ERROR_INTERNAL = 12, /* any other failure: a bug */
  GYR_ERROR_OPERATOR = 13, /* an ATen or custom operator failed */
  GYR_ERROR_DEVICE = 14    /* the device driver failed; the process may not be able to use it again */
};

/* Data types. A complex number consists of two floats, real part first. */
typedef int32_t gyr_dtype;
enum {
  GYR_NONE = 0, /* a result that is Python's None, without data */
  GYR_FLOAT64 = 1,
  GYR_FLOAT32 = 2,
  GYR_FLOAT16 = 3,
  GYR_BFLOAT16 = 4,
  GYR_FLOAT8_E4M3FN = 5,
  GYR_FLOAT8_E5M2 = 6,
  GYR_FLOAT8_E4M3FNUZ = 7,
  GYR_FLOAT8_E5M2FNUZ = 8,
  GYR_INT64 = 9,
  GYR_INT32 = 10,
  GYR_INT16 = 11,
  GYR_INT8 = 12,
  GYR_UINT64 = 13,
  GYR_UINT32 = 14,
  GYR_UINT16 = 15,
  GYR_UINT8 = 16,
  GYR_BOOL = 17, /* one byte, 0 or 1 */
  GYR_COMPLEX64 = 18,
  GYR_COMPLEX128 = 19
};

enum { GYR_CPU = 1, GYR_CUDA = 2 }; /* device types; 0 is the same as GYR_CPU */

/* A strided tensor in memory. Scalar inputs and results of a program are 0-dimensional tensors of
 * dtype int64, float64 or bool.
 *
 * For an output with null `data`, the library sets all fields and allocates memory, which is freed by
 * gyr_tensor_release. An output with non-null `data` is a buffer for the result: its dtype and sizes
 * must be those of the result; its strides are arbitrary. A result never shares memory with a weight,
 * nor with an input unless the caller passes such a buffer. */
typedef struct gyr_tensor {
  void *data;
  gyr_dtype dtype;
  int32_t ndim;
  const int64_t *sizes;   /* `ndim` sizes; may be null if `ndim` is 0 */
  const int64_t *strides; /* in elements; null: contiguous (row-major) */
  int32_t device_type;    /* 0 or GYR_CPU; GYR_CUDA: `data` is on that device */
  int32_t device_index;   /* 0 on the CPU */
  void *owner;            /* private to the library; callers set it to null */
} gyr_tensor;

/* Allocator for results and temporaries. `allocate` returns `bytes` (never 0) aligned to `alignment`,
 * a power of two, or null. It is called by threads that call gyr_run, and `release` also by threads
 * that release results. For a package for a device it allocates device memory, and released memory
 * may still be in use by work queued on the call's stream. */
typedef struct gyr_allocator {
  void *context;
  void *(*allocate)(void *context, size_t bytes, size_t alignment);
  void (*release)(void *context, void *data, size_t bytes);
} gyr_allocator;

typedef struct gyr_package gyr_package;   /* a mapped file and its kernels */
typedef struct gyr_instance gyr_instance; /* a model with weights */

/* -- Errors and settings ----------------------------------------------------------------------- */

/* Returns the ABI version of the library, GYR_ABI_VERSION of its header. A library of version 1
 * supports all programs compiled for version 1. */
GYR_API int32_t gyr_abi_version(void);
/* Returns the message of the last failure in this thread; empty if there was none. Valid until the
 * next failure. */
GYR_API const char *gyr_last_error(void);
/* Returns the name of a status, such as "GYR_ERROR_FILE"; "?" for an unknown one. */
GYR_API const char *gyr_status_name(gyr_status status);
/* Returns the name of a dtype as in PyTorch, such as "float32"; "?" for an unknown one. */
GYR_API const char *gyr_dtype_name(gyr_dtype dtype);
/* Returns the size of an element in bytes; 0 for an unknown dtype. */
GYR_API size_t gyr_dtype_size(gyr_dtype dtype);
/* Sets the number of threads, at least 1, for kernels started by this thread. The default is
 * OMP_NUM_THREADS. */
GYR_API void gyr_set_threads(int32_t count);

/* -- Packages ---------------------------------------------------------------------------------- */

typedef struct gyr_open_options {
  const char *expected_sha256; /* of the whole file, in hexadecimal; null: any */
  const char *isa;  /* highest instruction set level: "plain", "avx2", "avx512", "neon";
                       null: $GYRATOR_ISA, or the level of the processor */
  int32_t verify;   /* not 0: also check the hash of the weights, which reads all of them */
} gyr_open_options;

/* Opens a package: maps its weights and loads its kernels. The file must not be modified while the
 * package is open; it may be removed, or replaced by a rename. `options` may be null. */
GYR_API gyr_status gyr_package_open(const char *path, const gyr_open_options *options,
                                    gyr_package **package);
/* The same for a package for GPUs, on the device with the given index: copies the weights there and
 * selects kernels for it. gyr_package_open uses the device of the thread's current context, or device
 * 0. Only the device driver is needed, no other part of CUDA. */
GYR_API gyr_status gyr_package_open_on(const char *path, const gyr_open_options *options,
                                       int32_t device_index, gyr_package **package);
/* Closes a package. Mapped memory and kernels are released with the last instance. Null is ignored. */
GYR_API void gyr_package_close(gyr_package *package);
/* Returns the instruction set level of the kernels. All strings are valid as long as the package. */
GYR_API const char *gyr_package_isa(const gyr_package *package);

/* The range of a size symbol. */
typedef struct gyr_symbol {
  const char *name;
  int64_t least;
  int64_t most; /* INT64_MAX for no bound */
} gyr_symbol;

/* A size: `factor * symbol + offset`, or `offset` if `symbol` is -1. */
typedef struct gyr_size {
  int32_t symbol; /* index among the entry point's symbols */
  int64_t factor;
  int64_t offset;
} gyr_size;

/* An input, an output or a weight. */
typedef struct gyr_value {
  const char *name;      /* empty for an output */
  const char *text;      /* readable form: "float32[s0, 16]" */
  gyr_dtype dtype;       /* GYR_NONE: an output that is a number or None, with dtype set by a call */
  int32_t ndim;
  const gyr_size *sizes; /* of inputs and weights; the value of an integer; null for outputs */
  int32_t written;       /* the program writes to it */
} gyr_value;

typedef struct gyr_entry {
  const char *name;
  size_t n_inputs, n_outputs, n_symbols;
  const gyr_value *inputs; /* without inputs that were constant at compile time */
  const gyr_value *outputs;
  const gyr_symbol *symbols;
} gyr_entry;

GYR_API size_t gyr_package_entries(const gyr_package *package);
/* Describes an entry point. The description is valid as long as the package. */
GYR_API gyr_status gyr_package_entry(const gyr_package *package, size_t place, gyr_entry *entry);
GYR_API gyr_status gyr_package_find(const gyr_package *package, const char *name, size_t *place);
GYR_API size_t gyr_package_weights(const gyr_package *package);
GYR_API gyr_status gyr_package_weight(const gyr_package *package, size_t place, gyr_value *weight);

/* -- Models ------------------------------------------------------------------------------------ */

/* Creates an instance with the package's weights. Weights that programs do not modify are shared by
 * all instances, buffers that programs write to are private. Instances without an allocator also share
 * what is computed from shared weights. `allocator` may be null, and is copied. */
GYR_API gyr_status gyr_instance_create(gyr_package *package, const gyr_allocator *allocator,
                                       gyr_instance **instance);
/* Closes an instance. Its results remain valid until they are released. Null is ignored. */
GYR_API void gyr_instance_close(gyr_instance *instance);

/* Runs an entry point, with tensors in the order of the signature. Concurrent calls share the weights
 * and write to buffers without a lock. */
GYR_API gyr_status gyr_run(gyr_instance *instance, size_t entry, const gyr_tensor *inputs,
                           size_t n_inputs, gyr_tensor *outputs, size_t n_outputs);
/* The same on a stream (CUstream, cudaStream_t) of the package's device. All work is queued on it:
 * results can be used on the stream, or after it is synchronised, and must be released before it is
 * destroyed. gyr_run uses libtorch's current stream, or without libtorch the null stream. Programs
 * that read values back, such as sizes that depend on data, wait for them. */
GYR_API gyr_status gyr_run_on(gyr_instance *instance, size_t entry, const gyr_tensor *inputs,
                              size_t n_inputs, gyr_tensor *outputs, size_t n_outputs, void *stream);
/* Frees a tensor allocated by a call and sets all fields to 0. Has no effect on the caller's own
 * tensors. */
GYR_API void gyr_tensor_release(gyr_tensor *tensor);

/* Replaces weights by copies of tensors with arbitrary strides: all of them, or none if one does not
 * match. Running calls continue with the old weights. Weights on a device can be passed as CPU
 * tensors; for tensors on the device, all work queued there is waited for. */
GYR_API gyr_status gyr_instance_update(gyr_instance *instance, const char *const *names,
                                       const gyr_tensor *tensors, size_t count);
/* Returns a copy of a weight, in the same way as gyr_run returns results. */
GYR_API gyr_status gyr_instance_read(gyr_instance *instance, const char *name, gyr_tensor *tensor);

/* Called after each kernel by the thread that called gyr_run. A device kernel is queued by then. */
typedef void (*gyr_profiler)(void *context, const char *kernel, int64_t nanoseconds);
/* Sets the profiler of later calls; null: none. */
GYR_API gyr_status gyr_instance_profile(gyr_instance *instance, gyr_profiler profiler,
                                        void *context);

#ifdef __cplusplus
}
#endif

#endif
