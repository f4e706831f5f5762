// How long small networks take in one kernel: what the choice between that and their layers (small_mlp.cpp) and the
// model of the benchmark's times (tools/gpu/model.py) count with.
//
// In nanoseconds, fitted to what an H100 measured of networks of 1 to 128 features and up to 16,384 rows. Other GPUs
// differ, though less between the two sides than in either.
#pragma once

#include <algorithm>
#include <array>

#include "backends/hip/kernels.h"

namespace fastops::hip {

// What a kernel costs where the layers are kernels each: products of this size, and what lies between them, take no
// longer than the host from PyTorch's dispatcher to their start, or than one does after another in a graph.
inline constexpr int64_t launch_by_host = 5000;
inline constexpr int64_t launch_in_graph = 2200;

// But PyTorch's products of float32 with more than a tile's rows, at least; forward, those of up to four tiles' longer.
inline constexpr int64_t float32_product = 3900;
inline constexpr int64_t float32_product_of_tens = 10000;

// What counts of a network.
struct SmallNetwork {
  int64_t layers = 0;
  std::array<int64_t, most_small_layers + 1> features{};  // of the input and of each layer
  int64_t rows = 0;
  Dtype dtype{};
  int64_t multiprocessors = 1;
  int64_t launch = launch_by_host;
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

// What the layers take, of so many kernels.
constexpr int64_t layered_time(const SmallNetwork& network, bool backward, int64_t kernels) {
  const int64_t tiles = divide_up(network.rows, small_tile_rows(network.dtype));
  const bool is_long = network.dtype == Dtype::float32 && tiles > 1;
  const int64_t least = !is_long ? 0 : !backward && tiles <= 4 ? float32_product_of_tens : float32_product;
  const int64_t products = network.layers * (backward ? 2 : 1);
  return network.launch * (kernels - products) + std::max(network.launch, least) * products;
}

// Whether one kernel takes less time than so many that layers take. (Backward, it is two: the blocks' sums.)
constexpr bool is_small_mlp_faster(const SmallNetwork& network, bool backward, int64_t layered_kernels) {
  const SmallMlpTime time(network);
  const int64_t rest = backward ? network.launch + time.sums() : 0;
  return network.launch + time.kernel(backward) + rest <= layered_time(network, backward, layered_kernels);
}

}  // namespace fastops::hip
