// The plain activations on GPU tensors whose arguments are checked.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/activation_spec.h"

namespace fastops::hip {

using at::Tensor;

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self);

// `out` has self's sizes; it may be self.
Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out);

}  // namespace fastops::hip
