// How long small networks take in one kernel: what the choice between that and their layers (small_mlp.cpp) and the
// model of the benchmark's times (tools/gpu/model.py) count with.
//
// In nanoseconds, fitted to what an H100 measured of networks of 1 to 128 features and up to 16,384 rows. Other GPUs
// differ, though less between the two sides than in either.
#pragma once

#include <algorithm>
#include <array>

#include "backends/hip/product_time.h"

namespace fastops::hip {

// What counts of a network.
struct SmallNetwork {
  int64_t layers = 0;
  std::array<int64_t, most_small_layers + 1> features{};  // of the input and of each layer
  int64_t rows = 0;
  Dtype dtype{};
  int64_t multiprocessors = 1;
  bool in_graph = false;
  bool may_be_own_products = true;  // of its layers
};

class SmallMlpTime {
 public:
  explicit constexpr SmallMlpTime(const SmallNetwork& network) : network_(network) {}

  // The kernel's. Blocks that share a multiprocessor hide some of each other's waiting.
  constexpr int64_t kernel(bool backward) const {
    int64_t tile = 0;
    for (int64_t i = 0; i < network_.layers; ++i) tile += backward ? layer_backward(i) : layer_forward(i);
    return tile * (3 * divide_up(tiles(), network_.multiprocessors) + 2) / 5;
  }

  // Of the blocks' sums, which the backward kernel writes and a second one reads.
  constexpr int64_t sums() const {
    int64_t count = 0;
    for (int64_t i = 0; i < network_.layers; ++i) count += parameters(i);
    const int64_t bytes = tiles() * count * (network_.dtype == Dtype::float64 ? 8 : 4);
    return 2 * bytes / (bytes < cache ? cache_bandwidth : bandwidth);
  }

 private:
  // Of each layer: barriers, and global memory's latency for each pass over a tile's elements.
  static constexpr int64_t forward_passes = 1700;
  static constexpr int64_t backward_passes = 2600;
  static constexpr int64_t cache = 50'000'000;      // bytes
  static constexpr int64_t cache_bandwidth = 6000;  // bytes a nanosecond
  static constexpr int64_t bandwidth = 3000;

  constexpr int64_t in(int64_t i) const { return network_.features[i]; }
  constexpr int64_t out(int64_t i) const { return network_.features[i + 1]; }
  constexpr int64_t parameters(int64_t i) const { return out(i) * (in(i) + 1); }
  constexpr int64_t tile_rows() const { return small_tile_rows(network_.dtype); }
  constexpr int64_t tiles() const { return divide_up(network_.rows, tile_rows()); }
  constexpr bool is_16_bit() const { return network_.dtype == Dtype::bfloat16 || network_.dtype == Dtype::float16; }

  // So many products of float32 or float64 for each of a thread's sums, of which there are none for absent rows. `wide`
  // is what each takes besides where there are many columns.
  constexpr int64_t products(int64_t depth, int64_t width, int64_t wide) const {
    const int64_t of_rows = 26 * std::min(network_.rows, tile_rows()) / tile_rows();
    return depth * ((width > most_small_features / 2 ? wide : 10) + of_rows);
  }

  // By matrix cores, it is the elements on their way that count, and weights that do not lie in packets of 16 bytes: a
  // thread asks for eight of their numbers at a time.
  constexpr int64_t matrix_product(int64_t i) const {
    const int64_t loads = in(i) % 8 == 0 ? 0 : divide_up(in(i), 64) * divide_up(out(i), 32);
    return 300 * loads + 8 * (in(i) + out(i));
  }

  constexpr int64_t layer_forward(int64_t i) const {
    return forward_passes + (is_16_bit() ? matrix_product(i) : products(in(i), out(i), 40));
  }

  // The gradient of the layer's input, but for the first layer's, which is rarely wanted; and the weight's, for each
  // tile of its rows the products over the tile's rows, and its sums, which a thread writes one after another.
  constexpr int64_t layer_backward(int64_t i) const {
    if (is_16_bit()) return backward_passes + matrix_product(i) + parameters(i) / 4;
    const int64_t of_input = i == 0 ? 0 : products(out(i), in(i), 24);
    const int64_t of_weight = products(divide_up(out(i), tile_rows()) * tile_rows(), in(i), 24);
    return backward_passes + of_input + of_weight + parameters(i) / 20;
  }

  SmallNetwork network_;
};

// What the layers take, with so many kernels besides the products: all products PyTorch's, or all ours, which need no
// kernels besides them.
constexpr int64_t layered_time(const SmallNetwork& network, bool backward, int64_t steps) {
  ProductTimes times(network.in_graph);
  int64_t products = 0;
  const auto add = [&](int64_t rows, int64_t columns, int64_t depth, ProductKind kind) {
    const Product product{.rows = rows,
                          .columns = columns,
                          .depth = depth,
                          .dtype = network.dtype,
                          .multiprocessors = network.multiprocessors};
    times.add(product, kind, /*steps=*/0);
    ++products;
  };
  for (int64_t i = 0; i < network.layers; ++i) {
    const int64_t in = network.features[i], out = network.features[i + 1];
    if (!backward) {
      add(network.rows, out, in, ProductKind::forward);
    } else {
      add(out, in, network.rows, ProductKind::weights);
      if (i > 0) add(network.rows, in, out, ProductKind::backward);
    }
  }
  // Of float64, products of this size take no longer than a launch.
  if (network.dtype == Dtype::float64) return times.launch() * (products + steps);
  const int64_t library = times.library() + times.launch() * steps;
  return network.may_be_own_products ? std::min(times.own(), library) : library;
}

// Whether one kernel takes less time than the layers with so many steps besides the products. (Backward, it is two: the
// blocks' sums.)
constexpr bool is_small_mlp_faster(const SmallNetwork& network, bool backward, int64_t steps) {
  const SmallMlpTime time(network);
  const int64_t device = launch_in_graph + time.kernel(backward) + (backward ? launch_in_graph + time.sums() : 0);
  const int64_t host = network.in_graph ? 0 : launch_by_host * (backward ? 2 : 1);
  return std::max(device, host) < layered_time(network, backward, steps);
}

}  // namespace fastops::hip
