/* A program without Python that calls a package for GPUs.
 *
 *   gpu_package FILE THREADS CALLS CYCLES
 *
 * Prints what the first entry point gives for ones, element by element; THREADS threads, each on its
 * own stream, call one instance CALLS times and compare; then FILE is loaded, called and unloaded
 * CYCLES times, and the growth of the process and of the device's memory since the tenth is printed, in
 * KiB, after each quarter. Inputs and results are float32. The driver's functions are there once a package is open.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gyrator.h"

#define MOST 8
#define WARM 10

static int (*allocate)(uint64_t *, size_t), (*to_device)(uint64_t, const void *, size_t);
static int (*to_host)(void *, uint64_t, size_t), (*release)(uint64_t), (*wait_for)(void *);
static int (*make_stream)(void **, unsigned), (*drop_stream)(void *), (*enter)(void *);
static int (*retain)(void **, int), (*measure)(size_t *, size_t *);
static void *context;

static void check(int status, const char *what) {
  if (!status) return;
  fprintf(stderr, "%s: %d %s\n", what, status, gyr_last_error());
  exit(1);
}

static void *find(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  check(!found, name);
  return found;
}

static void find_driver(void) {
  *(void **)&allocate = find("cuMemAlloc_v2");
  *(void **)&to_device = find("cuMemcpyHtoD_v2");
  *(void **)&to_host = find("cuMemcpyDtoH_v2");
  *(void **)&release = find("cuMemFree_v2");
  *(void **)&wait_for = find("cuStreamSynchronize");
  *(void **)&make_stream = find("cuStreamCreate");
  *(void **)&drop_stream = find("cuStreamDestroy_v2");
  *(void **)&enter = find("cuCtxSetCurrent");
  *(void **)&retain = find("cuDevicePrimaryCtxRetain");
  *(void **)&measure = find("cuMemGetInfo_v2");
  check(retain(&context, 0), "context");
}

struct call {
  gyr_entry entry;
  gyr_tensor inputs[MOST], outputs[MOST];
  int64_t sizes[MOST][8];
};

static void prepare(gyr_package *package, struct call *call) {
  memset(call, 0, sizeof *call);
  check(gyr_package_entry(package, 0, &call->entry), "entry");
  for (size_t k = 0; k < call->entry.n_inputs; k++) {
    const gyr_value *like = &call->entry.inputs[k];
    size_t count = 1;
    for (int d = 0; d < like->ndim; d++) {
      const gyr_size *size = &like->sizes[d];
      const int64_t n = size->symbol < 0 ? size->offset : size->factor * 3 + size->offset;
      count *= (size_t)(call->sizes[k][d] = n);
    }
    float *ones = malloc(count * sizeof *ones);
    for (size_t n = 0; n < count; n++) ones[n] = 1;
    uint64_t data = 0;
    check(allocate(&data, count * sizeof *ones), "memory");
    check(to_device(data, ones, count * sizeof *ones), "copy");
    free(ones);
    const gyr_tensor made = {.data = (void *)data, .dtype = GYR_FLOAT32, .ndim = like->ndim,
                             .sizes = call->sizes[k], .device_type = GYR_CUDA};
    call->inputs[k] = made;
  }
}

static void run(gyr_instance *model, struct call *call, void *stream) {
  check(gyr_run_on(model, 0, call->inputs, call->entry.n_inputs, call->outputs,
                   call->entry.n_outputs, stream), "run");
}

/* The first result's elements, which lie in order. */
static size_t fetch(const struct call *call, void *stream, float **found) {
  size_t count = 1;
  for (int d = 0; d < call->outputs[0].ndim; d++) count *= (size_t)call->outputs[0].sizes[d];
  *found = malloc(count * sizeof **found);
  check(wait_for(stream), "stream");
  check(to_host(*found, (uint64_t)call->outputs[0].data, count * sizeof **found), "result");
  return count;
}

static void release_results(struct call *call) {
  for (size_t k = 0; k < call->entry.n_outputs; k++) gyr_tensor_release(&call->outputs[k]);
}

static void forget(struct call *call) {
  release_results(call);
  for (size_t k = 0; k < call->entry.n_inputs; k++) release((uint64_t)call->inputs[k].data);
}

static gyr_package *package;
static gyr_instance *model;
static const float *expected;
static int calls;

static void *work(void *failed) {
  struct call call;
  void *stream;
  check(enter(context), "context");
  check(make_stream(&stream, 1), "stream"); /* which waits for no other */
  prepare(package, &call);
  for (int k = 0; k < calls; k++) {
    float *found;
    run(model, &call, stream);
    const size_t count = fetch(&call, stream, &found);
    if (memcmp(found, expected, count * sizeof *found)) *(int *)failed = 1;
    free(found);
    release_results(&call);
  }
  forget(&call);
  check(wait_for(stream), "stream");
  check(drop_stream(stream), "stream");
  return NULL;
}

static void once(const char *path) {
  struct call call;
  gyr_package *own;
  gyr_instance *mine;
  check(gyr_package_open(path, NULL, &own), "open");
  check(gyr_instance_create(own, NULL, &mine), "instance");
  prepare(own, &call);
  run(mine, &call, NULL);
  forget(&call);
  gyr_instance_close(mine);
  gyr_package_close(own);
}

static long resident(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*d %ld", &pages) != 1) check(1, "statm");
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE) / 1024;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int n_threads = atoi(argv[2]), cycles = atoi(argv[4]);
  struct call call;
  float *found;
  calls = atoi(argv[3]);
  check(gyr_package_open(argv[1], NULL, &package), "open");
  find_driver();
  check(enter(context), "context");
  check(gyr_instance_create(package, NULL, &model), "instance");
  prepare(package, &call);
  run(model, &call, NULL);
  const size_t count = fetch(&call, NULL, &found);
  for (size_t k = 0; k < count; k++) printf("%.9g ", found[k]);
  printf("\n");
  expected = found;

  pthread_t threads[64];
  int failed[64] = {0}, wrong = 0;
  for (int k = 0; k < n_threads; k++) pthread_create(&threads[k], NULL, work, &failed[k]);
  for (int k = 0; k < n_threads; k++) {
    pthread_join(threads[k], NULL);
    wrong += failed[k];
  }
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  printf("%d\n", wrong);

  long before = 0;
  size_t free_before = 0, free_now = 0, all;
  for (int k = -WARM; k < cycles; k++) {
    if (!k) {
      before = resident();
      check(measure(&free_before, &all), "memory");
    }
    once(argv[1]);
    if (k < 0 || (k + 1) % (cycles / 4)) continue;
    check(measure(&free_now, &all), "memory");
    printf("%ld %ld\n", resident() - before, ((long)free_before - (long)free_now) / 1024);
  }
  return 0;
}
