// Sums of which each block has its own, and a second kernel that adds these up.
#pragma once

#include "backends/hip/kernels.h"
#include "backends/hip/kernels/device.h"

namespace fastops::hip {

// Adds up what the threads of a block have that differ in threadIdx.y alone: `sums` of `width` columns each. Calls
// store(column, sum) for each of the block's columns, which are blockDim.x * width. Takes as many numbers of shared
// memory as the block has sums.
template <class S, int width, class Store>
__device__ void sum_over_block_rows(const S (&sums)[width], Store store) {
  S* shared = static_cast<S*>(shared_memory());
  const unsigned columns = blockDim.x * width;
  S* mine = shared + threadIdx.y * columns + threadIdx.x;  // neighbours beside each other: no conflicts among banks
  for (int k = 0; k < width; ++k) mine[k * blockDim.x] = sums[k];
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      for (int k = 0; k < width; ++k) mine[k * blockDim.x] += mine[half * columns + k * blockDim.x];
    }
  }
  if (threadIdx.y == 0) {
    for (int k = 0; k < width; ++k) store(threadIdx.x * width + k, mine[k * blockDim.x]);
  }
}

// store(column, sum of block_sums[:, column]) for the block's columns: each thread has every blockDim.y-th of the
// blocks, in order.
template <class S, class Store>
__device__ void sum_over_blocks(const S* block_sums, int64_t blocks, int64_t columns, Store store) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  S sum[1] = {S(0)};
  if (column < columns) {
    constexpr int at_once = 4;  // that are asked for before any is added
    const int64_t step = blockDim.y;
    int64_t block = threadIdx.y;
#pragma unroll 1
    for (; block + (at_once - 1) * step < blocks; block += at_once * step) {
      S next[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) next[i] = block_sums[(block + i * step) * columns + column];
#pragma unroll
      for (int i = 0; i < at_once; ++i) sum[0] += next[i];
    }
    for (; block < blocks; block += step) sum[0] += block_sums[block * columns + column];
  }
  sum_over_block_rows(sum, [&](int, S total) {
    if (column < columns) store(column, total);
  });
}

// Launches a kernel that adds up so: add_blocks(block_sums, blocks, columns, arguments...). Neighbouring threads read
// 32 bytes of float32 where there are few columns, so that there are more blocks, else 64 or, where there would be more
// blocks than have room at once, 128.
template <class S, class Kernel, class... Arguments>
const char* launch_sum_over_blocks(Kernel kernel, const S* block_sums, int64_t blocks, int64_t columns, void* stream,
                                   Arguments... arguments) {
  const unsigned wide = columns < 2048 ? 8 : columns < 16384 ? 16 : 32;
  const dim3 block(wide, block_threads / wide);
  return launch(kernel, dim3(divide_up(columns, wide)), block, block_threads * sizeof(S), stream, block_sums, blocks,
                columns, arguments...);
}

}  // namespace fastops::hip
