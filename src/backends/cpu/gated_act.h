// The kernels of act_mul between PyTorch's matrix products.
#pragma once

#include "ops/gated_mlp.h"

namespace fastops::cpu {

// result = f(gate) * up; it may be one of the two.
void act_mul_into(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result);

// The way back is one pass, and one of the gradients in place.
extern const GatedSteps gated_steps;

}  // namespace fastops::cpu
