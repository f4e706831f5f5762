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

// Lanes whose sum a wave has without a barrier, whether it is of 32 or 64.
inline constexpr int lanes = 32;

// The threads of a row: 16 for up to 64 elements, else 32, a wave's, and as many more as a block has while they have
// more than 16 elements each. More would wait for each other more often, fewer leave a multiprocessor less to do
// meanwhile.
inline int row_threads(int64_t columns) {
  int threads = columns > group ? lanes : calls;
  while (threads < block_threads && int64_t{16} * threads < columns) threads *= 2;
  return threads;
}

// A thread's elements in a row, with those past the last column.
FASTOPS_HOST_DEVICE inline int elements_of_thread(int columns, int threads) {
  return (columns + numbers_of_call * threads - 1) / (numbers_of_call * threads) * numbers_of_call;
}

// For the sums of a row's waves, and what each thread keeps of each step.
FASTOPS_HOST_DEVICE inline int numbers_beside_tiles(int threads, int steps) {
  return threads / lanes + steps * threads;
}

// The place of one row of a block: blockDim.x threads have it.
template <class S>
class Row {
 public:
  __device__ Row(void* memory, int columns, int steps, int64_t row, bool exists)
      : columns_(exists ? columns : 0),
        slots_(elements_of_thread(columns, blockDim.x)),
        first_(static_cast<int>(threadIdx.x) / calls * group + static_cast<int>(threadIdx.x) % calls),
        row_(row) {
    const int beside = numbers_beside_tiles(blockDim.x, steps);
    partial_ = static_cast<S*>(memory) + threadIdx.y * beside;
    tiles_ = static_cast<S*>(memory) + blockDim.y * beside + threadIdx.y * blockDim.x * slots_ + threadIdx.x;
  }

  __device__ int64_t number() const { return row_; }

  // The thread's elements in a tile, each at(slot).
  __device__ S* tile(int i) const { return tiles_ + i * static_cast<int>(blockDim.y * blockDim.x) * slots_; }
  __device__ static int at(int slot) { return slot * static_cast<int>(blockDim.x); }

  // What the thread keeps of step i.
  __device__ S& of_step(int i) const { return partial_[blockDim.x / lanes + i * blockDim.x + threadIdx.x]; }

  // f(slot, column) for the thread's elements.
  template <class F>
  __device__ void for_each(F f) const {
    for (int slot = 0; slot < slots_; slot += numbers_of_call) {
      const int begin = first_ + slot * static_cast<int>(blockDim.x);
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        if (const int column = begin + i * calls; column < columns_) f(slot + i, column);
      }
    }
  }

  // f(slot, from[column]) for the thread's elements, each read before any is used. Beyond the edge, the last once more.
  template <class T, class F>
  __device__ void for_each_of(const T* from, F f) const {
    if (columns_ == 0) return;
#pragma unroll 2
    for (int slot = 0; slot < slots_; slot += numbers_of_call) {
      const int begin = first_ + slot * static_cast<int>(blockDim.x);
      T read[numbers_of_call];
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        const int column = begin + i * calls;
        read[i] = from[column < columns_ ? column : columns_ - 1];
      }
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        if (begin + i * calls < columns_) f(slot + i, read[i]);
      }
    }
  }

  // f(slot, column, number) with the numbers of a dropout.
  template <class F>
  __device__ void for_each_number(uint64_t seed, uint32_t stream, F f) const {
    for (int slot = 0; slot < slots_; slot += numbers_of_call) {
      const int begin = first_ + slot * static_cast<int>(blockDim.x);
      if (begin >= columns_) return;
      const uint32_t call = static_cast<uint32_t>(begin / group * calls + begin % calls);
      const FourNumbers numbers = philox(seed, call, static_cast<uint64_t>(row_), stream);
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        if (const int column = begin + i * calls; column < columns_) f(slot + i, column, numbers.of[i]);
      }
    }
  }

  // The sum of all threads' values, the same in each. All threads of the block must come here.
  __device__ S sum(S value) const {
    const int threads = static_cast<int>(blockDim.x);
    for (int other = (threads < lanes ? threads : lanes) / 2; other > 0; other /= 2)
      value += of_other_lane(value, other);
    if (threads <= lanes) return value;
    __syncthreads();  // until all have read the sums before
    if (threadIdx.x % lanes == 0) partial_[threadIdx.x / lanes] = value;
    __syncthreads();
    S total = S(0);
    for (int i = 0; i < threads / lanes; ++i) total += partial_[i];
    return total;
  }

 private:
  int columns_, slots_, first_;
  int64_t row_;
  S* partial_;
  S* tiles_;
};

// Numbers of shared memory for so many rows with so many tiles.
inline int64_t shared_numbers(int64_t columns, int64_t rows, int steps, int64_t tiles) {
  const int threads = row_threads(columns);
  const int64_t tile_numbers = int64_t{threads} * elements_of_thread(static_cast<int>(columns), threads);
  return rows * (numbers_beside_tiles(threads, steps) + tiles * tile_numbers);
}

}  // namespace fastops::hip
