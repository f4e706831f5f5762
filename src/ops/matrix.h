// Views between the [..., features] tensors of a linear layer and the matrices that a product takes, for one network or
// for an ensemble: several of one form at once, whose tensors have one more dimension in front. Weights and biases that
// an ensemble shares lack it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

namespace fastops {

// [..., features] -> [rows, features]; of an ensemble [size, ..., features] -> [size, rows, features]. Not
// reshape({-1, features}), which is ambiguous for zero features.
inline at::Tensor as_matrix(const at::Tensor& tensor, bool ensemble = false) {
  const int64_t first = ensemble ? 1 : 0;
  if (tensor.dim() == first + 2) return tensor;
  c10::SymInt rows = 1;
  for (int64_t d = first; d + 1 < tensor.dim(); ++d) rows = rows * tensor.sym_size(d);
  if (ensemble) return tensor.reshape_symint({tensor.sym_size(0), rows, tensor.sym_size(-1)});
  return tensor.reshape_symint({rows, tensor.sym_size(-1)});
}

// [rows, features] -> [..., features], with the leading dimensions of `like`; also of an ensemble.
inline at::Tensor with_leading_dims(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == matrix.dim()) return matrix;
  auto sizes = like.sym_sizes().vec();
  sizes.back() = matrix.sym_size(-1);
  return matrix.view_symint(sizes);
}

// a @ b, where each may have the dimension of an ensemble in front.
inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 ? at::mm(a, b) : at::matmul(a, b);
}

// input @ weight.T + bias; bias may be undefined.
inline at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool ensemble) {
  if (!ensemble || (weight.dim() == 2 && (!bias.defined() || bias.dim() == 1))) {
    return at::linear(input, weight, bias);
  }
  const at::Tensor x = as_matrix(input, ensemble);
  const at::Tensor transposed = weight.mT().expand_symint({x.sym_size(0), weight.sym_size(-1), weight.sym_size(-2)});
  if (!bias.defined()) return with_leading_dims(at::bmm(x, transposed), input);
  return with_leading_dims(at::baddbmm(bias.unsqueeze(-2), x, transposed), input);
}

}  // namespace fastops
