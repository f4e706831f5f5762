// From tensors [..., columns] to the arguments of the kernels over rows.
#pragma once

#include <limits>

#include "backends/metal/kernels.h"
#include "ops/matrix.h"

namespace fastops::mps {

// The tensor as a matrix with contiguous rows: a view, or a copy where its strides do not allow that.
inline Tensor rows_of(const Tensor& tensor) {
  Tensor rows = as_matrix(tensor.dim() == 0 ? tensor.view({1}) : tensor);
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

// The arguments for these matrices, each at the place of its buffer (undefined where another tensor has that place or
// there is none), and for the vectors beside them. All have as many columns as the first.
inline RowArguments row_arguments(const ActivationSpec& spec, uint32_t flags, at::TensorList matrices,
                                  at::TensorList vectors = {}) {
  const Tensor& first = matrices.front();
  constexpr int64_t most = std::numeric_limits<uint32_t>::max() - 1024;  // the kernels round up
  TORCH_CHECK(first.size(0) <= most && first.size(1) <= most, "fastops: a matrix of ", first.size(0), " x ",
              first.size(1), " elements is too large for the Metal kernels; neither size may be above ", most);
  RowArguments to{};
  to.params[0] = static_cast<float>(spec.values[0]);
  to.params[1] = static_cast<float>(spec.values[1]);
  to.rows = static_cast<uint32_t>(first.size(0));
  to.columns = static_cast<uint32_t>(first.size(1));
  to.flags = flags;
  to.vectors = true;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Tensor& matrix = matrices[i];
    if (!matrix.defined()) continue;
    to.strides[i] = matrix.stride(0);
    to.vectors &= matrix.storage_offset() % quad == 0 && (matrix.stride(0) % quad == 0 || to.rows == 1);
  }
  for (const Tensor& vector : vectors) to.vectors &= !vector.defined() || vector.storage_offset() % quad == 0;
  return to;
}

// A thread for each quad of each row, neighbours in a row in one threadgroup.
inline Grid row_grid(const RowArguments& to) { return grid_of({(to.columns + quad - 1) / quad, to.rows, 1}); }

// result = the sums of the columns of a contiguous float32 matrix
inline void sum_columns(const Tensor& matrix, const Tensor& result) {
  const RowArguments to = row_arguments({Activation::identity, {}}, 0, {matrix});
  launch({KernelKind::column_sums, Activation::identity, result}, {{to.columns, 1, 1}, {64, 1, 1}}, {matrix, result},
         to);
}

// `flag` if the tensor is there.
inline uint32_t flag_if(int flag, const Tensor& tensor) { return tensor.defined() ? static_cast<uint32_t>(flag) : 0; }

}  // namespace fastops::mps
