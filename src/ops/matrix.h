// Views between the [..., features] tensors of a linear layer and the matrices that a product takes, for one network or
// for an ensemble: several of one form at once, whose tensors have one more dimension in front. Weights and biases that
// an ensemble shares lack it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include "ops/checks.h"

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

// The rows of a tensor [..., features].
inline int64_t row_count(const at::Tensor& tensor) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) rows *= tensor.size(d);
  return rows;
}

// Whether a matrix is the transpose of a contiguous one, as a weight is that a module keeps as [in, out].
inline bool is_transposed(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || matrix.is_contiguous_or_false()) return false;
  return TORCH_GUARD_OR_FALSE(matrix.sym_stride(0).sym_eq(1)) &&
         TORCH_GUARD_OR_FALSE(matrix.sym_stride(1).sym_eq(matrix.sym_size(0)));
}

// The same of weights [..., out_features, in_features] of an ensemble, and with gaps between the rows of [in, out]:
// packed products take them as they are, but their gradients are contiguous.
inline bool has_transposed_rows(const at::Tensor& weight) {
  return weight.size(-1) > 1 && weight.stride(-1) != 1 && weight.stride(-2) == 1;
}

// Whether every product takes a tensor as it is: the elements of a row lie side by side, and as_matrix needs no copy.
// (Tensors that are no arrays are for the checks to refuse.) Of an ensemble, for each member. And a matrix that is
// transposed, on CPUs: PyTorch's products take it, and the kernels here turn it around in less time than a copy saves.
inline bool has_even_rows(const at::Tensor& tensor, bool ensemble = false) {
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_contiguous_or_false()) return true;
  if (tensor.is_cpu() && is_transposed(tensor)) return true;
  const auto sizes = tensor.sym_sizes();
  const auto strides = tensor.sym_strides();
  const auto is = [](const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); };
  if (!is(strides.back(), 1)) return false;
  for (size_t d = ensemble ? 1 : 0; d + 2 < sizes.size(); ++d) {
    if (!is(strides[d], strides[d + 1] * sizes[d + 1])) return false;
  }
  return true;
}
inline at::Tensor with_even_rows(std::string_view op, Argument argument, const at::Tensor& tensor,
                                 bool ensemble = false) {
  if (has_even_rows(tensor, ensemble)) return tensor;
  check_tensor(op, argument, tensor);
  return tensor.contiguous();
}

// A gradient of `weight` in its layout: where they differ, every sum of the two goes across memory.
template <class Copy>
at::Tensor in_layout_of(const at::Tensor& weight, const at::Tensor& grad, Copy contiguous_copy) {
  return is_transposed(weight) && !is_transposed(grad) ? contiguous_copy(grad.t()).t() : grad;
}
inline at::Tensor in_layout_of(const at::Tensor& weight, const at::Tensor& grad) {
  return in_layout_of(weight, grad, [](const at::Tensor& transposed) { return transposed.contiguous(); });
}

// The gradient of a weight in its layout, dz.T @ x, by a function that multiplies two matrices.
template <class Multiply>
at::Tensor gradient_of_weight(const at::Tensor& weight, const at::Tensor& dz, const at::Tensor& x, Multiply multiply) {
  return is_transposed(weight) ? multiply(x.mT(), dz).mT() : multiply(dz.mT(), x);
}

// [rows, features] -> [..., features], with the leading dimensions of `like`; also of an ensemble.
inline at::Tensor with_leading_dims(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == matrix.dim()) return matrix;
  return matrix.view_symint(sizes_with(like, matrix.sym_size(-1)));
}

// a @ b, where each may have the dimension of an ensemble in front.
inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 ? at::mm(a, b) : at::matmul(a, b);
}

// Whether a bias is for PyTorch's product to add: a 16-bit product would be rounded before the bias is added to it, and
// the sum once more.
inline bool adds_bias_in_product(const at::Tensor& input) { return input.element_size() == 2; }

// x @ weight.T of matrices, and the bias if that is still to be added; `bias` may be undefined.
struct Projection {
  at::Tensor product, bias;
};
inline Projection project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (bias.defined() && adds_bias_in_product(x)) return {at::addmm(bias, x, weight.t()), {}};
  return {at::mm(x, weight.t()), bias};
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
