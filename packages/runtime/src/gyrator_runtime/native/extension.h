// Prepended, after forks.h, to the source of every extension module: headers, and memory of a call.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

constexpr Py_ssize_t kInline = 192;  // words kept on the stack; longer arrays go to the heap

void after_fork() {
  if (!just_forked()) return;
  using SetThreads = void (*)(int);
  SetThreads set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads) set_threads(1);
}

template <class T, Py_ssize_t inline_count = kInline>
struct Scratch {
  T inline_[inline_count];
  T* data;
  explicit Scratch(Py_ssize_t n) : data(inline_) {
    if (n > inline_count) data = static_cast<T*>(PyMem_Malloc(sizeof(T) * n));
    if (!data) PyErr_NoMemory();
  }
  ~Scratch() {
    if (data != inline_) PyMem_Free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// Returns 0, or -1 with an exception set.
int watch_forks() {
  if (!pthread_atfork(nullptr, nullptr, in_child)) return 0;
  PyErr_NoMemory();
  return -1;
}

}  // namespace
