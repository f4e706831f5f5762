#include "backends/hip/small_mlp.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "backends/hip/launch.h"
#include "ops/activation.h"
#include "ops/matrix.h"

namespace fastops::hip {
namespace {

SmallMlp arguments_of(const MlpArguments& mlp) {
  SmallMlp small = {};
  small.count = static_cast<int64_t>(mlp.layers());
  small.dtype = dtype_of(mlp.input);
  small.rows = row_count(mlp.input);
  small.stream = stream_of(mlp.input);
  small.multiprocessors = multiprocessors_of(mlp.input);
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor& weight = mlp.weights[i];
    const Tensor& bias = mlp.biases[i];
    SmallLayer& layer = small.layers[i];
    layer.weight = weight.const_data_ptr();
    layer.weight_row_stride = weight.stride(0);
    layer.weight_column_stride = weight.stride(1);
    if (bias.defined()) {
      layer.bias = bias.const_data_ptr();
      layer.bias_stride = bias.stride(0);
    }
    layer.in_features = weight.size(1);
    layer.out_features = weight.size(0);
    layer.activation = mlp.activation_of(i).id;
    layer.params = mlp.activation_of(i).params();
    layer.keeps_output = mlp.saves_output(i);
  }
  return small;
}

// ---- the choice, in nanoseconds ----
//
// No GPU has measured this: it is counted for an H100 at 1.7 GHz. Other GPUs differ, though less between the two sides
// than in either.

// From PyTorch's dispatcher to the start of a kernel. Products of this size and what lies between them take no longer,
// so launches are what a layered network takes.
constexpr int64_t launch_time = 5000;
// Global memory's latency and two barriers, for each pass over a tile's elements; the weights' is hidden by the
// products of the panels before, as far as those take that long.
constexpr int64_t latency = 700;
constexpr int64_t barriers = 100;    // two, for each panel of a weight
constexpr int64_t bandwidth = 3000;  // of memory, bytes a nanosecond

bool is_16_bit(const MlpArguments& mlp) { return mlp.input.element_size() == 2; }

// A step of a product of float32 or float64: the 8 warps read their operands in 38 cycles; half as wide, the
// multiply-adds' latency is left.
int64_t step_time(int64_t width) { return width > most_small_features / 2 ? 22 : 12; }

// The same by matrix cores, whose weight is one panel. It is on its way before where it lies in packets of 16 bytes,
// else a thread asks for four numbers at a time; backward there are few registers for it, and clang waits.
int64_t matrix_product_time(int64_t in, int64_t out, bool backward) {
  const int64_t loads = in % 8 == 0 ? (backward ? 2 : 0) : divide_up(in, 32) * divide_up(out, 32);
  return loads * latency + 2 * barriers + latency / 5 * divide_up(backward ? out : in, 16);
}

// A block's product of its tile and a weight.
int64_t product_time(const MlpArguments& mlp, int64_t in, int64_t out, bool backward) {
  if (is_16_bit(mlp)) return matrix_product_time(in, out, backward);
  const int64_t depth = backward ? out : in, width = backward ? in : out;
  const int64_t panel_depth = (width > most_small_features / 2 ? 64 : 128) / mlp.input.element_size();
  const int64_t on_their_way = backward ? 1 : 2;
  const int64_t products = std::min(depth, panel_depth) * step_time(width);
  return divide_up(depth, panel_depth) * (std::max(products, latency / on_their_way) + barriers);
}

// A block's time for a tile in one layer.
int64_t layer_time(const MlpArguments& mlp, size_t i, bool backward) {
  const int64_t in = mlp.weights[i].size(1), out = mlp.weights[i].size(0);
  if (!backward) return product_time(mlp, in, out, backward) + latency;  // and bias and activation
  // The weight's gradient: for each tile of its rows the products over the tile's rows. No block waits for its sums to
  // be written.
  const int64_t rows = small_tile_rows(dtype_of(mlp.input));
  const int64_t sums = is_16_bit(mlp) ? latency : divide_up(out, rows) * rows * step_time(in);
  return product_time(mlp, in, out, backward) + sums + 3 * latency;  // and its input, the derivative, the bias' sums
}

// Of the kernel: blocks have a multiprocessor each, and a tile after another.
int64_t kernel_time(const MlpArguments& mlp, bool backward) {
  const int64_t tiles = divide_up(row_count(mlp.input), small_tile_rows(dtype_of(mlp.input)));
  int64_t tile = 0;
  for (size_t i = 0; i < mlp.layers(); ++i) tile += layer_time(mlp, i, backward);
  const int64_t time = launch_time + divide_up(tiles, multiprocessors_of(mlp.input)) * tile;
  if (!backward) return time;
  // A second kernel adds up the blocks' sums, which are written and read.
  int64_t sums = 0;
  for (const Tensor& weight : mlp.weights) sums += weight.numel() + weight.size(0);
  const int64_t item_size = mlp.input.element_size() == 8 ? 8 : 4;
  return time + launch_time + 2 * tiles * sums * item_size / bandwidth;
}

// Of PyTorch's products and the kernels between them.
int64_t layers_time(const MlpArguments& mlp, bool backward) {
  int64_t launches = 0;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const bool has_activation = mlp.activation_of(i).id != Activation::identity;
    const bool has_step = has_activation || (backward && mlp.biases[i].defined());
    launches += (backward ? 2 : 1) + has_step;  // backward, two products
  }
  return launch_time * launches;
}

Matrix matrix_of(const Tensor& matrix) { return {data_of(matrix), matrix.stride(0), matrix.stride(1)}; }

Tensor empty_result(const MlpArguments& mlp, int64_t features) {
  auto sizes = mlp.input.sizes().vec();
  sizes.back() = features;
  return at::empty(sizes, mlp.input.options());
}

}  // namespace

bool use_small_mlp(const MlpArguments& mlp, bool backward) {
  const auto fits = [](const Tensor& weight) {
    return std::max(weight.size(0), weight.size(1)) <= most_small_features && weight.numel() > 0;
  };
  if (mlp.layers() > most_small_layers || mlp.input.numel() == 0) return false;
  if (!std::all_of(mlp.weights.begin(), mlp.weights.end(), fits)) return false;
  // The emulator is there to run the kernel.
  return mlp.input.is_cpu() || kernel_time(mlp, backward) <= layers_time(mlp, backward);
}

Tensor small_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  SmallMlp small = arguments_of(mlp);
  for (size_t i = 0; saved && i < mlp.layers(); ++i) {
    if (!mlp.saves(i)) continue;
    saved->push_back(empty_result(mlp, mlp.weights[i].size(0)));
    small.layers[i].kept = saved->back().mutable_data_ptr();
  }
  Tensor output = empty_result(mlp, mlp.weights.back().size(0));
  const Tensor input = as_matrix(mlp.input);
  check(small_mlp_forward(small, matrix_of(input), output.mutable_data_ptr()));
  return output;
}

std::vector<Tensor> small_mlp_gradients(const MlpBackwardArguments& mlp) {
  SmallMlp small = arguments_of(mlp);
  std::vector<Tensor> kept;
  for (const Tensor& tensor : mlp.saved) kept.push_back(tensor.contiguous());
  if (mlp.needs_output()) kept.push_back(mlp.output.contiguous());
  for (size_t i = 0; i < kept.size(); ++i) small.layers[i].kept = data_of(kept[i]);

  std::vector<Tensor> grads(mlp.output_mask.size());
  const auto result = [&](size_t place, at::IntArrayRef sizes) -> void* {
    if (!mlp.output_mask[place]) return nullptr;
    grads[place] = at::empty(sizes, mlp.input.options());
    return grads[place].mutable_data_ptr();
  };
  void* input_grad = result(0, mlp.input.sizes());
  for (size_t i = 0; i < mlp.layers(); ++i) {
    small.layers[i].weight_grad = result(1 + 2 * i, mlp.weights[i].sizes());
    small.layers[i].bias_grad = result(2 + 2 * i, {mlp.weights[i].size(0)});
  }
  const auto is_unwanted = [](const Tensor& grad) { return !grad.defined(); };
  if (std::all_of(grads.begin(), grads.end(), is_unwanted)) return {};
  const Tensor block_sums = at::empty({small_mlp_sums(small)}, mlp.input.options().dtype(compute_type(mlp.input)));
  const Tensor grad = as_matrix(mlp.grad_output);
  const Tensor input = as_matrix(mlp.input);
  check(small_mlp_backward(small, matrix_of(grad), matrix_of(input), input_grad, block_sums.mutable_data_ptr()));
  for (size_t i = 0; i < mlp.layers(); ++i) {
    Tensor& weight_grad = grads[1 + 2 * i];
    if (weight_grad.defined()) weight_grad = in_layout_of(mlp.weights[i], weight_grad);
  }
  std::erase_if(grads, is_unwanted);
  return grads;
}

}  // namespace fastops::hip
