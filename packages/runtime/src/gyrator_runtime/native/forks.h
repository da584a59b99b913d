// What a forked child has to do before it runs kernels.
//
// It inherits libgomp's record of a thread pool, but not its threads: a parallel region of the thread
// that forked would wait for them for ever. That thread gets a team of one instead; threads that the
// child starts make pools of their own.

#include <pthread.h>

namespace {

volatile int forked = 0;
pthread_t forked_thread;

void in_child() {
  forked_thread = pthread_self();
  forked = 1;
}

// Whether the calling thread is the one that forked, asked for the first time in the child.
bool just_forked() {
  if (__builtin_expect(!forked, 1) || !pthread_equal(forked_thread, pthread_self())) return false;
  forked = 0;
  return true;
}

}  // namespace
