// The products in the formulas of second derivatives, which have derivatives of any order.
#pragma once

#include <ATen/core/Tensor.h>

namespace fastops {

// a @ b for matrices. On CPUs on which the products here are the faster ones it is one of these, whose derivatives are
// such products, too. It is PyTorch's elsewhere, and where more happens than that a product is computed: under
// torch.func, autocast and dispatch modes, which count operations for example.
at::Tensor differentiable_product(const at::Tensor& a, const at::Tensor& b);

}  // namespace fastops
