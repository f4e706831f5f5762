// What the kernels of small networks do with tiles of matrices in shared memory. A block has 16 x 16 threads, which
// products take in rows of 16 or 32; a tile has up to 128 columns.
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

// How many threads have products of neighbouring columns, a packet each: where there are up to 64 columns, half as
// many.
__device__ constexpr int threads_across(int width) { return width > tile_columns / 2 ? 32 : tile_threads; }

// Sums of products a(row, k) * b(k, column). `a` holds a(row, k) beside a(row, k + 1), or with `transposed` beside
// a(row + 1, k); b has a row for each k. A thread has sums of some rows after another: most threads that read at once
// want the same numbers of `a`. Its columns are packets, as many threads across from each other; with `transposed`,
// whose sums go to global memory, single columns, so that neighbouring threads write beside each other.
template <class S, bool transposed>
struct Products {
  using Bytes16 = Packet<S, 16 / sizeof(S)>;

  // A thread's, with so many threads across.
  FASTOPS_HOST_DEVICE static constexpr int rows(int across) { return tile_rows<S> * across / block_threads; }
  static constexpr int most_rows = rows(threads_across(tile_columns));
  static constexpr int packets = tile_columns / threads_across(tile_columns) / Bytes16::width;

  S sum[most_rows][packets][Bytes16::width] = {};

  // Adds products for k < depth to the sums of those threads that have some of the first `height` rows.
  __device__ void add(const S* a, const S* b, int depth, int height, int width) {
    // All threads take the same branch.
    if (width > tile_columns / 2) {
      add_packets<threads_across(tile_columns)>(a, b, depth, height);
    } else {
      add_packets<threads_across(tile_columns / 2)>(a, b, depth, height);
    }
  }

  // f(row, column, sum) for each of the thread's sums.
  template <class F>
  __device__ void for_each(int height, int width, F f) const {
    const int across = threads_across(width);
#pragma unroll
    for (int i = 0; i < most_rows; ++i) {
      if (i == rows(across)) break;
#pragma unroll
      for (int j = 0; j < packets; ++j) {
#pragma unroll
        for (int e = 0; e < Bytes16::width; ++e) {
          const int row = thread() / across * rows(across) + i;
          const int column = first_column(across) + column_after(across, j, e);
          if (row < height && column < width) f(row, column, sum[i][j][e]);
        }
      }
    }
  }

 private:
  __device__ static int first_column(int across) { return thread() % across * (transposed ? 1 : Bytes16::width); }
  __device__ static constexpr int column_after(int across, int j, int e) {
    return transposed ? (j * Bytes16::width + e) * across : j * across * Bytes16::width + e;
  }

  template <int across>
  __device__ void add_packets(const S* a, const S* b, int depth, int height) {
    const int row = thread() / across * rows(across);
    if (row >= height) return;
    a += transposed ? row : row * tile_stride<S>;
    b += first_column(across);
    int k = 0;
#pragma unroll 2
    for (; k + Bytes16::width <= depth; k += Bytes16::width) add_steps<across, Bytes16::width>(a, b, k);
#pragma unroll 1
    for (; k < depth; ++k) add_steps<across, 1>(a, b, k);
  }

  // For `steps` of k, in their order.
  template <int across, int steps>
  __device__ void add_steps(const S* a, const S* b, int k) {
    constexpr int height = rows(across);
    constexpr int lefts = transposed ? steps : height;
    using Left = Packet<S, transposed ? height : steps>;
    Left left[lefts];
#pragma unroll
    for (int i = 0; i < lefts; ++i) {
      left[i] = *reinterpret_cast<const Left*>(a + (transposed ? (k + i) * tile_stride<S> : i * tile_stride<S> + k));
    }
#pragma unroll
    for (int s = 0; s < steps; ++s) {
#pragma unroll
      for (int j = 0; j < packets; ++j) {
        const S* from = b + (k + s) * tile_stride<S>;
        Bytes16 right;
        if constexpr (transposed) {
#pragma unroll
          for (int e = 0; e < Bytes16::width; ++e) right.element[e] = from[column_after(across, j, e)];
        } else {
          right = *reinterpret_cast<const Bytes16*>(from + column_after(across, j, 0));
        }
#pragma unroll
        for (int i = 0; i < height; ++i) {
          const S factor = transposed ? left[s].element[i] : left[i].element[s];
#pragma unroll
          for (int e = 0; e < Bytes16::width; ++e) {
            sum[i][j][e] = library::fma(factor, right.element[e], sum[i][j][e]);
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
  static constexpr int64_t bytes = rows * tile_stride<S> * sizeof(S);
  static constexpr int numbers = rows * tile_columns / block_threads;

  Storage number[numbers];

  __device__ static constexpr int depth(int width) { return width > tile_columns / 2 ? rows : 2 * rows; }

  // Asks for a layer's panel; beyond the edges, for a number once more.
  __device__ void ask(const Layer<Storage>& layer, int index) {
    const int deep = depth(layer.template width<transposed>());
    const int begin = index * deep;
    int row = weight_row(deep) + (transposed ? 0 : begin);
    const int column = weight_column(deep) + (transposed ? begin : 0);
    const Storage* from = &layer.weight.at(least(row, layer.out_features - 1), least(column, layer.in_features - 1));
    const int64_t stride = step(deep) * layer.weight.row_stride;
#pragma unroll
    for (int e = 0; e < numbers; ++e) {
      number[e] = *from;
      row += step(deep);
      from += row < layer.out_features ? stride : 0;
    }
  }

  __device__ void bring(S* panel, int width) const {
    // All threads take the same branch.
    if (width > tile_columns / 2) {
      bring_rows<depth(tile_columns)>(panel);
    } else {
      bring_rows<depth(tile_columns / 2)>(panel);
    }
  }

 private:
  // A thread has numbers of one column of the weight, so many rows from each other. Neighbouring threads have what lies
  // beside each other in the weight; transposed, eight columns, so that a wave writes to all banks.
  __device__ static constexpr int columns(int deep) { return transposed ? deep : rows * tile_columns / deep; }
  __device__ static constexpr int step(int deep) { return block_threads / columns(deep); }

  __device__ static int weight_row(int deep) {
    return transposed ? thread() / 8 % 4 + thread() / 32 / (deep / 8) * 4 : thread() / columns(deep);
  }
  __device__ static int weight_column(int deep) {
    return transposed ? thread() % 8 + thread() / 32 % (deep / 8) * 8 : thread() % columns(deep);
  }

  template <int deep>
  __device__ void bring_rows(S* panel) const {
    const int row = weight_row(deep), column = weight_column(deep);
    S* const to = panel + (transposed ? place(column, row) : place(row, column));
#pragma unroll
    for (int e = 0; e < numbers; ++e) {
      to[transposed ? place(0, e * step(deep)) : place(e * step(deep), 0)] = widen(number[e]);
    }
  }

  __device__ static constexpr int place(int row, int column) {
    return row % rows * tile_stride<S> + row / rows * (tile_columns / 2) + column;
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

  // As many are in shared memory, and so many more on their way: while one is multiplied with, threads that are ahead
  // bring the other.
  static constexpr int panels = 2;
  static constexpr int64_t panel_bytes = panels * Panel::bytes;
  static constexpr int64_t forward_bytes = tile_bytes<S> + panel_bytes + tile_columns * sizeof(S);
  static constexpr int64_t backward_bytes = tile_bytes<S> + tile_bytes<S>;
  static_assert(panel_bytes <= tile_bytes<S>, "backward, panels take the place of what is below");

  S* values;  // of a layer, or their gradients; a thread changes those that belong to it
  S* panel;
  S* below;  // what the layer got, in the backward pass: in the panels' place
  S* added;  // its bias, in the forward pass
  Panel next[panels];
  Bias<Storage> bias;

  __device__ explicit Tiles(void* memory)
      : values(static_cast<S*>(memory)),
        panel(values + tile_bytes<S> / sizeof(S)),
        below(panel),
        added(panel + panel_bytes / sizeof(S)) {}

  // The values become the operand of products. There must be a barrier before `add_rows`.
  __device__ void make_operand(int, int) const {}

  // below(row, column) = f(row, column)
  template <class F>
  __device__ void set_below(int rows, int width, F f) const {
    copy_elements<2, 4>(rows, width, f, [&](int r, int c, Storage x) { below[r * tile_stride<S> + c] = widen(x); });
  }

  // Asks for the weight and bias of the first layer that `multiply` is called for.
  __device__ void ask(const Layer<Storage>& layer) {
    bias.ask(layer);
#pragma unroll
    for (int p = 0; p < panels; ++p) next[p].ask(layer, p);
  }

  // values = operand * weight, or its transpose and the bias, of layer i, and asks for those of `then`, which comes
  // next: i, where none does. Takes all barriers that it needs.
  __device__ void multiply(const Layers<Storage>& layers, int i, int then, int rows) {
    const Layer<Storage>& layer = layers.of[i];
    const int depth = layer.template depth<transposed>();
    const int width = layer.template width<transposed>();
    const int step = Panel::depth(width);
    const int count = (depth + step - 1) / step;
    if constexpr (transposed) {
      bias.bring(layer, added);
    } else {
      sync_shared();  // what is below is not needed any more
    }
    Products<S, /*transposed=*/false> products;
#pragma unroll 1
    for (int first = 0; first < count; first += panels) {
#pragma unroll
      for (int p = 0; p < panels; ++p) {
        const int index = first + p;
        S* const part = panel + p * (Panel::bytes / sizeof(S));
        next[p].bring(part, width);
        sync_shared();
        const bool is_last = index + panels >= count;
        if (!is_last || then != i) next[p].ask(layers.of[is_last ? then : i], is_last ? p : index + panels);
        const int begin = index * step;
        const int size = least(depth - begin, step);
#pragma unroll 1
        for (int k = 0; k < size; k += Panel::rows) {
          const S* half = part + k / Panel::rows * (tile_columns / 2);
          products.add(values + begin + k, half, least(size - k, Panel::rows), rows, width);
        }
      }
    }
    sync_shared();
    if constexpr (transposed) bias.ask(layers.of[then]);
    products.for_each(rows, width,
                      [&](int r, int c, S sum) { values[r * tile_stride<S> + c] = transposed ? sum + added[c] : sum; });
    sync_shared();
  }

  // f(row, column, sum) for the elements of the transposed operand * below.
  template <class F>
  __device__ void add_rows(int rows, int height, int width, F f) const {
    for (int begin = 0; begin < height; begin += tile_rows<S>) {
      Products<S, /*transposed=*/true> products;
      products.add(values + begin, below, rows, height - begin, width);
      products.for_each(height - begin, width, [&](int r, int c, S sum) { f(begin + r, c, sum); });
    }
  }
};

}  // namespace fastops::hip
