// The types of tensors' elements, as kernels know them.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtype.h"

namespace fastops {

// Of a tensor that is checked.
inline Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Dtype::float64;
    case at::kBFloat16:
      return Dtype::bfloat16;
    case at::kHalf:
      return Dtype::float16;
    default:
      return Dtype::float32;
  }
}

// The dtype that a tensor is computed with: float32 for 16-bit types.
inline at::ScalarType compute_type(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type;
}

}  // namespace fastops
