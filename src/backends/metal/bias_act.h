// The kernel of bias_act on matrices.
#pragma once

#include "backends/metal/kernels.h"

namespace fastops::mps {

// result = f(self + bias), and pre = self + bias. The matrices have contiguous rows and may be the same; bias and pre
// may be undefined.
void add_bias_and_activate(const ActivationSpec& spec, const Tensor& self, const Tensor& bias, const Tensor& pre,
                           const Tensor& result);

}  // namespace fastops::mps
