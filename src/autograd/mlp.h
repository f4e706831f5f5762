// What the autograd kernels of mlp and of its backward share.
#pragma once

#include "autograd/node.h"
#include "ops/mlp.h"

namespace fastops {

// input, weights[0], biases[0], weights[1], ..., as in mlp_backward's output_mask.
inline std::vector<Tensor> differentiable_inputs(const MlpArguments& mlp) {
  std::vector<Tensor> inputs = {mlp.input};
  for (size_t i = 0; i < mlp.layers(); ++i) {
    inputs.push_back(mlp.weights[i]);
    inputs.push_back(mlp.biases[i]);
  }
  return inputs;
}

// Whether the op takes part in differentiation: backward, forward.
inline bool needs_grad(const Tensor& input, at::TensorList weights, const OptionalTensors& biases) {
  if (torch::autograd::compute_requires_grad(input, weights)) return true;
  if (!torch::autograd::GradMode::is_enabled()) return false;
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto bias = biases.get(i);
    if (bias && bias->defined() && bias->requires_grad()) return true;
  }
  return false;
}
inline bool needs_tangent(const Tensor& input, at::TensorList weights, const OptionalTensors& biases) {
  return any_tangent(input, weights) || torch::autograd::isFwGradDefinedTensorList(biases);
}

}  // namespace fastops
