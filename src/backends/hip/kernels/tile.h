// What the kernels of small networks do with tiles of matrices in shared memory. A block has 16 x 16 threads; a tile
// has up to 128 columns.
#pragma once

#include "backends/hip/kernels/small_layer.h"

namespace fastops::hip {

inline constexpr int tile_threads = 16;  // in each direction
inline constexpr int tile_columns = 128;

// The distance of a tile's rows, so that they begin at multiples of 16 bytes and eight of them, 16 bytes of each, take
// all banks.
template <class Element>
inline constexpr int tile_stride = sizeof(Element) == 2 ? tile_columns + 8 : tile_columns + 4;

// The rows of a block's tiles.
template <class Storage>
inline constexpr int tile_rows = small_tile_rows(sizeof(Compute<Storage>) == 8 ? Dtype::float64 : Dtype::float32);

template <class Element>
inline constexpr int64_t tile_bytes = tile_rows<Element> * tile_stride<Element> * sizeof(Element);

// f(row, column) for each element of a tile, by the thread that it belongs to: its row and column modulo 16.
template <class F>
__device__ void for_each_element(int rows, int columns, F f) {
  for (int row = threadIdx.y; row < rows; row += tile_threads) {
    for (int column = threadIdx.x; column < columns; column += tile_threads) f(row, column);
  }
}

// to(row, column, from(row, column)) for the same elements, where `from` reads global memory: `down` x `across` of a
// thread's numbers are asked for before any is used, as a thread waits where it uses one. Beyond the edges, `from` is
// asked for the last row or column once more.
template <int down, int across, class From, class To>
__device__ void copy_elements(int rows, int columns, From from, To to) {
  for (int row = threadIdx.y; row < rows; row += down * tile_threads) {
    for (int column = threadIdx.x; column < columns; column += across * tile_threads) {
      decltype(from(0, 0)) read[down][across];
#pragma unroll
      for (int i = 0; i < down; ++i) {
#pragma unroll
        for (int j = 0; j < across; ++j) {
          const int r = row + i * tile_threads, c = column + j * tile_threads;
          read[i][j] = from(r < rows ? r : rows - 1, c < columns ? c : columns - 1);
        }
      }
#pragma unroll
      for (int i = 0; i < down; ++i) {
#pragma unroll
        for (int j = 0; j < across; ++j) {
          const int r = row + i * tile_threads, c = column + j * tile_threads;
          if (r < rows && c < columns) to(r, c, read[i][j]);
        }
      }
    }
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

// Sums of products a(row, k) * b(k, column). A thread has those of every 16th row and every 16th packet of columns from
// its own on.
template <class S>
struct Products {
  using Bytes16 = Packet<S, 16 / sizeof(S)>;
  static constexpr int rows = tile_rows<S> / tile_threads;
  static constexpr int packets = tile_columns / tile_threads / Bytes16::width;

  S sum[rows][packets][Bytes16::width] = {};

  // Adds products for k < depth. `a` holds a(row, k) beside a(row, k + 1), or with `transposed` beside a(row + 1, k);
  // b has a row for each k.
  template <bool transposed>
  __device__ void add(const S* a, const S* b, int depth, int width) {
    // All threads take the same branch.
    if (width > tile_columns / 2) {
      add_packets<transposed, packets>(a, b, depth);
    } else {
      add_packets<transposed, packets / 2>(a, b, depth);
    }
  }

  // f(row, column, sum) for each of the thread's sums.
  template <class F>
  __device__ void for_each(int height, int width, F f) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < packets; ++j) {
#pragma unroll
        for (int e = 0; e < Bytes16::width; ++e) {
          const int row = threadIdx.y + i * tile_threads;
          const int column = (threadIdx.x + j * tile_threads) * Bytes16::width + e;
          if (row < height && column < width) f(row, column, sum[i][j][e]);
        }
      }
    }
  }

 private:
  template <bool transposed, int count>
  __device__ void add_packets(const S* a, const S* b, int depth) {
    int k = 0;
    for (; k + Bytes16::width <= depth; k += Bytes16::width) add_steps<transposed, count, Bytes16::width>(a, b, k);
    for (; k < depth; ++k) add_steps<transposed, count, 1>(a, b, k);
  }

  // For `steps` of k, in their order.
  template <bool transposed, int count, int steps>
  __device__ void add_steps(const S* a, const S* b, int k) {
    Packet<S, steps> left[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = threadIdx.y + i * tile_threads;
      if constexpr (transposed) {
#pragma unroll
        for (int s = 0; s < steps; ++s) left[i].element[s] = a[(k + s) * tile_stride<S> + row];
      } else {
        left[i] = *reinterpret_cast<const Packet<S, steps>*>(a + row * tile_stride<S> + k);
      }
    }
#pragma unroll
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        const int column = (threadIdx.x + j * tile_threads) * Bytes16::width;
        const Bytes16 right = *reinterpret_cast<const Bytes16*>(b + (k + s) * tile_stride<S> + column);
#pragma unroll
        for (int i = 0; i < rows; ++i) {
#pragma unroll
          for (int e = 0; e < Bytes16::width; ++e) {
            sum[i][j][e] = library::fma(left[i].element[s], right.element[e], sum[i][j][e]);
          }
        }
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
    copy_elements<2, 2>(rows, width, f, [&](int r, int c, Storage x) { below[r * tile_stride<S> + c] = widen(x); });
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
      if constexpr (transposed) {
        // Along the weight's rows, whose elements lie beside each other.
        copy_elements<4, 1>(
            width, size, [&](int c, int k) { return layer.weight.at(c, begin + k); },
            [&](int c, int k, Storage weight) { set(k, c, weight); });
      } else {
        copy_elements<1, 4>(size, width, [&](int k, int c) { return layer.weight.at(begin + k, c); }, set);
      }
      __syncthreads();
      products.template add</*transposed=*/false>(values + begin, panel, size, width);
      __syncthreads();
    }
    products.for_each(rows, width, [&](int r, int c, S sum) { values[r * tile_stride<S> + c] = sum; });
    __syncthreads();
  }

  // f(row, column, sum) for the elements of the transposed operand * below.
  template <class F>
  __device__ void add_rows(int rows, int height, int width, F f) const {
    for (int begin = 0; begin < height; begin += tile_rows<S>) {
      Products<S> products;
      products.template add</*transposed=*/true>(values + begin, below, rows, width);
      products.for_each(height - begin, width, [&](int r, int c, S sum) { f(begin + r, c, sum); });
    }
  }
};

}  // namespace fastops::hip
