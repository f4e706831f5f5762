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
inline constexpr int tile_stride = tile_columns + 16 / sizeof(Element);

// The rows of a block's tiles.
template <class Storage>
inline constexpr int tile_rows = small_tile_rows(sizeof(Compute<Storage>) == 8 ? Dtype::float64 : Dtype::float32);

template <class Element>
inline constexpr int64_t tile_bytes = tile_rows<Element> * tile_stride<Element> * sizeof(Element);

__device__ constexpr int least(int a, int b) { return a < b ? a : b; }

// The thread's number in its block.
__device__ inline int thread() { return static_cast<int>(threadIdx.y) * tile_threads + static_cast<int>(threadIdx.x); }

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

// Some rows of what a layer multiplies with, the weight or with `transposed` its transpose, on their way to shared
// memory: a thread's numbers of them, in registers. What lies between `ask` and `bring` hides global memory's latency.
// Where there are up to 64 columns, a panel has twice as many rows, and the second half of them lies beside the first.
template <class Storage, bool transposed>
struct Panel {
  using S = Compute<Storage>;

  static constexpr int rows = 64 / sizeof(S);  // in shared memory
  static constexpr int numbers = rows * tile_columns / block_threads;

  Storage number[numbers];

  __device__ static int depth(int width) { return width > tile_columns / 2 ? rows : 2 * rows; }

  // Asks for a layer's panel; beyond the edges, for the last row or column once more.
  __device__ void ask(const Layer<Storage>& layer, int index) {
    const int width = layer.template width<transposed>();
    const int begin = index * depth(width);
    for_each(width, [&](int e, int k, int c) {
      k = least(begin + k, layer.template depth<transposed>() - 1);
      c = least(c, width - 1);
      number[e] = transposed ? layer.weight.at(c, k) : layer.weight.at(k, c);
    });
  }

  __device__ void bring(S* panel, int width) const {
    for_each(width, [&](int e, int k, int c) {
      panel[k % rows * tile_stride<S> + k / rows * (tile_columns / 2) + c] = widen(number[e]);
    });
  }

 private:
  // f(e, row, column) for each number. Neighbouring threads have what lies beside each other in the weight.
  template <class F>
  __device__ static void for_each(int width, F f) {
    const bool is_wide = width > tile_columns / 2;
    const unsigned columns = is_wide ? tile_columns : tile_columns / 2;
#pragma unroll
    for (int e = 0; e < numbers; ++e) {
      const unsigned i = e * block_threads + thread();
      if constexpr (transposed) {
        f(e, is_wide ? i % rows : i % (2 * rows), is_wide ? i / rows : i / (2 * rows));
      } else {
        f(e, is_wide ? i / tile_columns : i / (tile_columns / 2), i % columns);
      }
    }
  }
};

// A layer's bias on its way to shared memory, a number in a thread. There is no branch in which a compiler would wait.
template <class Storage>
struct Bias {
  Storage number;

  __device__ void ask(const Layer<Storage>& layer) {
    number = layer.bias[least(thread(), layer.out_features - 1) * layer.bias_stride];
  }

  // Without a bias, what leaves every sum as it is.
  __device__ void bring(const Layer<Storage>& layer, Compute<Storage>* to) const {
    if (thread() < tile_columns) to[thread()] = layer.has_bias ? widen(number) : Compute<Storage>(-0.0);
  }
};

// A block's tiles, with products that are the multiply-adds of each thread. The forward pass has its weights
// `transposed`. MatrixTiles (matrix_tiles.h) offers the same.
template <class Storage, bool transposed>
struct Tiles {
  using S = Compute<Storage>;
  using Panel = hip::Panel<Storage, transposed>;

  static constexpr int64_t panel_bytes = Panel::rows * tile_stride<S> * sizeof(S);
  static constexpr int64_t forward_bytes = tile_bytes<S> + panel_bytes + tile_columns * sizeof(S);
  static constexpr int64_t backward_bytes = tile_bytes<S> + panel_bytes + tile_bytes<S>;
  // Panels that are on their way. With two, the backward pass would spill registers on NVIDIA's GPUs.
  static constexpr int ahead = transposed ? 2 : 1;

  S* values;  // of a layer, or their gradients; a thread changes those that belong to it
  S* panel;
  S* below;  // what the layer got, in the backward pass
  S* added;  // its bias, in the forward pass
  Panel next[ahead];
  Bias<Storage> bias;

  __device__ explicit Tiles(void* memory)
      : values(static_cast<S*>(memory)),
        panel(values + tile_bytes<S> / sizeof(S)),
        below(panel + panel_bytes / sizeof(S)),
        added(below) {}

  // The values become the operand of products. There must be a barrier before `add_rows`.
  __device__ void make_operand(int, int) const {}

  // below(row, column) = f(row, column)
  template <class F>
  __device__ void set_below(int rows, int width, F f) const {
    copy_elements<2, 2>(rows, width, f, [&](int r, int c, Storage x) { below[r * tile_stride<S> + c] = widen(x); });
  }

  // Asks for the weight and bias of the first layer that `multiply` is called for.
  __device__ void ask(const Layer<Storage>& layer) {
    bias.ask(layer);
#pragma unroll
    for (int p = 0; p < ahead; ++p) next[p].ask(layer, p);
  }

  // values = operand * weight, or its transpose and the bias, of layer i, and asks for those of `then`, which comes
  // next: i, where none does. Takes all barriers that it needs.
  __device__ void multiply(const Layers<Storage>& layers, int i, int then, int rows) {
    const Layer<Storage>& layer = layers.of[i];
    const int depth = layer.template depth<transposed>();
    const int width = layer.template width<transposed>();
    const int step = Panel::depth(width);
    const int panels = (depth + step - 1) / step;
    if constexpr (transposed) bias.bring(layer, added);
    Products<S> products;
#pragma unroll 1
    for (int first = 0; first < panels; first += ahead) {
#pragma unroll
      for (int p = 0; p < ahead; ++p) {
        const int index = first + p;
        next[p].bring(panel, width);
        sync_shared();
        const bool is_last = index + ahead >= panels;
        if (!is_last || then != i) next[p].ask(layers.of[is_last ? then : i], is_last ? p : index + ahead);
        const int begin = index * step;
        const int size = least(depth - begin, step);
        for (int k = 0; k < size; k += Panel::rows) {
          const S* half = panel + k / Panel::rows * (tile_columns / 2);
          products.template add</*transposed=*/false>(values + begin + k, half, least(size - k, Panel::rows), width);
        }
        sync_shared();
      }
    }
    if constexpr (transposed) bias.ask(layers.of[then]);
    products.for_each(rows, width,
                      [&](int r, int c, S sum) { values[r * tile_stride<S> + c] = transposed ? sum + added[c] : sum; });
    sync_shared();
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
