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

// Four numbers of a thread in shared memory, read and written at once.
template <class S>
struct alignas(16) Four {
  S of[numbers_of_call];
};

// How often a thread has four elements of a row, with those past the last column.
FASTOPS_HOST_DEVICE inline int fours_of_thread(int columns, int threads) {
  return (columns + numbers_of_call * threads - 1) / (numbers_of_call * threads);
}

// For the sums of a row's waves, and what each thread keeps of each step; tiles behind them begin at 16 bytes.
FASTOPS_HOST_DEVICE inline int numbers_beside_tiles(int threads, int steps) {
  return (threads / lanes + 3) / 4 * 4 + steps * threads;
}

// The place of one row of a block: blockDim.x threads have it. A thread's elements are in a tile at places, four at
// each: h[place].of[i]. Those past the last column are somewhere in a tile, too, and whatever they become, nobody
// reads.
template <class S>
class Row {
 public:
  __device__ Row(void* memory, int columns, int steps, int64_t row, bool exists)
      : columns_(exists ? columns : 0),
        threads_(static_cast<int>(blockDim.x)),
        end_(threads_ * fours_of_thread(columns, threads_)),
        first_(static_cast<int>(threadIdx.x) / calls * group + static_cast<int>(threadIdx.x) % calls),
        row_(row) {
    const int beside = numbers_beside_tiles(threads_, steps);
    S* const numbers = static_cast<S*>(memory);
    partial_ = numbers + threadIdx.y * beside;
    tiles_ = reinterpret_cast<Four<S>*>(numbers + blockDim.y * beside) + threadIdx.y * end_ + threadIdx.x;
  }

  __device__ int64_t number() const { return row_; }

  // The thread's elements in a tile.
  __device__ Four<S>* tile(int i) const { return tiles_ + i * static_cast<int>(blockDim.y) * end_; }

  // What the thread keeps of step i.
  __device__ S& of_step(int i) const { return partial_[(threads_ / lanes + 3) / 4 * 4 + i * threads_ + threadIdx.x]; }

  // f(place) for each of the thread's places.
  template <class F>
  __device__ void for_each(F f) const {
#pragma unroll 2
    for (int place = 0; place < end_; place += threads_) f(place);
  }

  // f(place, i, column) for the thread's elements.
  template <class F>
  __device__ void for_each_element(F f) const {
    for (int place = 0; place < end_; place += threads_) {
      const int begin = first_ + numbers_of_call * place;
      if (begin + (numbers_of_call - 1) * calls < columns_) {
#pragma unroll
        for (int i = 0; i < numbers_of_call; ++i) f(place, i, begin + i * calls);
      } else {
#pragma unroll
        for (int i = 0; i < numbers_of_call; ++i) {
          if (const int column = begin + i * calls; column < columns_) f(place, i, column);
        }
      }
    }
  }

  // f(place, numbers) with the four numbers of a row that begins at `from`, each read before any is used. Past the last
  // column they are zeros.
  template <class T, class F>
  __device__ void for_each_of(const T* from, F f) const {
#pragma unroll 2
    for (int place = 0; place < end_; place += threads_) {
      const int begin = first_ + numbers_of_call * place;
      T read[numbers_of_call];
      if (begin + (numbers_of_call - 1) * calls < columns_) {
#pragma unroll
        for (int i = 0; i < numbers_of_call; ++i) read[i] = from[begin + i * calls];
      } else {
#pragma unroll
        for (int i = 0; i < numbers_of_call; ++i)
          read[i] = begin + i * calls < columns_ ? from[begin + i * calls] : T{};
      }
      f(place, read);
    }
  }

  // f(place, numbers) with the four numbers of a dropout.
  template <class F>
  __device__ void for_each_number(uint64_t seed, uint32_t stream, F f) const {
    for (int place = 0; place < end_; place += threads_) {
      const int begin = first_ + numbers_of_call * place;
      const uint32_t call = static_cast<uint32_t>(begin / group * calls + begin % calls);
      f(place, philox(seed, call, static_cast<uint64_t>(row_), stream));
    }
  }

  // The sum of all threads' values, the same in each. All threads of the block must come here.
  __device__ S sum(S value) const {
    for (int other = (threads_ < lanes ? threads_ : lanes) / 2; other > 0; other /= 2) {
      value += of_other_lane(value, other);
    }
    if (threads_ <= lanes) return value;
    __syncthreads();  // until all have read the sums before
    if (threadIdx.x % lanes == 0) partial_[threadIdx.x / lanes] = value;
    __syncthreads();
    S total = S(0);
    for (int i = 0; i < threads_ / lanes; ++i) total += partial_[i];
    return total;
  }

 private:
  int columns_, threads_, end_, first_;
  int64_t row_;
  S* partial_;
  Four<S>* tiles_;
};

// Numbers of shared memory for so many rows with so many tiles.
inline int64_t shared_numbers(int64_t columns, int64_t rows, int steps, int64_t tiles) {
  const int threads = row_threads(columns);
  const int64_t tile_numbers = int64_t{numbers_of_call} * threads * fours_of_thread(static_cast<int>(columns), threads);
  return rows * (numbers_beside_tiles(threads, steps) + tiles * tile_numbers);
}

}  // namespace fastops::hip
