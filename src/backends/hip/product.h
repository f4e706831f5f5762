// Products of float32 by kernels of our own, with what comes before or after them, where those take less time than
// PyTorch's (product_time.h). Each function leaves the others to PyTorch: nullopt.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "ops/mlp.h"

namespace fastops::hip {

// As LayerSteps::forward.
std::optional<LayerSteps::Forward> try_product_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                     const ActivationSpec& f, bool keeps_z);

// a @ b of matrices.
std::optional<Tensor> try_product(const Tensor& a, const Tensor& b);

// The whole backward pass, as mlp_backward returns it.
std::optional<std::vector<Tensor>> try_product_gradients(const MlpBackwardArguments& mlp);

// Whether products of this tensor and weights may be ours: of float32 that is not to be rounded to TF32, and weights
// whose rows are contiguous.
bool may_be_own_products(const Tensor& input, at::TensorList weights);

}  // namespace fastops::hip
