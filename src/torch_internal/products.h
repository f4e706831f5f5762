// PyTorch's product with bias and activation in one op: where its libraries can, the activation is the product's last
// step.
//
// Private, in all torch versions from 2.11 to 2.15. Where it is missing, a layer is a product and an activation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#if __has_include(<ATen/ops/_addmm_activation.h>)
#include <ATen/ops/_addmm_activation.h>
#endif

namespace fastops {

// ReLU or the tanh-GELU of bias + a @ b.
inline at::Tensor addmm_activation(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b, bool use_gelu) {
#if __has_include(<ATen/ops/_addmm_activation.h>)
  return at::_addmm_activation(bias, a, b, /*beta=*/1, /*alpha=*/1, use_gelu);
#else
  TORCH_CHECK(false, "fastops: this torch has no _addmm_activation");
#endif
}

}  // namespace fastops
