// Layers whose activation is the last step of PyTorch's product.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/activation_spec.h"

namespace fastops::hip {

using at::Tensor;

// f(x @ weight.T + bias) in two steps, of matrices.
using LayerInSteps = Tensor (*)(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f);

// The same in one, where PyTorch's op for it gives what `in_steps` does: a NaN where that has one, and GELU's tail.
// That is tried once for each device, dtype and activation, and waits for the device: not while a graph is captured,
// which takes the steps if nothing was tried before.
std::optional<Tensor> try_epilogue(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f,
                                   LayerInSteps in_steps);

}  // namespace fastops::hip
