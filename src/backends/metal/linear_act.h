// The kernel of linear_act, with a matrix product of its own.
#pragma once

#include "backends/metal/kernels.h"

namespace fastops::mps {

// Whether to use it for a layer with this weight: for small ones, if FASTOPS_METAL_LINEAR is 1. PyTorch's products are
// several times faster for large ones; where the two meet has not been measured.
bool use_linear_act(const Tensor& weight);

// result = f(input @ weight.T + bias), and pre = input @ weight.T + bias. pre and result have contiguous rows; bias and
// pre may be undefined.
void linear_and_activate(const ActivationSpec& spec, const Tensor& input, const Tensor& weight, const Tensor& bias,
                         const Tensor& pre, const Tensor& result);

}  // namespace fastops::mps
