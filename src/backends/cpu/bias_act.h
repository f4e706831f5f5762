// The layers that the CPU leaves to PyTorch's matrix products, with the kernels of bias_act around them.
#pragma once

#include "ops/mlp.h"

namespace fastops::cpu {

// a @ b
Tensor matrix_product(const Tensor& a, const Tensor& b);

// The bias is added in the pass of the activation, and the way back through an activation is one pass, in place.
extern const LayerSteps layer_steps;

}  // namespace fastops::cpu
