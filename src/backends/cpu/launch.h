// From tensors to the launchers' arguments.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <array>
#include <cstdint>
#include <optional>

#include "backends/cpu/launchers.h"
#include "backends/cpu/memory.h"
#include "ops/activation_spec.h"
#include "ops/axes.h"
#include "ops/dtype_of.h"
#include "ops/matrix.h"

namespace fastops::cpu {

// PyTorch's threads, the memory that is kept, PyTorch's profiler. Several calls one after another take the same memory,
// if it is cleared between them.
class TorchCaller final : public Caller {
 public:
  explicit TorchCaller(bool in_profile = true) : in_profile_(in_profile) {}

  void clear() { workspace_.clear(); }
  int64_t threads() override { return at::in_parallel_region() ? 1 : at::get_num_threads(); }
  void parallel_for(int64_t n, int64_t grain, Part part, const void* context) override {
    at::parallel_for(0, n, grain, [=](int64_t begin, int64_t end) { part(context, begin, end); });
  }
  void* take(int64_t bytes) override { return workspace_.take(bytes); }
  void profile(const char* name, Work work, const void* context) override {
    if (!in_profile_) return work(context);
    RECORD_FUNCTION(name, c10::ArrayRef<const c10::IValue>());
    work(context);
  }

 private:
  bool in_profile_;
  Workspace workspace_;
};

inline Call call_for(const ActivationSpec& spec, const at::Tensor& tensor) {
  const Call call{spec.id, spec.params(), dtype_of(tensor)};
#ifdef FASTOPS_FEW_ACTIVATIONS
  TORCH_CHECK_NOT_IMPLEMENTED(kernels(call.activation, call.dtype).forward, "fastops: this build has no kernels of ",
                              info(spec.id).name);
#endif
  return call;
}

// From one row of a tensor [..., columns] to the next, where elements are contiguous within rows and rows evenly
// spaced. Strides of dimensions of size 1 mean nothing.
inline std::optional<int64_t> row_stride(const at::Tensor& tensor) {
  const int64_t columns = tensor.size(-1);
  if (tensor.is_contiguous() || tensor.numel() == 0) return columns;
  if (columns > 1 && tensor.stride(-1) != 1) return std::nullopt;
  c10::SmallVector<int64_t, 6> dims;
  for (int64_t d = tensor.dim() - 1; d-- > 0;) {
    if (tensor.size(d) != 1) dims.push_back(d);
  }
  const Axes rows = joined_axes(tensor, dims);
  if (rows.size() > 1) return std::nullopt;
  return rows.empty() ? columns : rows[0].strides[0];
}

// Tensors of one size, which have elements, as a walk along the dimensions in that order, the innermost first.
template <size_t count>
struct StridedTensors {
  Walk walk;
  std::array<Strides, count> strides;

  ConstStrided reads(size_t i, const at::Tensor& tensor) const { return {tensor.const_data_ptr(), strides[i]}; }
  Strided writes(size_t i, const at::Tensor& tensor) const { return {tensor.mutable_data_ptr(), strides[i]}; }
};
// None where that takes more axes than a walk has.
template <size_t count>
std::optional<StridedTensors<count>> strided(const std::array<at::Tensor, count>& tensors, at::IntArrayRef dims) {
  const Axes axes = joined_axes(tensors, dims);
  if (axes.size() > Walk::most_axes) return std::nullopt;
  StridedTensors<count> all{{1, {1}}, {}};
  if (!axes.empty()) all.walk.axes = static_cast<int64_t>(axes.size());
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    all.walk.size[axis] = axes[axis].size;
    for (size_t i = 0; i < count; ++i) all.strides[i][axis] = axes[axis].strides[i];
  }
  return all;
}

// tensor.contiguous() of one that is not.
inline at::Tensor contiguous_copy(const at::Tensor& tensor) {
  const auto elements = strided<1>({tensor}, dims_from_innermost(tensor));
  if (!elements) return tensor.contiguous();
  at::Tensor copy = empty_result(tensor.sizes(), tensor);
  TorchCaller caller;
  copy_elements(caller, dtype_of(tensor), elements->walk, elements->reads(0, tensor), copy.mutable_data_ptr());
  return copy;
}

// A tensor [..., columns] as rows of contiguous elements, copied only if its strides do not allow that.
class RowView {
 public:
  explicit RowView(const at::Tensor& tensor) : tensor_(tensor), columns_(tensor.size(-1)) {
    const auto stride = row_stride(tensor_);
    if (!stride) tensor_ = contiguous_copy(tensor_);
    stride_ = stride.value_or(columns_);
  }

  int64_t columns() const { return columns_; }
  int64_t rows() const { return columns_ == 0 ? 0 : tensor_.numel() / columns_; }
  operator ConstRows() const { return {tensor_.const_data_ptr(), stride_}; }

 private:
  at::Tensor tensor_;
  int64_t columns_;
  int64_t stride_;
};

// in_layout_of, with the copy of the kernels here.
inline at::Tensor in_layout_of_weight(const at::Tensor& weight, const at::Tensor& grad) {
  return in_layout_of(weight, grad, contiguous_copy);
}

// A layer's weight and bias, copied where a launcher cannot take them as they are.
class Parameters {
 public:
  Parameters(const at::Tensor& weight, const at::Tensor& bias, bool may_be_transposed = true)
      : transposed_(may_be_transposed && has_transposed_rows(weight)),
        weight_(transposed_ ? weight.t() : weight),
        in_features_(weight.size(1)),
        out_features_(weight.size(0)),
        bias_(bias.defined() ? bias.contiguous() : bias) {}

  // With the memory of their gradients.
  Linear linear(const at::Tensor& weight_grad = {}, const at::Tensor& bias_grad = {}) const {
    const auto data_of = [](const at::Tensor& result) {
      return result.defined() ? result.mutable_data_ptr() : nullptr;
    };
    const void* const bias = bias_.defined() ? bias_.const_data_ptr() : nullptr;
    return {weight_, bias, in_features_, out_features_, data_of(weight_grad), data_of(bias_grad), transposed_};
  }

 private:
  bool transposed_;
  RowView weight_;
  int64_t in_features_;
  int64_t out_features_;
  at::Tensor bias_;  // undefined if there is none
};

// A result with the input's leading dimensions.
inline at::Tensor rows_result(const at::Tensor& input, int64_t features) {
  auto sizes = input.sizes().vec();
  sizes.back() = features;
  return empty_result(sizes, input);
}

// The rows of a result, which must be evenly spaced; none of an undefined tensor. A lazy clone (copy on write) gets
// memory of its own here: outside of a parallel region, where PyTorch forbids it, and before the same tensor is looked
// at as an input, whose data would be left behind.
inline Rows result_rows(const at::Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, 0};
  const auto stride = row_stride(tensor);
  TORCH_INTERNAL_ASSERT(stride, "the rows of a result must be evenly spaced");
  return {tensor.mutable_data_ptr(), *stride};
}

// The results that are wanted, in their order.
inline std::vector<at::Tensor> without_undefined(std::vector<at::Tensor> results) {
  std::erase_if(results, [](const at::Tensor& result) { return !result.defined(); });
  return results;
}

}  // namespace fastops::cpu
