/* What tests ask of the C library in a process of its own: it exits 0 where all is well.
 *
 *   driver cycles FILE N        load, run and unload: neither memory nor mappings grow
 *   driver threads FILE N       8 threads on one instance, while another replaces its weights
 *   driver memory FILE          every allocation of a call fails once
 *   driver place FILE           a result in the caller's buffer takes an allocation less
 *   driver fork FILE            a child of a process that has called a model calls it, too
 *   driver fuzz FILE N SEED     damaged copies of the file: an error, or a model that runs
 *   driver time FILE N          prints microseconds: load to first result, then a call
 *
 * The first entry point takes float32 and int64 tensors; weights are float32.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gyrator.h"

#define MOST 16

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, gyr_last_error());
  exit(1);
}

struct call {
  gyr_entry entry;
  gyr_tensor inputs[MOST], outputs[MOST];
  int64_t sizes[MOST][8];
};

static void prepare(gyr_package *package, struct call *call) {
  memset(call, 0, sizeof *call);
  if (gyr_package_entry(package, 0, &call->entry)) fail("entry");
  for (size_t k = 0; k < call->entry.n_inputs; k++) {
    const gyr_value *like = &call->entry.inputs[k];
    int64_t count = 1;
    for (int d = 0; d < like->ndim; d++) {
      const gyr_size *size = &like->sizes[d];
      const int64_t n = size->symbol < 0 ? size->offset : size->factor * 3 + size->offset;
      count *= call->sizes[k][d] = n;
    }
    char *data = calloc((size_t)count + 1, 8);
    for (int64_t n = 0; n < count; n++) {
      if (like->dtype == GYR_FLOAT32) ((float *)data)[n] = (float)(n % 7) - 3;
      else ((int64_t *)data)[n] = n % 2;
    }
    const gyr_tensor made = {.data = data, .dtype = like->dtype, .ndim = like->ndim,
                             .sizes = call->sizes[k]};
    call->inputs[k] = made;
  }
}

static gyr_status run(gyr_instance *model, struct call *call) {
  return gyr_run(model, 0, call->inputs, call->entry.n_inputs, call->outputs,
                 call->entry.n_outputs);
}

static void release(struct call *call) {
  for (size_t k = 0; k < call->entry.n_outputs; k++) gyr_tensor_release(&call->outputs[k]);
}

static void forget(struct call *call) {
  release(call);
  for (size_t k = 0; k < call->entry.n_inputs; k++) free(call->inputs[k].data);
}

static gyr_status once(const char *path) {
  gyr_package *package;
  gyr_instance *model;
  struct call call;
  const gyr_status found = gyr_package_open(path, NULL, &package);
  if (found) return found;
  if (gyr_instance_create(package, NULL, &model)) fail("instance");
  gyr_package_close(package); /* the instance keeps what it needs, names included */
  if (gyr_package_open(path, NULL, &package)) fail("again");
  prepare(package, &call);
  const gyr_status status = run(model, &call);
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  return status;
}

static long resident(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*d %ld", &pages) != 1) fail("statm");
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE) / 1024;
}

static int mappings(void) {
  int lines = 0;
  FILE *file = fopen("/proc/self/maps", "r");
  if (!file) fail("maps");
  for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
  fclose(file);
  return lines;
}

static int cycles(const char *path, int n) {
  for (int k = 0; k < 20; k++)
    if (once(path)) fail("run");
  const long before = resident();
  const int mapped = mappings();
  for (int k = 0; k < n; k++)
    if (once(path)) fail("run");
  printf("%ld KiB, %d mappings more\n", resident() - before, mappings() - mapped);
  return resident() - before > 512 || mappings() > mapped + 2;
}

static gyr_package *shared_package;
static gyr_instance *shared;
static int rounds;

static void *caller(void *failed) {
  struct call call;
  prepare(shared_package, &call);
  for (int k = 0; k < rounds; k++) {
    if (run(shared, &call)) *(int *)failed = 1;
    /* Both weights are of one state: all of the results are 0, or none. */
    const float *y = call.outputs[0].data;
    for (int64_t n = 1; n < call.outputs[0].sizes[0]; n++)
      if ((y[n] == 0) != (y[0] == 0)) *(int *)failed = 1;
    release(&call);
  }
  forget(&call);
  return NULL;
}

static int threads(const char *path, int n) {
  pthread_t all[8];
  int failed[8] = {0};
  rounds = n;
  if (gyr_package_open(path, NULL, &shared_package)) fail("open");
  if (gyr_instance_create(shared_package, NULL, &shared)) fail("instance");
  for (int k = 0; k < 8; k++) pthread_create(&all[k], NULL, caller, &failed[k]);
  const size_t weights = gyr_package_weights(shared_package);
  for (int round = 0; round < n; round++) {
    const char *names[MOST];
    gyr_tensor values[MOST];
    int64_t sizes[MOST][8];
    for (size_t w = 0; w < weights; w++) {
      gyr_value about;
      if (gyr_package_weight(shared_package, w, &about)) fail("weight");
      int64_t count = 1;
      for (int d = 0; d < about.ndim; d++) count *= sizes[w][d] = about.sizes[d].offset;
      float *data = malloc(sizeof(float) * (size_t)count);
      for (int64_t k = 0; k < count; k++) data[k] = (float)(round % 2);
      const gyr_tensor made = {.data = data, .dtype = about.dtype, .ndim = about.ndim,
                               .sizes = sizes[w]};
      names[w] = about.name;
      values[w] = made;
    }
    if (gyr_instance_update(shared, names, values, weights)) fail("update");
    for (size_t w = 0; w < weights; w++) free(values[w].data);
  }
  int sum = 0;
  for (int k = 0; k < 8; k++) {
    pthread_join(all[k], NULL);
    sum += failed[k];
  }
  gyr_instance_close(shared);
  gyr_package_close(shared_package);
  return sum;
}

static int left, live;

static void *limited(void *context, size_t bytes, size_t alignment) {
  (void)context;
  void *found = NULL;
  if (left-- <= 0 || posix_memalign(&found, alignment, bytes)) return NULL;
  live++;
  return found;
}

static void give_back(void *context, void *data, size_t bytes) {
  (void)context;
  memset(data, 0xAB, bytes);
  free(data);
  live--;
}

static int memory(const char *path) {
  const gyr_allocator allocator = {NULL, limited, give_back};
  gyr_package *package;
  gyr_instance *model;
  struct call call;
  if (gyr_package_open(path, NULL, &package)) fail("open");
  left = 1 << 20;
  if (gyr_instance_create(package, &allocator, &model)) fail("instance");
  prepare(package, &call);
  const int kept = live;
  int tries = 0;
  for (;; tries++) {
    left = tries;
    const gyr_status status = run(model, &call);
    if (!status) break;
    if (status != GYR_ERROR_MEMORY) fail("status");
    if (live != kept) fail("something was kept");
  }
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  printf("%d allocations\n", tries);
  return live != 0 || tries == 0;
}

static int place(const char *path) {
  const gyr_allocator allocator = {NULL, limited, give_back};
  gyr_package *package;
  gyr_instance *model;
  struct call call;
  float buffer[4096];
  int64_t sizes[8];
  if (gyr_package_open(path, NULL, &package)) fail("open");
  left = 1 << 20;
  if (gyr_instance_create(package, &allocator, &model)) fail("instance");
  prepare(package, &call);
  const int start = left;
  if (run(model, &call)) fail("run");
  const int taken = start - left;
  gyr_tensor *out = &call.outputs[0];
  gyr_tensor mine = {.data = buffer, .dtype = out->dtype, .ndim = out->ndim, .sizes = sizes};
  memcpy(sizes, out->sizes, sizeof(int64_t) * (size_t)out->ndim);
  if (gyr_run(model, 0, call.inputs, call.entry.n_inputs, &mine, 1)) fail("run");
  const int differs = memcmp(buffer, out->data, sizeof(float) * (size_t)(sizes[0] * sizes[1]));
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  return differs || start - left != 2 * taken - 1;
}

static int fuzz(const char *path, int n, unsigned seed) {
  FILE *file = fopen(path, "rb");
  if (!file) fail("file");
  fseek(file, 0, SEEK_END);
  const size_t size = (size_t)ftell(file);
  unsigned char *whole = malloc(size), *copy = malloc(size);
  rewind(file);
  if (fread(whole, 1, size, file) != size) fail("read");
  fclose(file);
  char damaged[4096];
  snprintf(damaged, sizeof damaged, "%s.damaged", path);
  int refused = 0;
  srand(seed);
  for (int k = 0; k < n; k++) {
    size_t length = size;
    memcpy(copy, whole, size);
    if (k % 3 == 0) length = (size_t)rand() % size;
    /* The ends, where the records of the archive and its manifest lie, are hit as often as the rest. */
    for (int flips = k % 3 ? 1 + rand() % 4 : 0; flips > 0; flips--) {
      const size_t near = (size_t)rand() % 4096;
      const size_t at = rand() % 2 ? (size_t)rand() % size : near < size ? size - 1 - near : 0;
      copy[at] = (unsigned char)rand();
    }
    file = fopen(damaged, "wb");
    if (!file || fwrite(copy, 1, length, file) != length) fail("write");
    fclose(file);
    refused += once(damaged) != GYR_OK;
  }
  remove(damaged);
  printf("%d of %d refused\n", refused, n);
  free(whole);
  free(copy);
  return refused * 3 < n; /* a third are cut short */
}

static int forks(const char *path) {
  gyr_package *package;
  gyr_instance *model;
  struct call call;
  if (gyr_package_open(path, NULL, &package)) fail("open");
  if (gyr_instance_create(package, NULL, &model)) fail("instance");
  prepare(package, &call);
  if (run(model, &call)) fail("run");
  release(&call);
  const pid_t child = fork();
  if (!child) alarm(60);
  if (run(model, &call)) fail("run");
  if (!child) _exit(0);
  int status = 1;
  waitpid(child, &status, 0);
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  return status != 0;
}

static double microseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int timed(const char *path, int n) {
  gyr_package *package;
  gyr_instance *model;
  struct call call;
  const double start = microseconds();
  if (gyr_package_open(path, NULL, &package)) fail("open");
  if (gyr_instance_create(package, NULL, &model)) fail("instance");
  prepare(package, &call);
  if (run(model, &call)) fail("run");
  printf("%.1f", microseconds() - start);
  double least = 1e9;
  for (int round = 0; round < 20; round++) {
    const double begin = microseconds();
    for (int k = 0; k < n; k++) {
      release(&call);
      if (run(model, &call)) fail("run");
    }
    const double each = (microseconds() - begin) / n;
    if (each < least) least = each;
  }
  printf(" %.3f\n", least);
  forget(&call);
  gyr_instance_close(model);
  gyr_package_close(package);
  return 0;
}

int main(int argc, char **argv) {
  const int n = argc > 3 ? atoi(argv[3]) : 0;
  if (argc < 3) return 2;
  if (!strcmp(argv[1], "cycles")) return cycles(argv[2], n);
  if (!strcmp(argv[1], "threads")) return threads(argv[2], n);
  if (!strcmp(argv[1], "memory")) return memory(argv[2]);
  if (!strcmp(argv[1], "fork")) return forks(argv[2]);
  if (!strcmp(argv[1], "place")) return place(argv[2]);
  if (!strcmp(argv[1], "fuzz")) return fuzz(argv[2], n, argc > 4 ? (unsigned)atoi(argv[4]) : 0);
  if (!strcmp(argv[1], "time")) return timed(argv[2], n);
  return 2;
}
