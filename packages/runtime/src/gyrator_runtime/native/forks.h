// Preparation of a forked child process for running kernels.
//
// It inherits the state of libgomp's thread pool, but not its threads: a parallel region in the thread
// that forked would wait for them forever. That thread therefore gets a team of one. New threads of
// the child create their own pools.

#include <pthread.h>

namespace {

volatile int forked = 0;
pthread_t forked_thread;

void in_child() {
  forked_thread = pthread_self();
  forked = 1;
}

// Returns whether the calling thread is the one that forked, on the first call in the child.
bool just_forked() {
  if (__builtin_expect(!forked, 1) || !pthread_equal(forked_thread, pthread_self())) return false;
  forked = 0;
  return true;
}

}  // namespace
