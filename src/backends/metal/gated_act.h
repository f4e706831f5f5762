// The kernel of act_mul on matrices.
#pragma once

#include "backends/metal/kernels.h"

namespace fastops::mps {

// result = f(gate + gate_bias) * (up + up_bias). The matrices have contiguous rows and may be the same; the biases may
// be undefined. With `saves`, gate and up become the sums.
void activate_and_multiply(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& gate_bias,
                           const Tensor& up_bias, bool saves, const Tensor& result);

}  // namespace fastops::mps
