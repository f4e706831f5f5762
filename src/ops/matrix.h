// Views between the [..., features] tensors of a linear layer and the matrices that a GEMM takes.
#pragma once

#include <ATen/core/Tensor.h>

namespace fastops {

// [..., features] -> [rows, features]. Not reshape({-1, features}), which is ambiguous for zero features.
inline at::Tensor as_matrix(const at::Tensor& tensor) {
  if (tensor.dim() == 2) return tensor;
  c10::SymInt rows = 1;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) rows = rows * tensor.sym_size(d);
  return tensor.reshape_symint({rows, tensor.sym_size(-1)});
}

// [rows, features] -> [..., features], with the leading dimensions of `like`.
inline at::Tensor with_leading_dims(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == 2) return matrix;
  auto sizes = like.sym_sizes().vec();
  sizes.back() = matrix.sym_size(1);
  return matrix.view_symint(sizes);
}

}  // namespace fastops
