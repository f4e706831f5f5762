// Strided tensors as few dimensions as possible, for kernels that step through one or two.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

namespace fastops {

// Whether element i of one lies at the same place in memory as element i of the other, without gaps.
inline bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

// Dimensions of several tensors of one size that all of them can step through with one stride each.
struct Axis {
  int64_t size;
  c10::SmallVector<int64_t, 6> strides;  // of each tensor; 0 of those that are undefined
};
using Axes = c10::SmallVector<Axis, 6>;  // from the innermost on

// The dimensions of more than one element, the innermost first.
inline c10::SmallVector<int64_t, 6> dims_from_innermost(const at::Tensor& tensor) {
  c10::SmallVector<int64_t, 6> dims;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    if (tensor.size(d) != 1) dims.push_back(d);
  }
  return dims;
}

// The same in the order of the tensor's strides, the smallest first.
inline c10::SmallVector<int64_t, 6> dims_by_stride(const at::Tensor& tensor) {
  auto dims = dims_from_innermost(tensor);
  std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) < tensor.stride(b); });
  return dims;
}

// Puts dimensions together that follow each other in `dims`, where the outer one goes on where the inner one ends, in
// every tensor. One of the tensors is defined.
inline Axes joined_axes(at::ArrayRef<at::Tensor> tensors, at::IntArrayRef dims) {
  const at::Tensor& defined =
      *std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.defined(); });
  Axes axes;
  for (const int64_t d : dims) {
    Axis axis{defined.size(d), {}};
    for (const at::Tensor& tensor : tensors) axis.strides.push_back(tensor.defined() ? tensor.stride(d) : 0);
    const auto goes_on = [&](const Axis& inner) {
      for (size_t i = 0; i < axis.strides.size(); ++i) {
        if (axis.strides[i] != inner.size * inner.strides[i]) return false;
      }
      return true;
    };
    if (!axes.empty() && goes_on(axes.back())) {
      axes.back().size *= axis.size;
    } else {
      axes.push_back(std::move(axis));
    }
  }
  return axes;
}

}  // namespace fastops
