// The part of a GPU that the kernels use, on the CPU: blocks run one after another, the threads of a block by turns,
// switching where they meet at a barrier. Tests run the kernels so where there is no GPU.
//
// It is stricter than a GPU. Shared memory is a heap allocation of exactly the size asked for, for the address
// sanitizer to guard, and holds NaNs when a block begins. A barrier that some threads of a block do not reach ends the
// process. FASTOPS_EMULATOR_ORDER=reverse runs the threads of a block, and the blocks, from the last one: what one
// thread writes and another reads without a barrier between them comes out wrong in one of the two orders.
#pragma once

#include <cstddef>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace fastops::hip::emulator {

// Of the thread that runs now.
extern thread_local dim3 thread_index, block_index, block_size, grid_size;

void barrier();
void* shared_memory();

// Runs `body` as every thread of every block. Returns what is wrong with the launch, null if nothing is.
const char* run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& body);

}  // namespace fastops::hip::emulator

#define threadIdx fastops::hip::emulator::thread_index
#define blockIdx fastops::hip::emulator::block_index
#define blockDim fastops::hip::emulator::block_size
#define gridDim fastops::hip::emulator::grid_size
inline void __syncthreads() { fastops::hip::emulator::barrier(); }
