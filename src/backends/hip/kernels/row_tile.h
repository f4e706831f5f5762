// Rows in shared memory, with the sums over a row and the numbers of a dropout for each element.
#pragma once

#include "backends/hip/kernels/transform.h"

namespace fastops::hip {

// ---- dropout ----

// Of 64 neighbours, 16 calls of Philox have four numbers each, for elements that are 16 apart.
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

// The threads of a row: 16 for up to 64 elements, else 32, which need no barriers, and as many more as a block has
// while they have more than `most_elements` each.
inline int row_threads(int64_t columns, int most_elements) {
  int threads = columns > group ? lanes : calls;
  while (threads < block_threads && int64_t{most_elements} * threads < columns) threads *= 2;
  return threads;
}

// Four numbers beside each other, read and written at once.
template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
  T of[4];
};

// f of each of the four. They are copies, which are read at once.
template <class F, class First, class... Others>
__device__ auto map(F f, Four<First> first, Others... others) {
  Four<decltype(f(first.of[0], others.of[0]...))> result;
#pragma unroll
  for (int i = 0; i < 4; ++i) result.of[i] = f(first.of[i], others.of[i]...);
  return result;
}

// How many fours of a row a thread has, with those past the last column.
FASTOPS_HOST_DEVICE inline int fours_of_thread(int columns, int threads) {
  return (columns + 4 * threads - 1) / (4 * threads);
}

// For the sums of a row's waves, two at a time by turns, and for what each thread keeps of each step.
inline constexpr int most_sums = 2;
FASTOPS_HOST_DEVICE inline int numbers_beside_tiles(int threads, int steps) {
  return 2 * most_sums * (threads / lanes) + steps * threads;
}

// The place of one row of a block: blockDim.x threads have it. Four elements of a row are in a tile at each of the
// thread's places: h[place]. Those past the last column are there, too, and whatever they become, nobody reads.
template <class S>
class Row {
 public:
  __device__ Row(void* memory, int columns, int steps)
      : all_columns_(columns), threads_(static_cast<int>(blockDim.x)), thread_(static_cast<int>(threadIdx.x)) {
    end_ = threads_ * fours_of_thread(columns, threads_);
    const int beside = numbers_beside_tiles(threads_, steps);
    S* const numbers = static_cast<S*>(memory);
    partial_ = numbers + threadIdx.y * beside;
    tiles_ = reinterpret_cast<Four<S>*>(numbers + blockDim.y * beside) + threadIdx.y * end_ + thread_;
  }

  // To a row of the matrices; one that does not `exist` is read and written nowhere.
  __device__ void move_to(int64_t row, bool exists) {
    row_ = row;
    columns_ = exists ? all_columns_ : 0;
  }

  // Where the row begins in a matrix.
  __device__ int64_t begin() const { return row_ * all_columns_; }

  __device__ bool exists() const { return columns_ > 0; }
  __device__ int columns() const { return all_columns_; }

  // The thread's fours in a tile.
  __device__ Four<S>* tile(int i) const { return tiles_ + i * static_cast<int>(blockDim.y) * end_; }
  __device__ Four<S>* tile_after(Four<S>* tile) const { return tile + static_cast<int>(blockDim.y) * end_; }

  // What the thread keeps of step i.
  __device__ S& of_step(int i) const { return partial_[2 * most_sums * (threads_ / lanes) + i * threads_ + thread_]; }

  // f(place) for each of the thread's places.
  template <class F>
  __device__ void for_each(F f) const {
#pragma unroll 1
    for (int place = 0; place < end_; place += threads_) f(place);
  }

  // Whether fours of a matrix that begins at `data` are aligned in memory.
  __device__ bool in_fours(const void* data) const {
    return all_columns_ % 4 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }

  // f(place, four) for each of the thread's places: load(fours, place) brings so many of them at once.
  template <int at_once, class Load, class F>
  __device__ void for_each_read(Load load, F f) const {
#pragma unroll 1
    for (int first = 0; first < end_; first += at_once * threads_) {
      Four<S> fours[at_once];
      load(fours, first);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (const int place = first + i * threads_; place < end_) f(place, fours[i]);
      }
    }
  }

  // to[i] = the numbers at place + i * threads of a row that begins at `from`, all asked for before any has come. Past
  // the last column they are zeros.
  template <bool in_fours, class T, int count>
  __device__ void load(const T* from, int place, Four<S> (&to)[count]) const {
    Four<T> fours[count] = {};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int column = column_at(place + i * threads_);
      if constexpr (in_fours) {
        if (column < columns_) fours[i] = *reinterpret_cast<const Four<T>*>(from + column);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (column + k < columns_) fours[i].of[k] = from[column + k];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = map([](T x) { return static_cast<S>(widen(x)); }, fours[i]);
  }

  // The row that begins at `to` gets the four numbers of a place.
  template <class T>
  __device__ void store(Four<S> four, int place, T* to, bool in_fours) const {
    const Four<T> numbers = map([](S x) { return narrow<T>(static_cast<Compute<T>>(x)); }, four);
    const int column = column_at(place);
    if (in_fours) {
      if (column < columns_) *reinterpret_cast<Four<T>*>(to + column) = numbers;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (column + k < columns_) to[column + k] = numbers.of[k];
      }
    }
  }

  // f(element, number) for elements of a tile and their numbers of a dropout. Other threads of the wave have them.
  template <class F>
  __device__ void for_each_number(uint64_t seed, uint32_t stream, Four<S>* tile, F f) const {
    S* const elements = (tile - thread_)->of;
    sync_lanes();
    for_each([&](int place) {
      const int call = place + thread_;
      const FourNumbers numbers = philox(seed, static_cast<uint32_t>(call), static_cast<uint64_t>(row_), stream);
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) {
        f(elements[call / calls * group + call % calls + i * calls], numbers.of[i]);
      }
    });
    sync_lanes();
  }

  // Each sum becomes that of all threads' terms of a row, the same in each thread: term(sums, elements...) adds those
  // of one element in each tile. All threads of the block must come here.
  template <int count, class F, class... Tiles>
  __device__ void add_up(S (&sums)[count], F term, const Tiles*... tiles) {
    for_each([&](int place) {
      [&](auto... fours) {
        const int rest = columns_ - column_at(place);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < rest) term(sums, fours.of[i]...);
        }
      }(tiles[place]...);
    });
    for (int other = (threads_ < lanes ? threads_ : lanes) / 2; other > 0; other /= 2) {
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] += of_other_lane(sums[i], other);
    }
    if (threads_ <= lanes) return;
    // Threads may still read the sums before these, but none before those.
    S* const partial = partial_ + turn_ * most_sums * (threads_ / lanes);
    turn_ = 1 - turn_;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (thread_ % lanes == 0) partial[thread_ / lanes * count + i] = sums[i];
      sums[i] = S(0);
    }
    __syncthreads();
    for (int wave = 0; wave < threads_ / lanes; ++wave) {
#pragma unroll
      for (int i = 0; i < count; ++i) sums[i] += partial[wave * count + i];
    }
  }

 private:
  __device__ int column_at(int place) const { return 4 * (place + thread_); }

  int all_columns_, threads_, thread_, end_;
  int columns_ = 0, turn_ = 0;
  int64_t row_ = 0;
  S* partial_;
  Four<S>* tiles_;
};

// Numbers of shared memory for so many rows with so many tiles.
inline int64_t shared_numbers(int64_t columns, int threads, int64_t rows, int steps, int64_t tiles) {
  const int64_t tile_numbers = int64_t{4} * threads * fours_of_thread(static_cast<int>(columns), threads);
  return rows * (numbers_beside_tiles(threads, steps) + tiles * tile_numbers);
}

}  // namespace fastops::hip
