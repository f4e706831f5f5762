// Products that have derivatives of any order.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastops {

// a @ b for matrices. On CPUs on which the products here are the faster ones it is one of these, whose derivatives are
// such products, too, and where PyTorch's would read past the ends of rows. It is PyTorch's elsewhere, and where more
// happens than that a product is computed: under torch.func, autocast and dispatch modes, which count operations.
at::Tensor differentiable_product(const at::Tensor& a, const at::Tensor& b);

// x @ weight.T + bias, by the op of a layer; the bias may be absent.
at::Tensor projection(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

}  // namespace fastops
