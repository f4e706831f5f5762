// How long products of float32 and of 16 bits take, ours (kernels/product.hip) and PyTorch's: what the choice between
// the two (product.cpp), that of our tiles, and the model of the benchmark's times (tools/gpu/model.py) count with.
//
// In nanoseconds, fitted to what an H100 measured of 1 to 2,048 rows and 10 to 3,072 features. Ours of 16 bits have not
// been measured: what float32's take for the depth is counted half where lines are packets, as slices of as many bytes
// have twice the depth then and are multiplied on matrix cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "backends/hip/kernels.h"

namespace fastops::hip {

// What a kernel costs at least: with its result's memory from the host to its start, or one after another in a graph.
inline constexpr int64_t launch_by_host = 5000;
inline constexpr int64_t launch_in_graph = 2200;

// Which of a layer's products: its output, the gradient of its input, that of its weight.
enum class ProductKind { forward, backward, weights };

// The tile of a block. As many blocks as the multiprocessors have at once are a wave: two each, but one of float32's
// forward pass where rows are no packets of 16 bytes.
struct ProductTile {
  int64_t height;
  int64_t width;
  int64_t launch;
  int64_t wave;        // what each costs besides the products
  int64_t numbers[3];  // for each hundred numbers of the depth, by kind
};
inline constexpr ProductTile product_tiles[] = {{16, 16, 1000, 1150, {980, 980, 980}},
                                                {16, 32, 900, 1500, {1450, 1450, 1450}},
                                                {32, 32, 1200, 1400, {2400, 2050, 1700}}};

// Whether the numbers that lie beside each other are whole packets of 16 bytes.
constexpr bool has_packets(const Product& product, ProductKind kind) {
  const int64_t left = kind == ProductKind::weights ? product.rows : product.depth;
  const int64_t right = kind == ProductKind::forward ? product.depth : product.columns;
  const int64_t packet = product.dtype == Dtype::float32 ? 4 : 8;
  return left % packet == 0 && right % packet == 0;
}

constexpr int64_t product_time(const ProductTile& tile, const Product& product, ProductKind kind) {
  const int64_t blocks = divide_up(product.rows, tile.height) * divide_up(product.columns, tile.width);
  const bool is_float32 = product.dtype == Dtype::float32;
  const bool in_packets = has_packets(product, kind);
  const bool has_two = !is_float32 || kind != ProductKind::forward || in_packets;
  const int64_t waves = divide_up(blocks, (has_two ? 2 : 1) * product.multiprocessors);
  // Blocks that have a multiprocessor for themselves take half the time.
  const int64_t halves = divide_up(blocks, product.multiprocessors);
  const int64_t numbers = tile.numbers[static_cast<int>(kind)] / (is_float32 || !in_packets ? 1 : 2);
  return tile.launch + tile.wave * waves + product.depth * numbers * halves / 200;
}

// The place of the tile that takes least.
constexpr size_t best_tile(const Product& product, ProductKind kind) {
  size_t best = 0;
  for (size_t i = 1; i < std::size(product_tiles); ++i) {
    if (product_time(product_tiles[i], product, kind) < product_time(product_tiles[best], product, kind)) best = i;
  }
  return best;
}

constexpr int64_t product_time(const Product& product, ProductKind kind) {
  return product_time(product_tiles[best_tile(product, kind)], product, kind);
}

// PyTorch's kernel or kernels for the product alone: cuBLAS takes longest for tens of rows of float32 by a transposed
// weight. Of 16 bits, whole networks were measured, of which small products take no more than a kernel does at least.
constexpr int64_t library_product_time(const Product& product, ProductKind kind) {
  const int64_t rows = product.rows, columns = product.columns, depth = product.depth;
  if (product.dtype != Dtype::float32) return launch_in_graph + rows * columns * depth * 3 / 1'000'000;
  const int64_t arithmetic = rows * columns * depth * 54 / 1'000'000;
  const int64_t bytes = 4 * (rows * columns + (rows + columns) * depth);
  if (kind == ProductKind::weights) return 3500 + arithmetic + bytes / 2500;
  if (rows == 1) return 2500 + bytes / 5000;
  if (kind == ProductKind::backward) return 5000 + arithmetic;
  if (rows <= 32) return 2500 + 7 * depth + arithmetic;
  return rows <= 256 ? 10000 + 4 * depth + arithmetic : 4500 + arithmetic;
}

// The times of products and of what lies between them, in a graph or by the host: by our kernels, which do the steps
// between, and by PyTorch's and kernels for the steps.
class ProductTimes {
 public:
  explicit constexpr ProductTimes(bool in_graph) : in_graph_(in_graph) {}

  constexpr void add(const Product& product, ProductKind kind, int64_t steps) {
    own_ += std::max(launch(), product_time(product, kind));
    library_ += std::max(launch(), library_product_time(product, kind)) + steps * launch();
  }

  constexpr int64_t launch() const { return in_graph_ ? launch_in_graph : launch_by_host; }
  constexpr int64_t own() const { return own_; }
  constexpr int64_t library() const { return library_; }
  constexpr bool own_are_faster() const { return own_ < library_; }

 private:
  bool in_graph_;
  int64_t own_ = 0;
  int64_t library_ = 0;
};

// For the choice between the two. PyTorch's products of 16 bits take so little of the GPU's time that it counts alone:
// where calls are many, it may be what they wait for.
constexpr ProductTimes times_of_choice(Dtype dtype, bool in_graph) {
  return ProductTimes(in_graph || dtype != Dtype::float32);
}

}  // namespace fastops::hip
