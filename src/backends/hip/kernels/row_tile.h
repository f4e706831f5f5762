// Rows in shared memory, with the sums over a row and the numbers of a dropout for each element.
#pragma once

#include "backends/hip/kernels/transform.h"

namespace fastops::hip {

// ---- dropout ----

// Of 64 neighbours, 16 calls of Philox have four numbers each: a thread's four elements are 16 apart.
inline constexpr int calls = 16;
inline constexpr int numbers_of_call = 4;
inline constexpr int group = numbers_of_call * calls;

struct FourNumbers {
  uint32_t of[numbers_of_call];
};

// Philox4x32-10 of the counter (call, row, row >> 32, stream).
__device__ inline FourNumbers philox(uint64_t seed, uint32_t call, uint64_t row, uint32_t stream) {
  uint32_t c0 = call, c1 = static_cast<uint32_t>(row), c2 = static_cast<uint32_t>(row >> 32), c3 = stream;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// ---- rows in shared memory ----

// The threads of a row: a power of 2 from 16 on that has four elements for each, where a block has so many.
inline int row_threads(int64_t columns) {
  int threads = calls;
  while (threads < block_threads && int64_t{numbers_of_call} * threads < columns) threads *= 2;
  return threads;
}

// A thread's elements in a row, with those past the last column.
FASTOPS_HOST_DEVICE inline int64_t elements_of_thread(int64_t columns, int64_t threads) {
  return (columns + numbers_of_call * threads - 1) / (numbers_of_call * threads) * numbers_of_call;
}

// For the sums over a row, and what each step multiplied it with.
FASTOPS_HOST_DEVICE inline int64_t numbers_beside_tiles(int64_t threads) { return threads + calls + most_row_steps; }

// The place of one row of a block: blockDim.x threads have it.
template <class S>
class Row {
 public:
  __device__ Row(void* memory, int64_t columns, int64_t row, bool exists)
      : columns_(exists ? columns : 0),
        row_(row),
        slots_(elements_of_thread(columns, blockDim.x)),
        partial_(static_cast<S*>(memory) + threadIdx.y * numbers_beside_tiles(blockDim.x)),
        tiles_(static_cast<S*>(memory) + blockDim.y * numbers_beside_tiles(blockDim.x) +
               threadIdx.y * blockDim.x * slots_) {}

  __device__ bool exists() const { return columns_ > 0; }
  __device__ int64_t number() const { return row_; }

  // The thread's elements in a tile, each at(slot).
  __device__ S* tile(int i) const { return tiles_ + int64_t{i} * blockDim.y * blockDim.x * slots_ + threadIdx.x; }
  __device__ static int64_t at(int64_t slot) { return slot * blockDim.x; }

  // What step i multiplied the row with: to be written by one thread, and read by all after a sum.
  __device__ S& multiplier(int i) const { return partial_[blockDim.x + calls + i]; }

  // f(slot, column) for the thread's elements.
  template <class F>
  __device__ void for_each(F f) const {
    const int64_t first = int64_t{threadIdx.x} / calls * group + threadIdx.x % calls;
    for (int64_t slot = 0; slot < slots_; slot += numbers_of_call) {
      const int64_t begin = first + slot * blockDim.x;
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        if (const int64_t column = begin + i * calls; column < columns_) f(slot + i, column);
      }
    }
  }

  // f(slot, column, number) with the numbers of a dropout.
  template <class F>
  __device__ void for_each_number(uint64_t seed, uint32_t stream, F f) const {
    const int64_t first = int64_t{threadIdx.x} / calls * group + threadIdx.x % calls;
    for (int64_t slot = 0; slot < slots_; slot += numbers_of_call) {
      const int64_t begin = first + slot * blockDim.x;
      if (begin >= columns_) return;
      const uint32_t call = static_cast<uint32_t>(begin / group * calls + begin % calls);
      const FourNumbers numbers = philox(seed, call, static_cast<uint64_t>(row_), stream);
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        if (const int64_t column = begin + i * calls; column < columns_) f(slot + i, column, numbers.of[i]);
      }
    }
  }

  // The sum of all threads' values. All threads of the block must come here. What they read last is written again after
  // the first barrier of the next sum.
  __device__ S sum(S value) const {
    S* const sums = partial_ + blockDim.x;
    partial_[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x < calls) {
      S sum = S(0);
      for (unsigned i = threadIdx.x; i < blockDim.x; i += calls) sum += partial_[i];
      sums[threadIdx.x] = sum;
    }
    __syncthreads();
    S total = S(0);
    for (int i = 0; i < calls; ++i) total += sums[i];
    return total;
  }

 private:
  int64_t columns_, row_, slots_;
  S* partial_;
  S* tiles_;
};

// Numbers of shared memory for so many tiles.
inline int64_t shared_numbers(int64_t columns, int64_t tiles) {
  const int64_t threads = row_threads(columns);
  const int64_t tile_numbers = threads * elements_of_thread(columns, threads);
  return block_threads / threads * (numbers_beside_tiles(threads) + tiles * tile_numbers);
}

}  // namespace fastops::hip
