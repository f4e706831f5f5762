// What the kernels of small networks do with tiles of matrices in shared memory. A block has 16 x 16 threads; a tile
// has up to 128 columns.
#pragma once

#include "backends/hip/kernels/small_layer.h"

namespace fastops::hip {

inline constexpr int tile_threads = 16;  // in each direction
inline constexpr int tile_columns = 128;

// The distance of a tile's rows. Odd, so that a column's elements lie in different banks; of 16-bit elements, so that
// rows begin at multiples of 16 bytes and eight of them, 16 bytes of each, take all banks.
template <class Element>
inline constexpr int tile_stride = sizeof(Element) == 2 ? tile_columns + 8 : tile_columns + 1;

// The rows of a block's tiles.
template <class Storage>
inline constexpr int tile_rows = 128 / sizeof(Compute<Storage>);

template <class Element>
inline constexpr int64_t tile_bytes = tile_rows<Element> * tile_stride<Element> * sizeof(Element);

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
          const S right = b[k * tile_stride<S> + threadIdx.x + j * tile_threads];
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

// A block's tiles, with products that are the multiply-adds of each thread. MatrixTiles (matrix_tiles.h) offers the
// same.
template <class Storage>
struct Tiles {
  using S = Compute<Storage>;

  static constexpr int panel_depth = 64 / sizeof(S);  // rows of a weight that are in shared memory at a time
  static constexpr int64_t forward_bytes = tile_bytes<S> + panel_depth * tile_stride<S> * sizeof(S);
  static constexpr int64_t backward_bytes = forward_bytes + tile_bytes<S>;

  S* values;  // of a layer, or their gradients; a thread changes those that belong to it
  S* panel;
  S* below;  // what the layer got, in the backward pass

  __device__ explicit Tiles(void* memory)
      : values(static_cast<S*>(memory)),
        panel(values + tile_bytes<S> / sizeof(S)),
        below(panel + panel_depth * tile_stride<S>) {}

  // The values become the operand of products. There must be a barrier before `add_rows`.
  __device__ void make_operand(int, int) const {}

  // below(row, column) = f(row, column)
  template <class F>
  __device__ void set_below(int rows, int width, F f) const {
    for_each_element(rows, width, [&](int r, int c) { below[r * tile_stride<S> + c] = widen(f(r, c)); });
  }

  // values = operand * weight, or its transpose. Takes all barriers that it needs.
  template <bool transposed>
  __device__ void multiply(const Layer<Storage>& layer, int rows) const {
    const int depth = transposed ? layer.in_features : layer.out_features;
    const int width = transposed ? layer.out_features : layer.in_features;
    Products<S> products;
    for (int begin = 0; begin < depth; begin += panel_depth) {
      const int rest = depth - begin;
      const int size = rest < panel_depth ? rest : panel_depth;
      const auto set = [&](int k, int c, Storage weight) { panel[k * tile_stride<S> + c] = widen(weight); };
      if (transposed) {
        // Along the weight's rows, whose elements lie beside each other.
        for_each_element(width, size, [&](int c, int k) { set(k, c, layer.weight.at(c, begin + k)); });
      } else {
        for_each_element(size, width, [&](int k, int c) { set(k, c, layer.weight.at(begin + k, c)); });
      }
      __syncthreads();
      products.add(values + begin, tile_stride<S>, 1, panel, size, width);
      __syncthreads();
    }
    products.for_each(rows, width, [&](int r, int c, S sum) { values[r * tile_stride<S> + c] = sum; });
  }

  // f(row, column, sum) for the elements of the transposed operand * below.
  template <class F>
  __device__ void add_rows(int rows, int height, int width, F f) const {
    for (int begin = 0; begin < height; begin += tile_rows<S>) {
      Products<S> products;
      products.add(values + begin, 1, tile_stride<S>, below, rows, width);
      products.for_each(height - begin, width, [&](int r, int c, S sum) { f(begin + r, c, sum); });
    }
  }
};

}  // namespace fastops::hip
