// OpenMP's parallel regions for ThreadSanitizer, which does not see how libgomp's threads wait for each other: each
// region starts threads of its own and joins them.
#include <ATen/Parallel.h>

#include <thread>
#include <vector>

namespace {

thread_local int number = 0;
thread_local int count = 1;

void run(void (*work)(void*), void* data, int thread, int threads) {
  number = thread;
  count = threads;
  work(data);
  number = 0;
  count = 1;
}

}  // namespace

extern "C" {

void GOMP_parallel(void (*work)(void*), void* data, unsigned, unsigned) {
  const int threads = at::get_num_threads();
  std::vector<std::thread> others;
  others.reserve(threads - 1);
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, work, data, thread, threads);
  run(work, data, 0, threads);
  for (std::thread& other : others) other.join();
}

int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return count; }
}
