// Tiles whose products are those of matrix cores, and the choice of a block's tiles.
#pragma once

#include "backends/hip/kernels/matrix.h"

namespace fastops::hip {

// The whole weight in shared memory.
template <class Storage>
inline constexpr int64_t panel_bytes = int64_t{tile_columns} * tile_stride<Storage> * sizeof(Storage);

template <class Storage>
inline constexpr int64_t matrix_tiles_bytes = tile_bytes<Storage> + panel_bytes<Storage>;

// Tiles (tile.h) whose products are those of matrix cores. Operands are tiles of 16-bit numbers, with zeros up to
// multiples of 16. Of a product's columns the waves take 16 each by turns.
//
// The values are in float32 as elsewhere, and rounded when they become an operand. By the time of the product with the
// weight they are not needed any more, nor is what is below: the weight, all of it, takes their place in memory.
template <class Storage, bool transposed, class Cores>
struct MatrixTiles {
  using S = float;
  using Bytes16 = Packet<Storage, packet_width<Storage>>;

  static constexpr int packets = tile_columns / tile_threads;  // of a thread, of the weight
  static constexpr int held = transposed ? packets : 6;        // more would take the room of NVIDIA's third block
  static constexpr int waves = block_threads / Cores::wave;
  static constexpr int row_tiles = tile_rows<Storage> / matrix_size;
  static constexpr int column_tiles = tile_columns / matrix_size / waves;  // of a wave
  static_assert(tile_bytes<S> + tile_bytes<Storage> <= panel_bytes<Storage>,
                "the weight takes the place of the values and of what is below");

  Storage* operand;
  Storage* panel;
  S* values;
  Storage* below;
  int lane;
  int wave;
  Piece<Storage, Bytes16::width> next[held];  // of the weight that was asked for
  Bias<Storage> bias;

  __device__ explicit MatrixTiles(void* memory)
      : operand(static_cast<Storage*>(memory)),
        panel(operand + tile_bytes<Storage> / sizeof(Storage)),
        values(reinterpret_cast<S*>(panel)),
        below(panel + tile_bytes<S> / sizeof(Storage)),
        lane(thread() % Cores::wave),
        wave(wave_uniform(thread() / Cores::wave)) {}

  // The values become the operand of products. There must be a barrier before `add_rows`.
  __device__ void make_operand(int rows, int width) const {
    fill(operand, rows, width, [&](int r, int c) { return narrow<Storage>(values[r * tile_stride<S> + c]); });
  }

  // below(row, column) = f(row, column)
  template <class F>
  __device__ void set_below(int rows, int width, F f) const {
    bring(below, rows, width, f);
  }

  // Asks for the weight and bias of the first layer that `multiply` is called for: for what a thread holds of packets.
  __device__ void ask(const Layer<Storage>& layer) {
    bias.ask(layer);
    ask_packets(layer, /*wanted=*/true);
  }

  // values = operand * weight, or its transpose and the bias, of layer i, and asks for those of `then`, which comes
  // next: i, where none does. Takes all barriers that it needs.
  __device__ void multiply(const Layers<Storage>& layers, int i, int then, int rows) {
    const Layer<Storage>& layer = layers.of[i];
    const int depth = layer.template depth<transposed>();
    const int width = layer.template width<transposed>();
    sync_shared();
    bring_weight(layer);
    sync_shared();
    ask_packets(layers.of[then], then != i);
    MatrixSums<Cores> sums[column_tiles][row_tiles];
#pragma unroll
    for (int j = 0; j < column_tiles; ++j) {
      const int column = (j * waves + wave) * matrix_size;
      if (column >= width) break;
      for (int k = 0; k < depth; k += matrix_size) {
        const Storage* at =
            panel + (transposed ? column * tile_stride<Storage> + k : k * tile_stride<Storage> + column);
        const auto b = Part<Cores, Storage>::template load<!transposed>(at, lane);
#pragma unroll
        for (int i = 0; i < row_tiles; ++i) {
          at = operand + i * matrix_size * tile_stride<Storage> + k;
          sums[j][i].add(Part<Cores, Storage>::template load<false>(at, lane), b);
        }
      }
    }
    sync_shared();
    S* const added = reinterpret_cast<S*>(operand);  // which is not needed any more
    if constexpr (transposed) {
      bias.bring(layer, added);
      sync_shared();
      bias.ask(layers.of[then]);
    }
#pragma unroll
    for (int j = 0; j < column_tiles; ++j) {
#pragma unroll
      for (int i = 0; i < row_tiles; ++i) {
        sums[j][i].for_each(i * matrix_size, (j * waves + wave) * matrix_size, lane, [&](int r, int c, float sum) {
          if (r < rows && c < width) values[r * tile_stride<S> + c] = transposed ? sum + added[c] : sum;
        });
      }
    }
    sync_shared();
  }

  // f(row, column, sum) for the elements of the transposed operand * below.
  template <class F>
  __device__ void add_rows(int rows, int height, int width, F f) const {
    for (int column = wave * matrix_size; column < width; column += waves * matrix_size) {
      Part<Cores, Storage> b[row_tiles];
#pragma unroll
      for (int k = 0; k < row_tiles; ++k) b[k] = load_rows(below, k, column);
      for (int row = 0; row < height; row += matrix_size) {
        MatrixSums<Cores> sums;
#pragma unroll
        for (int k = 0; k < row_tiles; ++k) {
          if (k * matrix_size < rows) sums.add(load_rows(operand, k, row), b[k]);
        }
        sums.for_each(row, column, lane, [&](int r, int c, float sum) {
          if (r < height && c < width) f(r, c, sum);
        });
      }
    }
  }

 private:
  __device__ Part<Cores, Storage> load_rows(const Storage* tile, int k, int column) const {
    return Part<Cores, Storage>::template load<true>(tile + k * matrix_size * tile_stride<Storage> + column, lane);
  }

  // tile(row, column) = f(row, column), and zeros beyond.
  template <class F>
  __device__ static void fill(Storage* tile, int rows, int width, F f) {
    for_each_element(padded(rows), padded(width), [&](int r, int c) {
      tile[r * tile_stride<Storage> + c] = r < rows && c < width ? f(r, c) : Storage{};
    });
  }

  // The same of global memory.
  template <class F>
  __device__ static void bring(Storage* tile, int rows, int width, F f) {
    const auto from = [&](int r, int c) { return f(r < rows ? r : rows - 1, c < width ? c : width - 1); };
    copy_elements<2, 4>(padded(rows), padded(width), from, [&](int r, int c, Storage x) {
      tile[r * tile_stride<Storage> + c] = r < rows && c < width ? x : Storage{};
    });
  }

  // Of a weight that is not wanted or lies elsewhere, for zeros: where two ways met, clang would wait for what is under
  // way.
  __device__ void ask_packets(const Layer<Storage>& layer, bool wanted) {
    const bool in_packets = wanted && layer.weight_in_packets;
    const Storage* const data = in_packets ? layer.weight.data : static_cast<const Storage*>(zeros());
    const int64_t row_stride = in_packets ? layer.weight.row_stride : 0;
    const int columns = in_packets ? layer.in_features : Bytes16::width;
    for_each_packet<held>(
        [&](int e, int r, int i) { next[e] = packet_of(data, row_stride, layer.out_features, columns, r, i); });
  }

  // Beyond the edges, the last row or packet once more.
  __device__ static Piece<Storage, Bytes16::width> packet_of(const Storage* data, int64_t row_stride, int rows,
                                                             int columns, int r, int i) {
    data += least(r, rows - 1) * row_stride + least(i * Bytes16::width, columns - Bytes16::width);
    return bit_cast<Piece<Storage, Bytes16::width>>(*reinterpret_cast<const Bytes16*>(data));
  }

  // f(e, row, packet) for the first packets that belong to the thread, of a weight of the largest size.
  template <int count, class F>
  __device__ static void for_each_packet(F f) {
    static_assert(tile_columns / Bytes16::width == tile_threads);
#pragma unroll
    for (int e = 0; e < count; ++e) {
      f(e, static_cast<int>(threadIdx.y) + e * tile_threads, static_cast<int>(threadIdx.x));
    }
  }

  __device__ void bring_weight(const Layer<Storage>& layer) const {
    const int height = layer.out_features, width = layer.in_features;
    if (!layer.weight_in_packets) {
      bring(panel, height, width, [&](int r, int c) { return layer.weight.at(r, c); });
      return;
    }
    for_each_packet<packets>([&](int e, int r, int i) {
      if (r >= padded(height) || i * Bytes16::width >= padded(width)) return;
      const auto packet = bit_cast<Bytes16>(
          e < held ? next[e] : packet_of(layer.weight.data, layer.weight.row_stride, height, width, r, i));
      *reinterpret_cast<Bytes16*>(panel + r * tile_stride<Storage> + i * Bytes16::width) =
          r < height && i * Bytes16::width < width ? packet : Bytes16{};
    });
  }
};

// f(tiles) with the block's tiles: for 16-bit types those of matrix cores, where the GPU has some.
template <class Storage, bool transposed, class F>
__device__ void with_tiles(F f) {
  void* memory = shared_memory();
  if constexpr (sizeof(Storage) == 2) {
    with_matrix_cores([&](auto cores) {
      using Cores = decltype(cores);
      if constexpr (std::is_same_v<Cores, NoCores>) {
        f(Tiles<Storage, transposed>(memory));
      } else {
        f(MatrixTiles<Storage, transposed, Cores>(memory));
      }
    });
  } else {
    f(Tiles<Storage, transposed>(memory));
  }
}

// What the block is launched with, whichever tiles it has.
template <class Storage>
size_t shared_bytes(int64_t of_tiles) {
  return sizeof(Storage) == 2 ? std::max(of_tiles, matrix_tiles_bytes<Storage>) : of_tiles;
}

}  // namespace fastops::hip
