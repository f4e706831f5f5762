// From tensors to the raw arguments of the kernels, and the work shared among PyTorch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "backends/cpu/kernels.h"
#include "backends/cpu/memory.h"
#include "ops/activation_spec.h"
#include "ops/dtype_of.h"

namespace fastops::cpu {

inline const Kernels& kernels_for(const ActivationSpec& spec, const at::Tensor& tensor) {
  return kernels(spec.id, dtype_of(tensor));
}

// Elements per thread below which sharing costs more than it saves.
inline constexpr int64_t grain_size = 32768;

// f(begin, end) over 0..n.
template <class F>
void share(int64_t n, int64_t grain, F f) {
  if (n <= grain) {
    if (n > 0) f(0, n);
  } else {
    at::parallel_for(0, n, grain, f);
  }
}

// f(begin, end) over 0..n, cut where cache lines end.
template <class F>
void share_elements(int64_t n, F f) {
  constexpr int64_t line = 64;
  const int64_t lines = (n + line - 1) / line;
  share(lines, grain_size / line, [&](int64_t begin, int64_t end) { f(begin * line, std::min(n, end * line)); });
}

// Whether to write a result past the caches: one so large that it would drive everything else out of them, itself
// included. Measured: from 16 MiB on, a result that is read again right away is ready sooner so, too. The kernels come
// to whole vectors by whole elements: in a tensor whose address is no multiple of its elements' size, never.
inline bool worth_streaming(const at::Tensor& result) {
  return result.nbytes() >= size_t{16} << 20 &&
         reinterpret_cast<uintptr_t>(result.const_data_ptr()) % result.element_size() == 0;
}

// f(begin, end) over rows of `columns` elements.
template <class F>
void share_rows(int64_t rows, int64_t columns, F f) {
  if (columns > 0) share(rows, std::max<int64_t>(1, grain_size / columns), f);
}

inline char* byte_data(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }
inline const char* const_byte_data(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

// Whether element i of one lies at the same place in memory as element i of the other, without gaps.
inline bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

// From one row of a tensor [..., columns] to the next, where elements are contiguous within rows and rows evenly
// spaced. Strides of dimensions of size 1 mean nothing.
inline std::optional<int64_t> row_stride(const at::Tensor& tensor) {
  int64_t stride = tensor.size(-1);
  if (tensor.numel() == 0) return stride;
  if (stride > 1 && tensor.stride(-1) != 1) return std::nullopt;
  int64_t next = 0;  // the stride that the next dimension out must have, once one is known
  for (int64_t d = tensor.dim() - 2; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (next == 0) {
      stride = tensor.stride(d);
    } else if (tensor.stride(d) != next) {
      return std::nullopt;
    }
    next = tensor.stride(d) * tensor.size(d);
    // Expanded rows: only a single dimension of them.
    if (next == 0) return d == 0 ? std::optional(stride) : std::nullopt;
  }
  return stride;
}

// A tensor [..., columns] as rows of contiguous elements, copied only if its strides do not allow that.
class RowView {
 public:
  explicit RowView(const at::Tensor& tensor) : tensor_(tensor), columns_(tensor.size(-1)) {
    const auto stride = row_stride(tensor_);
    if (!stride) tensor_ = tensor_.contiguous();
    stride_ = stride.value_or(columns_);
    row_bytes_ = stride_ * tensor_.element_size();
    data_ = const_byte_data(tensor_);
  }

  int64_t columns() const { return columns_; }
  int64_t rows() const { return columns_ == 0 ? 0 : tensor_.numel() / columns_; }
  ConstRows from(int64_t row) const { return {data_ + row * row_bytes_, stride_}; }

 private:
  at::Tensor tensor_;
  int64_t columns_;
  int64_t stride_;
  int64_t row_bytes_;
  const char* data_;
};

// The rows of a result, which must be evenly spaced; none of an undefined tensor. A lazy clone (copy on write) gets
// memory of its own here: outside of a parallel region, where PyTorch forbids it, and before the same tensor is looked
// at as an input, whose data would be left behind.
class ResultRows {
 public:
  explicit ResultRows(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto stride = row_stride(tensor);
    TORCH_INTERNAL_ASSERT(stride, "the rows of a result must be evenly spaced");
    stride_ = *stride;
    row_bytes_ = stride_ * tensor.element_size();
    data_ = byte_data(tensor);
  }

  Rows from(int64_t row) const { return {data_ ? data_ + row * row_bytes_ : nullptr, stride_}; }

 private:
  int64_t stride_ = 0;
  int64_t row_bytes_ = 0;
  char* data_ = nullptr;
};

}  // namespace fastops::cpu
