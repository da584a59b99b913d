// Stands before the text of every extension module: headers, forks, and memory of a call.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

constexpr Py_ssize_t kInline = 192;  // words kept on the stack; longer arrays go to the heap

// A forked child inherits libgomp's record of a thread pool, but not its threads: a parallel region
// of the thread that forked would wait for them for ever. That thread gets a team of one instead;
// threads that the child starts make pools of their own.
volatile int forked = 0;
pthread_t forked_thread;

void in_child() {
  forked_thread = pthread_self();
  forked = 1;
}

void after_fork() {
  if (!pthread_equal(forked_thread, pthread_self())) return;
  forked = 0;
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

// 0, or -1 with an exception.
int watch_forks() {
  if (!pthread_atfork(nullptr, nullptr, in_child)) return 0;
  PyErr_NoMemory();
  return -1;
}

}  // namespace
