//% omp_get_thread_num
extern "C" int omp_get_thread_num(void) noexcept;
//% omp_get_num_threads
extern "C" int omp_get_num_threads(void) noexcept;
//% omp_get_max_threads
extern "C" int omp_get_max_threads(void) noexcept;
//% omp_in_parallel
extern "C" int omp_in_parallel(void) noexcept;
//% GOMP_parallel
extern "C" void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) noexcept;
//% GOMP_barrier
extern "C" void GOMP_barrier(void) noexcept;
