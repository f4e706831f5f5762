// What the kernels of small networks do with tiles of matrices in shared memory. A block has 16 x 16 threads; a tile
// has up to 128 columns.
#pragma once

#include "backends/hip/kernels/transform.h"

namespace fastops::hip {

inline constexpr int tile_threads = 16;  // in each direction
inline constexpr int tile_columns = 128;
inline constexpr int tile_stride = tile_columns + 1;  // odd: a column's elements lie in different banks

// The rows of a tile, and those of a weight that are in shared memory at a time.
template <class S>
inline constexpr int tile_rows = 128 / sizeof(S);
template <class S>
inline constexpr int panel_depth = 64 / sizeof(S);

template <class S>
inline constexpr int64_t tile_bytes = tile_rows<S> * tile_stride * sizeof(S);
template <class S>
inline constexpr int64_t panel_bytes = panel_depth<S> * tile_stride * sizeof(S);

// f(row, column) for each element of a tile, by the thread that it belongs to: its row and column modulo 16.
template <class F>
__device__ void for_each_element(int rows, int columns, F f) {
  for (int row = threadIdx.y; row < rows; row += tile_threads) {
    for (int column = threadIdx.x; column < columns; column += tile_threads) f(row, column);
  }
}

// f(A()) with the struct A of the activation. All threads of a block take the same branch.
template <class F>
__device__ void with_activation(Activation id, F f) {
#define FASTOPS_CASE(name, A, ...) \
  case Activation::name:           \
    return f(activations::A());
  switch (id) {
    FASTOPS_KERNEL_ACTIVATIONS(FASTOPS_CASE)
    default:
      return;
  }
#undef FASTOPS_CASE
}

// Sums of products a(row, k) * b(k, column). A thread has those of every 16th row and column from its own on.
template <class S>
struct Products {
  static constexpr int rows = tile_rows<S> / tile_threads;
  static constexpr int columns = tile_columns / tile_threads;

  S sum[rows][columns] = {};

  // Adds products for k < depth. `a` holds a(row, k) at row * a_row + k * a_depth, b a row for each k.
  __device__ void add(const S* a, int a_row, int a_depth, const S* b, int depth, int width) {
    for (int k = 0; k < depth; ++k) {
      S left[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) left[i] = a[(threadIdx.y + i * tile_threads) * a_row + k * a_depth];
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        if (j * tile_threads < width) {
          const S right = b[k * tile_stride + threadIdx.x + j * tile_threads];
#pragma unroll
          for (int i = 0; i < rows; ++i) sum[i][j] = library::fma(left[i], right, sum[i][j]);
        }
      }
    }
  }

  // f(row, column, sum) for each of the thread's sums: those of the elements that belong to it.
  template <class F>
  __device__ void for_each(int height, int width, F f) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        const int row = threadIdx.y + i * tile_threads;
        const int column = threadIdx.x + j * tile_threads;
        if (row < height && column < width) f(row, column, sum[i][j]);
      }
    }
  }
};

}  // namespace fastops::hip
