#include <algorithm>

#include "backends/hip/launch.h"

namespace fastops::hip {
namespace {

using Tensors = c10::SmallVector<Tensor, 6>;

// Some dimensions of the tensors that all of them can step through with one stride each.
struct Axis {
  int64_t size;
  c10::SmallVector<int64_t, 6> strides;
};

Axis axis_of(const Tensors& tensors, const Tensor& first, int64_t dim) {
  Axis axis{first.size(dim), {}};
  for (const Tensor& tensor : tensors) axis.strides.push_back(tensor.defined() ? tensor.stride(dim) : 0);
  return axis;
}

// Whether `outer` goes on where `inner` ends, in every tensor.
bool continues(const Axis& inner, const Axis& outer) {
  for (size_t i = 0; i < inner.strides.size(); ++i) {
    if (outer.strides[i] != inner.size * inner.strides[i]) return false;
  }
  return true;
}

// From the innermost on; `first` is the first of the tensors that is defined.
c10::SmallVector<Axis, 6> axes_of(const Tensors& tensors, const Tensor& first, bool keep_columns) {
  c10::SmallVector<int64_t, 6> dims;
  for (int64_t d = first.dim(); d-- > 0;) {
    if (first.size(d) != 1 || (keep_columns && d + 1 == first.dim())) dims.push_back(d);
  }
  std::stable_sort(dims.begin() + (keep_columns ? 1 : 0), dims.end(),
                   [&](int64_t a, int64_t b) { return first.stride(a) < first.stride(b); });
  c10::SmallVector<Axis, 6> axes;
  for (const int64_t d : dims) {
    Axis axis = axis_of(tensors, first, d);
    const bool beside_columns = keep_columns && axes.size() == 1;
    if (!axes.empty() && !beside_columns && continues(axes.back(), axis)) {
      axes.back().size *= axis.size;
    } else {
      axes.push_back(std::move(axis));
    }
  }
  return axes;
}

}  // namespace

std::optional<Grid> find_grid(at::ArrayRef<Tensor> outputs, at::ArrayRef<Tensor> inputs, bool keep_columns) {
  Tensors tensors(outputs.begin(), outputs.end());
  tensors.append(inputs.begin(), inputs.end());
  const Tensor& first = *std::find_if(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
  if (first.numel() == 0) {
    return Grid{0, keep_columns ? first.size(-1) : 0, c10::SmallVector<Matrix, 6>(tensors.size(), Matrix())};
  }
  const auto axes = axes_of(tensors, first, keep_columns);
  if (axes.size() > 2) return std::nullopt;
  Grid grid{axes.size() > 1 ? axes[1].size : 1, axes.empty() ? 1 : axes[0].size, {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    Matrix matrix;
    if (tensors[i].defined()) matrix.data = i < outputs.size() ? tensors[i].mutable_data_ptr() : data_of(tensors[i]);
    matrix.row_stride = axes.size() > 1 ? axes[1].strides[i] : 0;
    matrix.column_stride = axes.empty() ? 1 : axes[0].strides[i];
    grid.matrices.push_back(matrix);
  }
  return grid;
}

}  // namespace fastops::hip
