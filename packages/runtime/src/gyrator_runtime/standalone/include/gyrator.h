/* Packages of compiled models from C, without Python.
 *
 * A package is a file that `gyrator.aot.compile` wrote. libgyrator_runtime runs those with
 * runtime="standalone", and needs no libtorch; libgyrator_torch runs them and those with
 * runtime="libtorch", which call operators of ATen. They hold native code: open only files of those
 * whom you would let run programs as you.
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
 * Functions may be called by many threads at once, on the same objects too, but for those that close
 * or release one: nobody may use it any more. None of them ends the process; a function that fails
 * gives its status, and fills in nothing but, in part, the caller's own buffers of results.
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

/* What a function gives. The codes in brackets are those of the manual's list of errors. */
typedef int32_t gyr_status;
enum {
  GYR_OK = 0,
  GYR_ERROR_ARGUMENT = 1, /* a null pointer, or a place or a name that there is not */
  GYR_ERROR_FILE = 2,     /* the file cannot be read, or is no whole package (GY-PACKAGE-001) */
  GYR_ERROR_FORMAT = 3,   /* the package has a format that this library does not read (-002) */
  GYR_ERROR_ALTERED = 4,  /* the package is not what was written (-003) */
  GYR_ERROR_MISFIT = 5,   /* it does not fit this machine or this library (-004) */
  GYR_ERROR_CALL = 6,     /* a call with another number of inputs or outputs (-006) */
  GYR_ERROR_INPUT = 7,    /* an input of another type, size, layout or alignment (-007) */
  GYR_ERROR_OUTPUT = 8,   /* a buffer that a result does not fit into */
  GYR_ERROR_WEIGHT = 9,   /* a weight that does not fit (-008) */
  GYR_ERROR_MEMORY = 10,  /* an allocator has no memory */
  GYR_ERROR_CHECK = 11,   /* a check of the program failed: an index is out of range, ... */
  GYR_ERROR_INTERNAL = 12, /* none of these: a bug */
  GYR_ERROR_OPERATOR = 13, /* an operator of ATen, or of the caller's, failed */
  GYR_ERROR_DEVICE = 14    /* the device's driver failed; it may be of no more use to the process */
};

/* Element types. A complex number is two floats, real part first. */
typedef int32_t gyr_dtype;
enum {
  GYR_NONE = 0, /* of a result that is Python's None: there are no data */
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

enum { GYR_CPU = 1, GYR_CUDA = 2 }; /* types of devices; 0 stands for GYR_CPU, too */

/* A strided tensor in memory. Numbers that a program takes or gives are tensors of no dimensions:
 * int64 for integers, float64, bool.
 *
 * As an output, a tensor whose `data` are null gets all fields filled in: memory of its own, until
 * gyr_tensor_release. One whose `data` are not null says where the result goes: its element type,
 * sizes and strides must be those of the result, the strides may be any. A result never shares
 * memory with a weight, or with an input unless the caller gives such a buffer. */
typedef struct gyr_tensor {
  void *data;
  gyr_dtype dtype;
  int32_t ndim;
  const int64_t *sizes;   /* `ndim` of them; may be null for none */
  const int64_t *strides; /* in elements; null: contiguous, the last dimension first */
  int32_t device_type;    /* 0 or GYR_CPU; GYR_CUDA: `data` are on that device */
  int32_t device_index;   /* 0 on the CPU */
  void *owner;            /* the library's; null in what a caller fills in */
} gyr_tensor;

/* Where results and what is between them go. `allocate` gives `bytes` (never 0) at a multiple of
 * `alignment`, a power of two, or null. Called by the threads that call gyr_run, and those that
 * release results. Of a package for a device it gives the device's memory, and what is released may
 * still be used by what is queued on the call's stream. */
typedef struct gyr_allocator {
  void *context;
  void *(*allocate)(void *context, size_t bytes, size_t alignment);
  void (*release)(void *context, void *data, size_t bytes);
} gyr_allocator;

typedef struct gyr_package gyr_package;   /* a file that is mapped, and its kernels */
typedef struct gyr_instance gyr_instance; /* a model with weights */

/* -- What went wrong --------------------------------------------------------------------------- */

/* The version of the interface that the library has: GYR_ABI_VERSION of its header. A library of
 * version 1 serves all programs that were compiled for version 1. */
GYR_API int32_t gyr_abi_version(void);
/* The text of the last failure in this thread; empty before the first. Valid until the next. */
GYR_API const char *gyr_last_error(void);
/* "GYR_ERROR_FILE", or "?" for what is no status. */
GYR_API const char *gyr_status_name(gyr_status status);
/* "float32", as torch has it, or "?". */
GYR_API const char *gyr_dtype_name(gyr_dtype dtype);
/* Bytes of an element; 0 for what is no element type. */
GYR_API size_t gyr_dtype_size(gyr_dtype dtype);
/* How many threads kernels that this thread starts use; at least 1. Otherwise OMP_NUM_THREADS. */
GYR_API void gyr_set_threads(int32_t count);

/* -- Packages ---------------------------------------------------------------------------------- */

typedef struct gyr_open_options {
  const char *expected_sha256; /* of the whole file, in hexadecimal; null: any */
  const char *isa;  /* the highest instruction set level: "plain", "avx2", "avx512", "neon";
                       null: $GYRATOR_ISA, or what the processor has */
  int32_t verify;   /* not 0: compare the weights with their hash, too, which reads them all */
} gyr_open_options;

/* Opens a package: maps its weights and loads its kernels. The file must not be written to while the
 * package is open; it may be removed, or replaced by a rename. `options` may be null. */
GYR_API gyr_status gyr_package_open(const char *path, const gyr_open_options *options,
                                    gyr_package **package);
/* The same on a device of a number, of a package for GPUs: its weights are copied there, and its
 * kernels are those for it. gyr_package_open takes the device of the thread's current context, or
 * number 0. The device's driver has to be there, and nothing else of CUDA. */
GYR_API gyr_status gyr_package_open_on(const char *path, const gyr_open_options *options,
                                       int32_t device_index, gyr_package **package);
/* Closes it. Mapped memory and kernels go with the last instance. Null is nothing to do. */
GYR_API void gyr_package_close(gyr_package *package);
/* The instruction set level of the kernels that run. Texts live as long as the package. */
GYR_API const char *gyr_package_isa(const gyr_package *package);

/* The sizes that a symbol may stand for. */
typedef struct gyr_symbol {
  const char *name;
  int64_t least;
  int64_t most; /* INT64_MAX where there is no bound */
} gyr_symbol;

/* A size: `factor * symbol + offset`, or `offset` where `symbol` is -1. */
typedef struct gyr_size {
  int32_t symbol; /* place among the entry point's symbols */
  int64_t factor;
  int64_t offset;
} gyr_size;

/* An input, an output or a weight. */
typedef struct gyr_value {
  const char *name;      /* empty for an output */
  const char *text;      /* as people write it: "float32[s0, 16]" */
  gyr_dtype dtype;       /* GYR_NONE: an output that is a number or None, known when it ran */
  int32_t ndim;
  const gyr_size *sizes; /* of inputs and weights, of an integer its own value; null for outputs */
  int32_t written;       /* the program writes to it */
} gyr_value;

typedef struct gyr_entry {
  const char *name;
  size_t n_inputs, n_outputs, n_symbols;
  const gyr_value *inputs; /* those that were constants when it was compiled are left out */
  const gyr_value *outputs;
  const gyr_symbol *symbols;
} gyr_entry;

GYR_API size_t gyr_package_entries(const gyr_package *package);
/* What there is to know about an entry point; lives as long as the package. */
GYR_API gyr_status gyr_package_entry(const gyr_package *package, size_t place, gyr_entry *entry);
GYR_API gyr_status gyr_package_find(const gyr_package *package, const char *name, size_t *place);
GYR_API size_t gyr_package_weights(const gyr_package *package);
GYR_API gyr_status gyr_package_weight(const gyr_package *package, size_t place, gyr_value *weight);

/* -- Models ------------------------------------------------------------------------------------ */

/* Makes an instance with the package's weights, which it shares, unmodified as they are, with all
 * others; buffers that programs write are its own. `allocator` may be null, and is copied. */
GYR_API gyr_status gyr_instance_create(gyr_package *package, const gyr_allocator *allocator,
                                       gyr_instance **instance);
/* Closes it. Results that it gave live on until they are released. Null is nothing to do. */
GYR_API void gyr_instance_close(gyr_instance *instance);

/* Runs an entry point: the tensors in the order of the signature. Calls in several threads share the
 * weights; they write to buffers without a lock. */
GYR_API gyr_status gyr_run(gyr_instance *instance, size_t entry, const gyr_tensor *inputs,
                           size_t n_inputs, gyr_tensor *outputs, size_t n_outputs);
/* The same on a stream (CUstream, cudaStream_t) of the package's device, on which all its work is
 * queued: results can be used there, or once it is synchronized. They are to be released before the
 * stream is destroyed. gyr_run takes libtorch's current stream, or where there is no libtorch the
 * null stream. Programs that look at values, such as the sizes of masks, wait for them. */
GYR_API gyr_status gyr_run_on(gyr_instance *instance, size_t entry, const gyr_tensor *inputs,
                              size_t n_inputs, gyr_tensor *outputs, size_t n_outputs, void *stream);
/* Frees what a call allocated, and sets all fields to 0; a tensor of the caller's is left alone. */
GYR_API void gyr_tensor_release(gyr_tensor *tensor);

/* Replaces weights by copies of tensors, whose strides may be any: all of them or, where one does
 * not fit, none. A call works with the weights that there were when it began. Those on a device may
 * be given as tensors of the CPU; where they are on it, what is queued there is waited for. */
GYR_API gyr_status gyr_instance_update(gyr_instance *instance, const char *const *names,
                                       const gyr_tensor *tensors, size_t count);
/* Gives a copy of a weight, as gyr_run gives results. */
GYR_API gyr_status gyr_instance_read(gyr_instance *instance, const char *name, gyr_tensor *tensor);

/* Called after each kernel, by the thread that called gyr_run; a device's is queued by then. */
typedef void (*gyr_profiler)(void *context, const char *kernel, int64_t nanoseconds);
/* Sets the profiler of calls that begin from now on; null: none. */
GYR_API gyr_status gyr_instance_profile(gyr_instance *instance, gyr_profiler profiler,
                                        void *context);

#ifdef __cplusplus
}
#endif

#endif
