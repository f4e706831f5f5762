// Threads of a kernel whose threads work together are fibers, each with a stack of its own, that wait for each other at
// barriers and in SIMD-group functions; threads of other kernels are plain calls.
#include "launcher.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

namespace metal_shim {
namespace {

constexpr unsigned simd_width = 32;
constexpr size_t stack_size = 128 * 1024;
constexpr size_t threadgroup_memory = 32 * 1024;

std::map<std::string, const KernelEntry*>& table() {
  static std::map<std::string, const KernelEntry*> kernels;
  return kernels;
}

unsigned schedule = 0;

enum class State { ready, at_barrier, in_simd_function, done };

struct Fiber {
  ucontext_t context;
  ThreadState thread;
  State state;
  unsigned site;  // where in the code it waits
  bool started;
};

// What the lanes of a SIMD-group hand to each other: two sets, so that a quick lane may be one exchange ahead.
struct SimdGroup {
  unsigned char slots[2][simd_width][16];
  unsigned char gathered[2][simd_width * 16];
  unsigned lanes[2];  // those that took part
  unsigned parity;
};

class Threadgroup;
Threadgroup* current = nullptr;

class Threadgroup {
 public:
  Threadgroup(const KernelEntry& kernel, size_t most_threads)
      : kernel_(kernel),
        fibers_(most_threads),
        simd_groups_((most_threads + simd_width - 1) / simd_width),
        stacks_size_(most_threads * stack_size) {
    void* memory =
        mmap(nullptr, stacks_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for the threads' stacks");
    stacks_ = static_cast<char*>(memory);
  }
  ~Threadgroup() {
    munmap(stacks_, stacks_size_);
    current = nullptr;
  }

  Fiber& fiber(unsigned thread) { return fibers_[thread]; }

  void run(unsigned threads, std::mt19937& random) {
    current = this;
    threads_ = threads;
    poisoned_.clear();
    for (SimdGroup& group : simd_groups_) group.parity = 0;
    order_.resize(threads);
    std::iota(order_.begin(), order_.end(), 0);
    if (schedule) std::shuffle(order_.begin(), order_.end(), random);
    group_order_.resize((threads + simd_width - 1) / simd_width);
    std::iota(group_order_.begin(), group_order_.end(), 0);
    if (schedule) std::shuffle(group_order_.begin(), group_order_.end(), random);
    for (unsigned i : order_) {
      fibers_[i].state = State::ready;
      fibers_[i].started = false;
    }
    for (unsigned i : order_) resume(i);
    while (exchange() || pass_barrier()) {
    }
    const auto is_done = [](const Fiber& fiber) { return fiber.state == State::done; };
    if (!std::all_of(fibers_.begin(), fibers_.begin() + threads, is_done)) {
      fail("not every thread comes to the barrier or SIMD-group function that others wait in");
    }
  }

  // ---- called by the fibers ----

  void wait(State state, unsigned site) {
    Fiber& fiber = *running_;
    fiber.state = state;
    fiber.site = site;
    swapcontext(&fiber.context, &main_);
  }

  const void* exchange(const void* value, unsigned size, unsigned site, unsigned* active, unsigned* lane) {
    const auto index = static_cast<unsigned>(running_ - fibers_.data());
    *lane = index % simd_width;
    SimdGroup& group = simd_groups_[index / simd_width];
    const unsigned parity = group.parity;
    std::memcpy(group.slots[parity][*lane], value, size);
    wait(State::in_simd_function, site);  // until all lanes are here
    for (unsigned i = 0; i < simd_width; ++i) {
      std::memcpy(group.gathered[parity] + i * size, group.slots[parity][i], size);
    }
    *active = group.lanes[parity];
    return group.gathered[parity];
  }

  void poison(void* memory, size_t size) {
    if (poisoned_.count(memory)) return;
    poisoned_[memory] = size;
    std::memset(memory, 0xff, size);  // NaN in every format
    size_t total = 0;
    for (const auto& [address, bytes] : poisoned_) total += bytes;
    if (total > threadgroup_memory) error_ = "more than 32 KB of threadgroup memory";
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(std::string("Metal kernel ") + kernel_.name + ": " + what);
  }

  static void enter() {
    Threadgroup& group = *current;
    Fiber& fiber = *group.running_;
    group.kernel_.invoke(group.kernel_.function, group.kernel_.arguments, &fiber.thread);
    fiber.state = State::done;
    swapcontext(&fiber.context, &group.main_);
  }

  void resume(unsigned index) {
    Fiber& fiber = fibers_[index];
    running_ = &fiber;
    fiber.state = State::ready;
    if (!fiber.started) {
      fiber.started = true;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks_ + index * stack_size;
      fiber.context.uc_stack.ss_size = stack_size;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, enter, 0);
    }
    swapcontext(&main_, &fiber.context);
    running_ = nullptr;
    if (!error_.empty()) fail(error_);
  }

  // Lets the SIMD-groups go on all of whose live lanes are in the same SIMD-group function: in schedule 0 all of them
  // in step, in others the first one runs ahead until it waits for the threadgroup.
  bool exchange() {
    bool progress = false;
    for (unsigned group : group_order_) {
      unsigned live = 0, waiting = 0, site = 0;
      bool mixed = false;
      for (unsigned lane = 0; lane < simd_width && group * simd_width + lane < threads_; ++lane) {
        const Fiber& fiber = fibers_[group * simd_width + lane];
        if (fiber.state != State::done) live |= 1u << lane;
        if (fiber.state != State::in_simd_function) continue;
        mixed |= waiting && site != fiber.site;
        site = fiber.site;
        waiting |= 1u << lane;
      }
      if (!waiting || waiting != live) continue;
      if (mixed) fail("lanes of a SIMD-group are in different SIMD-group functions");
      SimdGroup& simd_group = simd_groups_[group];
      simd_group.lanes[simd_group.parity] = live;
      simd_group.parity ^= 1;
      for (unsigned i : order_) {
        if (i / simd_width == group && (waiting >> (i % simd_width) & 1)) resume(i);
      }
      if (schedule) return true;
      progress = true;
    }
    return progress;
  }

  // Lets all threads go on if all of them wait at the same barrier.
  bool pass_barrier() {
    for (unsigned i = 0; i < threads_; ++i) {
      if (fibers_[i].state != State::at_barrier) return false;
      if (fibers_[i].site != fibers_[0].site) fail("threads wait at different barriers");
    }
    for (unsigned i : order_) resume(i);
    return true;
  }

  const KernelEntry& kernel_;
  std::vector<Fiber> fibers_;
  std::vector<SimdGroup> simd_groups_;
  size_t stacks_size_;
  char* stacks_;
  ucontext_t main_;
  Fiber* running_ = nullptr;
  unsigned threads_ = 0;
  std::vector<unsigned> order_;
  std::vector<unsigned> group_order_;
  std::map<void*, size_t> poisoned_;
  std::string error_;
};

// While it lives, subnormal numbers are zeros, those that are read and those that are computed: Apple's GPUs do that,
// to the operands of comparisons too.
class SubnormalsAreZeros {
 public:
  SubnormalsAreZeros() { _mm_setcsr(before_ | denormals_are_zeros | flush_to_zero); }
  ~SubnormalsAreZeros() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned denormals_are_zeros = 0x0040;
  static constexpr unsigned flush_to_zero = 0x8000;
  const unsigned before_ = _mm_getcsr();
};

// What thread `index` of a threadgroup of these sizes sees.
ThreadState thread_state(void* const* buffers, unsigned index, const unsigned (&grid)[3], const unsigned (&group)[3],
                         const unsigned (&place)[3], const unsigned (&size)[3]) {
  ThreadState thread{};
  thread.buffers = buffers;
  const unsigned local[3] = {index % size[0], index / size[0] % size[1], index / (size[0] * size[1])};
  for (int d = 0; d < 3; ++d) {
    thread.values[k_thread_position_in_grid][d] = place[d] * group[d] + local[d];
    thread.values[k_thread_position_in_threadgroup][d] = local[d];
    thread.values[k_threadgroup_position_in_grid][d] = place[d];
    thread.values[k_threads_per_threadgroup][d] = size[d];
    thread.values[k_threads_per_grid][d] = grid[d];
  }
  thread.values[k_thread_index_in_threadgroup][0] = index;
  thread.values[k_thread_index_in_simdgroup][0] = index % simd_width;
  thread.values[k_simdgroup_index_in_threadgroup][0] = index / simd_width;
  return thread;
}

}  // namespace

Register::Register(const KernelEntry* entries, int count) {
  for (int i = 0; i < count; ++i) table()[entries[i].name] = &entries[i];
}

void threadgroup_barrier(unsigned site) { current->wait(State::at_barrier, site); }

const void* simd_exchange(const void* value, unsigned size, unsigned site, unsigned* active, unsigned* lane) {
  return current->exchange(value, size, site, active, lane);
}

void simdgroup_barrier(unsigned site) {
  unsigned active, lane;
  simd_exchange("", 1, site, &active, &lane);
}

void poison_threadgroup(void* memory, unsigned long size) { current->poison(memory, size); }

const KernelEntry* find_kernel(const std::string& name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : found->second;
}

void set_schedule(unsigned seed) { schedule = seed; }

void launch(const KernelEntry& kernel, void* const* buffers, const unsigned (&grid)[3], const unsigned (&group)[3]) {
  const SubnormalsAreZeros subnormals;
  std::unique_ptr<Threadgroup> threadgroup;
  if (kernel.collective) threadgroup = std::make_unique<Threadgroup>(kernel, size_t{group[0]} * group[1] * group[2]);
  std::mt19937 random(schedule);
  unsigned groups[3];
  for (int d = 0; d < 3; ++d) groups[d] = (grid[d] + group[d] - 1) / group[d];
  for (unsigned number = 0; number < groups[0] * groups[1] * groups[2]; ++number) {
    const unsigned place[3] = {number % groups[0], number / groups[0] % groups[1], number / (groups[0] * groups[1])};
    unsigned size[3];  // at the edges of the grid, threadgroups are smaller
    for (int d = 0; d < 3; ++d) size[d] = std::min(group[d], grid[d] - place[d] * group[d]);
    const unsigned threads = size[0] * size[1] * size[2];
    for (unsigned i = 0; i < threads; ++i) {
      const ThreadState thread = thread_state(buffers, i, grid, group, place, size);
      if (threadgroup) {
        threadgroup->fiber(i).thread = thread;
      } else {
        kernel.invoke(kernel.function, kernel.arguments, &thread);
      }
    }
    if (threadgroup) threadgroup->run(threads, random);
  }
}

}  // namespace metal_shim

// What the stand-in for the shader library looks up in this library.
extern "C" {
const void* metal_find_kernel(const char* name) { return metal_shim::find_kernel(name); }
void metal_set_schedule(unsigned seed) { metal_shim::set_schedule(seed); }
// Null, or what went wrong.
const char* metal_launch(const void* kernel, void* const* buffers, const unsigned (*grid)[3],
                         const unsigned (*group)[3]) {
  static thread_local std::string error;
  try {
    metal_shim::launch(*static_cast<const metal_shim::KernelEntry*>(kernel), buffers, *grid, *group);
    return nullptr;
  } catch (const std::exception& exception) {
    error = exception.what();
    return error.c_str();
  }
}
}
