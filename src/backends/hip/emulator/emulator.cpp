#include "backends/hip/emulator/emulator.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace fastops::hip::emulator {

thread_local dim3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t stack_size = 64 * 1024;

// A place to go on at. The compiler's own setjmp and longjmp switch stacks in a few instructions, without the system
// calls of swapcontext, which only a stack's first function takes.
struct Place {
  void* buffer[5];
};
[[gnu::noinline, noreturn]] void jump(Place& to) { __builtin_longjmp(to.buffer, 1); }
[[gnu::noinline]] void leave(Place& from, Place& to) {
  if (__builtin_setjmp(from.buffer) == 0) jump(to);
}

// What a thread of the block runs on. One that ends without a barrier leaves its fiber to the next thread, so that a
// kernel without barriers is a loop.
struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack{new char[stack_size]};
  dim3 thread;
  bool waits = false;
};

struct Block {
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Fiber>> fibers;
  size_t current;     // the fiber that runs
  unsigned started;   // threads that have begun
  unsigned finished;  // threads that have ended
  Place scheduler;
  std::unique_ptr<char[]> shared;
};
thread_local Block block;

const bool reverse = [] {
  const char* order = std::getenv("FASTOPS_EMULATOR_ORDER");
  return order && std::string_view(order) == "reverse";
}();

[[noreturn]] void fail(const char* message) {
  std::fprintf(stderr, "GPU emulator: %s\n", message);
  std::abort();
}

unsigned count(dim3 size) { return size.x * size.y * size.z; }

dim3 at(unsigned index, dim3 size) {
  if (reverse) index = count(size) - 1 - index;
  return dim3(index % size.x, index / size.x % size.y, index / (size.x * size.y));
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
    fiber.waits = false;
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
    // All threads have begun and have run as far as they can.
    if (block.finished > 0) fail("threads of a block ended while others wait at a barrier");
    for (size_t i = 0; i < fibers; ++i) {
      if (block.fibers[i]->waits) resume(i);
    }
  }
}

}  // namespace

void barrier() {
  Fiber& fiber = *block.fibers[block.current];
  fiber.waits = true;
  leave(fiber.place, block.scheduler);
}

void* shared_memory() { return block.shared.get(); }

const char* run(dim3 grid, dim3 size, size_t shared, const std::function<void()>& body) {
  constexpr size_t most_shared_memory = 48 * 1024;  // what every GPU grants without being asked for more
  if (count(grid) == 0 || grid.x >= 1u << 31 || grid.y > 65535 || grid.z > 65535) return "invalid grid";
  if (count(size) == 0 || count(size) > 1024) return "invalid block";
  if (shared > most_shared_memory) return "too much shared memory";
  grid_size = grid;
  block_size = size;
  block.body = &body;
  block.shared.reset(new char[shared]);
  for (unsigned i = 0; i < count(grid); ++i) {
    block_index = at(i, grid);
    std::memset(block.shared.get(), 0xff, shared);
    run_block();
  }
  block.shared.reset();
  return nullptr;
}

}  // namespace fastops::hip::emulator
