// What there is to know of PyTorch's products on GPUs.
//
// Private, in all torch versions from 2.11 to 2.15.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#if __has_include(<ATen/ops/_addmm_activation.h>)
#include <ATen/ops/_addmm_activation.h>
#endif

namespace fastops {

// Whether products of float32 may be those of numbers that are rounded to TF32: the user's choice
// (torch.set_float32_matmul_precision, torch.backends.cuda.matmul.fp32_precision), which is only theirs to make.
// Context::allowTF32CuBLAS throws where the second was used.
inline bool is_rounded_to_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

// ReLU or the tanh-GELU of bias + a @ b: where PyTorch's libraries can, as the product's last step. Where the op is
// missing, a layer is a product and an activation.
inline at::Tensor addmm_activation(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b, bool use_gelu) {
#if __has_include(<ATen/ops/_addmm_activation.h>)
  return at::_addmm_activation(bias, a, b, /*beta=*/1, /*alpha=*/1, use_gelu);
#else
  TORCH_CHECK(false, "fastops: this torch has no _addmm_activation");
#endif
}

}  // namespace fastops
