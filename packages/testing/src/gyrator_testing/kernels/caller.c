/* Calls functions of shared libraries as it is told on stdin, in the order of `emulator.py`. Each
   buffer ends where memory does that cannot be touched. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kMost = 64 };

typedef struct {
  void *base;
  size_t span;
  char *at;
  int64_t size;
} Buffer;

static Buffer buffers[kMost];
static int held;

static void take(void *to, size_t size) {
  if (size && fread(to, size, 1, stdin) != 1) exit(0);
}

static int64_t number(void) {
  int64_t n;
  take(&n, sizeof n);
  return n;
}

static char *text(void) {
  const int64_t size = number();
  char *made = malloc((size_t)size + 1);
  take(made, (size_t)size);
  made[size] = 0;
  return made;
}

static void *buffer(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  Buffer *b = &buffers[held++];
  if (held > kMost) exit(2);
  b->size = number();
  b->span = ((size_t)b->size + page - 1) / page * page + page;
  b->base = mmap(0, b->span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->base == MAP_FAILED) exit(3);
  if (mprotect((char *)b->base + b->span - page, page, PROT_NONE)) exit(3);
  b->at = (char *)b->base + b->span - page - b->size;
  take(b->at, (size_t)b->size);
  return b->at;
}

/* A number, a buffer, or a list of such. */
static int64_t argument(void) {
  const int64_t kind = number();
  if (kind == 0) return number();
  if (kind == 1) return (int64_t)buffer();
  const int64_t count = number();
  int64_t *list = malloc(sizeof *list * (size_t)(count + 1));
  for (int64_t k = 0; k < count; k++) list[k] = argument();
  return (int64_t)list;
}

static void fail(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(4);
}

int main(void) {
  for (;;) {
    char *library = text(), *symbol = text();
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) fail(dlerror());
    int64_t (*function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    *(void **)&function = dlsym(handle, symbol);
    if (!function) fail(dlerror());
    int64_t given[6] = {0};
    const int64_t count = number();
    if (count > 6) fail("too many arguments");
    for (int64_t k = 0; k < count; k++) given[k] = argument();
    const int64_t code = function(given[0], given[1], given[2], given[3], given[4], given[5]);
    fwrite(&code, sizeof code, 1, stdout);
    while (held) {
      Buffer *b = &buffers[--held];
      if (b->size) fwrite(b->at, (size_t)b->size, 1, stdout);
      munmap(b->base, b->span);
    }
    fflush(stdout);
    free(library);
    free(symbol);
  }
}
