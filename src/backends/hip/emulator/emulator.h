// The part of a GPU that the kernels use, on the CPU: blocks run one after another, the threads of a block by turns,
// switching where they meet at a barrier. Tests run the kernels so where there is no GPU.
//
// It is stricter than a GPU. Shared memory is a heap allocation of exactly the size asked for, for the address
// sanitizer to guard, and holds NaNs when a block begins. A barrier that some threads of a block do not reach ends the
// process. FASTOPS_EMULATOR_ORDER=reverse runs the threads of a block, and the blocks, from the last one: what one
// thread writes and another reads without a barrier between them comes out wrong in one of the two orders.
//
// FASTOPS_EMULATOR_BLOCKS=ends leaves out the blocks that are neither the first nor the last in a direction of the
// grid: so the indices of tensors that are too large for it are tried.
//
// FASTOPS_EMULATOR_GPU=gfx90a|gfx942|gfx1100|gfx1201|sm_90|none says whose waves and matrix cores kernels find; without
// it there are none. Threads of a wave meet where they run an instruction together; that some of them do not ends the
// process.
#pragma once

#include <cstddef>
#include <functional>

#define __global__
#define __constant__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace fastops::hip::emulator {

// Of the thread that runs now.
extern constinit thread_local dim3 thread_index, block_index, block_size, grid_size;

void barrier();
void* shared_memory();

inline constexpr int most_shared_memory = 64 * 1024;  // of a block: what every GPU grants that is asked for more

enum class Gpu { none, gfx90a, gfx942, gfx1100, gfx1201, sm_90 };
extern const Gpu gpu;

// What all threads of the caller's wave, `size` threads one after another, do together: each comes with a pointer, and
// `operation` runs with those of lanes 0, 1, ... before any of them goes on.
using WaveOperation = void (*)(void* const* lanes);
void wave_operation(unsigned size, WaveOperation operation, void* lane);

[[noreturn]] void fail(const char* message);

// Runs `body` as every thread of every block. Returns what is wrong with the launch, null if nothing is.
const char* run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& body);

}  // namespace fastops::hip::emulator

#define threadIdx fastops::hip::emulator::thread_index
#define blockIdx fastops::hip::emulator::block_index
#define blockDim fastops::hip::emulator::block_size
#define gridDim fastops::hip::emulator::grid_size
inline void __syncthreads() { fastops::hip::emulator::barrier(); }
