// The plain activations of tensors whose arguments are checked.
#pragma once

#include "launch.h"

namespace hostmem {

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self);

// `out` has self's sizes; it may be self.
Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out);

}  // namespace hostmem
