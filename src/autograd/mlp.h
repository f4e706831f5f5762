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

}  // namespace fastops
