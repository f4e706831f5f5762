#include "backends/hip/small_mlp.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "backends/hip/launch.h"
#include "backends/hip/product.h"
#include "backends/hip/small_mlp_time.h"
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

// The kernels of a layered network whose products are PyTorch's, besides those.
int64_t steps_of(const MlpArguments& mlp, bool backward) {
  int64_t steps = 0;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const bool has_activation = mlp.activation_of(i).id != Activation::identity;
    steps += has_activation || (backward && mlp.biases[i].defined());
  }
  return steps;
}

SmallNetwork network_of(const MlpArguments& mlp, bool in_graph) {
  SmallNetwork network;
  network.layers = static_cast<int64_t>(mlp.layers());
  network.features[0] = mlp.weights[0].size(1);
  for (size_t i = 0; i < mlp.layers(); ++i) network.features[i + 1] = mlp.weights[i].size(0);
  network.rows = row_count(mlp.input);
  network.dtype = dtype_of(mlp.input);
  network.multiprocessors = multiprocessors_of(mlp.input);
  network.in_graph = in_graph;
  network.may_be_own_products = may_be_own_products(mlp.input, mlp.weights);
  return network;
}

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
  return mlp.input.is_cpu() || choose_own(mlp.input, [&](bool in_graph) {
           return is_small_mlp_faster(network_of(mlp, in_graph), backward, steps_of(mlp, backward));
         });
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
