#include "backends/hip/emulator/emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "backends/hip/emulator/limits.h"

namespace fastops::hip::emulator {

constinit thread_local dim3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t stack_size = 64 * 1024;

// A place to go on at. The compiler's own setjmp and longjmp switch stacks in a few instructions, without the system
// calls of swapcontext, which only a stack's first function takes. The address sanitizer would take a jump for one out
// of all functions of the stack, and with system calls forget what it knows of them; but they go on later.
struct Place {
  void* buffer[5];
};
[[gnu::noinline, gnu::no_sanitize_address, noreturn]] void jump(Place& to) { __builtin_longjmp(to.buffer, 1); }
[[gnu::noinline, gnu::no_sanitize_address]] void leave(Place& from, Place& to) {
  if (__builtin_setjmp(from.buffer) == 0) jump(to);
}

enum class State { runs, ready, at_barrier, in_wave };

// What a thread of the block runs on. One that ends without a barrier leaves its fiber to the next thread, so that a
// kernel without barriers is a loop.
struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack{new char[stack_size]};
  dim3 thread;
  State state = State::runs;
};

// The threads of a wave that have come to an operation.
struct Wave {
  WaveOperation operation;
  std::vector<void*> lanes;
  std::vector<Fiber*> fibers;
};

struct Block {
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Fiber>> fibers;
  size_t current;     // the fiber that runs
  unsigned started;   // threads that have begun
  unsigned finished;  // threads that have ended
  std::vector<Wave> waves;
  Place scheduler;
  std::unique_ptr<char[]> shared;
};
constinit thread_local Block block{};

const bool reverse = [] {
  const char* order = std::getenv("FASTOPS_EMULATOR_ORDER");
  return order && std::string_view(order) == "reverse";
}();

const bool ends_only = [] {
  const char* blocks = std::getenv("FASTOPS_EMULATOR_BLOCKS");
  return blocks && std::string_view(blocks) == "ends";
}();

uint64_t count(dim3 size) { return uint64_t{size.x} * size.y * size.z; }

dim3 at(uint64_t index, dim3 size) {
  if (reverse) index = count(size) - 1 - index;
  return dim3(index % size.x, index / size.x % size.y, index / (uint64_t{size.x} * size.y));
}

// As many places as are tried in each direction, and which of a grid a place is.
dim3 tried(dim3 grid) {
  if (!ends_only) return grid;
  return dim3(std::min(grid.x, 2u), std::min(grid.y, 2u), std::min(grid.z, 2u));
}
dim3 place_of(dim3 tried, dim3 grid) {
  const auto of = [](unsigned i, unsigned size) { return ends_only && i > 0 ? size - 1 : i; };
  return dim3(of(tried.x, grid.x), of(tried.y, grid.y), of(tried.z, grid.z));
}

[[noreturn]] void run_threads() {
  for (;;) {
    while (block.started < count(block_size)) {
      Fiber& fiber = *block.fibers[block.current];
      thread_index = fiber.thread = at(block.started++, block_size);
      (*block.body)();
      ++block.finished;
    }
    leave(block.fibers[block.current]->place, block.scheduler);
  }
}

// Begins a fiber on a stack of its own.
[[gnu::noinline]] void start(Fiber& fiber) {
  ucontext_t context, unused;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = stack_size;
  context.uc_link = nullptr;
  makecontext(&context, run_threads, 0);
  if (__builtin_setjmp(block.scheduler.buffer) == 0) swapcontext(&unused, &context);
}

// Lets a fiber run until its thread waits or no thread is left to begin.
void resume(size_t index) {
  block.current = index;
  if (index == block.fibers.size()) {
    block.fibers.push_back(std::make_unique<Fiber>());
    start(*block.fibers.back());
  } else {
    Fiber& fiber = *block.fibers[index];
    fiber.state = State::runs;
    thread_index = fiber.thread;
    leave(block.scheduler, fiber.place);
  }
}

void run_block() {
  const unsigned threads = count(block_size);
  block.started = block.finished = 0;
  size_t fibers = 0;
  while (block.started < threads) resume(fibers++);
  while (block.finished < threads) {
    bool all_wait = true;
    for (size_t i = 0; i < fibers; ++i) {
      if (block.fibers[i]->state != State::ready) continue;
      resume(i);
      all_wait = false;
    }
    if (!all_wait) continue;
    const auto incomplete = [](const Wave& wave) { return !wave.fibers.empty(); };
    if (std::any_of(block.waves.begin(), block.waves.end(), incomplete)) fail("a part of a wave runs its operation");
    if (block.finished > 0) fail("threads of a block ended while others wait at a barrier");
    for (size_t i = 0; i < fibers; ++i) block.fibers[i]->state = State::ready;
  }
}

void wait(State state) {
  Fiber& fiber = *block.fibers[block.current];
  fiber.state = state;
  leave(fiber.place, block.scheduler);
}

}  // namespace

const Gpu gpu = [] {
  const char* name = std::getenv("FASTOPS_EMULATOR_GPU");
  if (!name) return Gpu::none;
  constexpr std::string_view names[] = {"none", "gfx90a", "gfx942", "gfx1100", "gfx1201", "sm_90"};
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) fail("FASTOPS_EMULATOR_GPU is not a GPU that it knows");
  return static_cast<Gpu>(found - std::begin(names));
}();

void fail(const char* message) {
  std::fprintf(stderr, "GPU emulator: %s\n", message);
  std::abort();
}

void barrier() { wait(State::at_barrier); }

void wave_operation(unsigned size, WaveOperation operation, void* lane) {
  if (count(block_size) % size != 0) fail("a block's last wave is not full");
  const unsigned thread = (thread_index.z * block_size.y + thread_index.y) * block_size.x + thread_index.x;
  block.waves.resize(std::max<size_t>(block.waves.size(), thread / size + 1));
  Wave& wave = block.waves[thread / size];
  if (wave.fibers.empty()) wave.operation = operation;
  if (wave.operation != operation) fail("threads of a wave run different operations");
  wave.lanes.resize(size);
  wave.lanes[thread % size] = lane;
  wave.fibers.push_back(block.fibers[block.current].get());
  if (wave.fibers.size() < size) return wait(State::in_wave);
  operation(wave.lanes.data());
  for (Fiber* fiber : wave.fibers) fiber->state = State::ready;
  wave.fibers.back()->state = State::runs;
  wave.fibers.clear();
}

void* shared_memory() { return block.shared.get(); }

const char* run(dim3 grid, dim3 size, size_t shared, const std::function<void()>& body) {
  if (const char* error = launch_limits_error(grid, size)) return error;
  if (shared > size_t{most_shared_memory}) return "too much shared memory";
  grid_size = grid;
  block_size = size;
  block.body = &body;
  block.shared.reset(new char[shared]);
  const dim3 places = tried(grid);
  for (uint64_t i = 0; i < count(places); ++i) {
    block_index = place_of(at(i, places), grid);
    std::memset(block.shared.get(), 0xff, shared);
    run_block();
  }
  block.shared.reset();
  return nullptr;
}

}  // namespace fastops::hip::emulator
