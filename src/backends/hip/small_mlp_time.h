// How long small networks take in one kernel: what the choice between that and their layers (small_mlp.cpp) and the
// model of the benchmark's times (tools/gpu/model.py) count with.
//
// No GPU has measured this: it is counted in nanoseconds for an H100 at 1.7 GHz. Other GPUs differ, though less between
// the two sides than in either.
#pragma once

#include <algorithm>
#include <array>

#include "backends/hip/kernels.h"

namespace fastops::hip {

// What counts of a network.
struct SmallNetwork {
  int64_t layers = 0;
  std::array<int64_t, most_small_layers + 1> features{};  // of the input and of each layer
  int64_t rows = 0;
  Dtype dtype{};
  int64_t multiprocessors = 1;
};

class SmallMlpTime {
 public:
  // From PyTorch's dispatcher to the start of a kernel. Products of this size and what lies between them take no
  // longer, so launches are what a layered network takes.
  static constexpr int64_t launch = 5000;

  explicit constexpr SmallMlpTime(const SmallNetwork& network) : network_(network) {}

  // The kernel's: blocks have a multiprocessor each, and a tile after another.
  constexpr int64_t kernel(bool backward) const {
    int64_t tile = backward ? 0 : latency;  // the input; backward it is part of each layer
    for (int64_t i = 0; i < network_.layers; ++i) tile += backward ? layer_backward(i) : layer_forward(i);
    return divide_up(tiles(), network_.multiprocessors) * tile;
  }

  // Of the blocks' sums, which the backward kernel writes and a second one reads.
  constexpr int64_t sums() const {
    int64_t count = 0;
    for (int64_t i = 0; i < network_.layers; ++i) count += out(i) * (in(i) + 1);
    return 2 * tiles() * count * (network_.dtype == Dtype::float64 ? 8 : 4) / bandwidth;
  }

 private:
  // Global memory's latency and two barriers, for each pass over a tile's elements; the weights' and biases' is hidden
  // by the products before, as far as those take that long.
  static constexpr int64_t latency = 700;
  static constexpr int64_t barriers = 100;    // two, for each panel of a weight
  static constexpr int64_t bandwidth = 3000;  // of memory, bytes a nanosecond
  static constexpr int64_t column = 4;        // of a tile through an activation: 32 elements, 30 instructions each

  constexpr int64_t in(int64_t i) const { return network_.features[i]; }
  constexpr int64_t out(int64_t i) const { return network_.features[i + 1]; }
  constexpr int64_t tile_rows() const { return small_tile_rows(network_.dtype); }
  constexpr int64_t tiles() const { return divide_up(network_.rows, tile_rows()); }
  constexpr bool is_16_bit() const { return network_.dtype == Dtype::bfloat16 || network_.dtype == Dtype::float16; }

  // A step of a product of float32 or float64: the 8 warps read their operands in 38 cycles; half as wide, the
  // multiply-adds' latency is left.
  static constexpr int64_t step(int64_t width) { return width > most_small_features / 2 ? 22 : 12; }

  // Of a tile and a weight. By matrix cores, the weight is one panel: it is on its way before where it lies in packets
  // of 16 bytes (but for what backward has no registers for), else a thread asks for four numbers at a time.
  constexpr int64_t product(int64_t i, bool backward) const {
    const int64_t depth = backward ? out(i) : in(i), width = backward ? in(i) : out(i);
    if (is_16_bit()) {
      const int64_t in_packets = backward && out(i) > 96 ? 2 : 0;
      const int64_t loads = in(i) % 8 == 0 ? in_packets : divide_up(in(i), 32) * divide_up(out(i), 32);
      return loads * latency + 2 * barriers + latency / 5 * divide_up(depth, 16);
    }
    const int64_t panel = (width > most_small_features / 2 ? 64 : 128) / (network_.dtype == Dtype::float64 ? 8 : 4);
    const int64_t on_their_way = backward ? 1 : 2;
    const int64_t products = std::min(depth, panel) * step(width);
    return divide_up(depth, panel) * (std::max(products, latency / on_their_way) + barriers);
  }

  constexpr int64_t layer_forward(int64_t i) const { return product(i, /*backward=*/false) + column * out(i); }

  // The weight's gradient: for each tile of its rows the products over the tile's rows. No block waits for its sums to
  // be written.
  constexpr int64_t layer_backward(int64_t i) const {
    const int64_t sums = is_16_bit() ? latency : divide_up(out(i), tile_rows()) * tile_rows() * step(in(i));
    return product(i, /*backward=*/true) + sums + 3 * latency;  // and the input, the derivative, the bias' sums
  }

  SmallNetwork network_;
};

// Whether one kernel takes less time than so many that layers take. (Backward, it is two: the blocks' sums.)
constexpr bool is_small_mlp_faster(const SmallNetwork& network, bool backward, int64_t layered_kernels) {
  const SmallMlpTime time(network);
  const int64_t rest = backward ? SmallMlpTime::launch + time.sums() : 0;
  return SmallMlpTime::launch + time.kernel(backward) + rest <= SmallMlpTime::launch * layered_kernels;
}

}  // namespace fastops::hip
