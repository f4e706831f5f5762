// What the vmap rules of the ops have in common.
//
// Most ops compute each row by itself, so that their rule is the op itself, called once with the batch dimension as one
// more dimension of rows. Only a batch of weights or biases, an ensemble, is something else: mlp.h, gated_mlp.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/functorch/TensorWrapper.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "ops/operator.h"

namespace fastops {

// One call of a rule: takes the tensors of the innermost vmap apart and wraps its results. While it lives, calls go to
// the levels outside.
class Vmap {
 public:
  // The tensors among which one is batched; lists of tensors and optional tensors as well.
  template <class... Tensors>
  explicit Vmap(const Tensors&... tensors) : below_(c10::DispatchKey::FuncTorchBatched) {
    const auto layer = at::functorch::maybeCurrentDynamicLayer();
    TORCH_INTERNAL_ASSERT(layer.has_value());
    level_ = layer->layerId();
    (measure(tensors), ...);
  }

  bool is_batched(const at::Tensor& tensor) const {
    return tensor.defined() && std::get<1>(at::functorch::unwrapTensorAtLevel(tensor, level_)).has_value();
  }
  bool is_batched(at::TensorList tensors) const {
    for (const at::Tensor& tensor : tensors) {
      if (is_batched(tensor)) return true;
    }
    return false;
  }

  // With the batch dimension in front where there is one.
  at::Tensor unwrap(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    const auto [value, dim] = at::functorch::unwrapTensorAtLevel(tensor, level_);
    return dim ? value.movedim(*dim, 0) : value;
  }
  // With the batch dimension in front, expanded where there was none.
  at::Tensor expand(const at::Tensor& tensor) const {
    if (!tensor.defined() || !size_ || is_batched(tensor)) return unwrap(tensor);
    auto sizes = tensor.sym_sizes().vec();
    sizes.insert(sizes.begin(), *size_);
    return tensor.expand_symint(sizes);
  }
  std::vector<at::Tensor> unwrap(at::TensorList tensors) const {
    std::vector<at::Tensor> values;
    values.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) values.push_back(unwrap(tensor));
    return values;
  }
  std::vector<at::Tensor> expand(at::TensorList tensors) const {
    std::vector<at::Tensor> values;
    values.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) values.push_back(expand(tensor));
    return values;
  }

  // Results whose first dimension is the batch dimension.
  at::Tensor wrap(at::Tensor result) const {
    return size_ && result.defined() ? at::functorch::makeBatched(std::move(result), 0, level_) : result;
  }
  std::vector<at::Tensor> wrap(std::vector<at::Tensor> results) const {
    for (at::Tensor& result : results) result = wrap(std::move(result));
    return results;
  }
  template <class... Results>
  std::tuple<Results...> wrap(std::tuple<Results...> results) const {
    return std::apply([&](auto&... result) { return std::tuple<Results...>{wrap(std::move(result))...}; }, results);
  }

 private:
  void measure(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [value, dim] = at::functorch::unwrapTensorAtLevel(tensor, level_);
    if (dim) size_ = value.sym_size(*dim);
  }
  void measure(at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) measure(tensor);
  }
  void measure(const std::vector<at::Tensor>& tensors) { measure(at::TensorList(tensors)); }

  c10::impl::ExcludeDispatchKeyGuard below_;
  int64_t level_ = 0;
  std::optional<c10::SymInt> size_;
};

// An op that computes each row of these arguments by itself, as one call of it: batched_by_row(op, &Op::self).
template <class Op>
typename Op::Result batched_by_row(Op op, auto... arguments) {
  const Vmap vmap((op.*arguments).get()...);
  const std::array<at::Tensor, sizeof...(arguments)> expanded = {vmap.expand((op.*arguments).get())...};
  size_t next = 0;
  ((op.*arguments = expanded[next++]), ...);
  return vmap.wrap(call_op(op));
}

// f(tensor) of a function that computes each row by itself.
template <class F>
at::Tensor batched_by_row(F f, const at::Tensor& tensor) {
  const Vmap vmap(tensor);
  return vmap.wrap(f(vmap.expand(tensor)));
}

// Whether a level outside of this vmap may differentiate what is computed from the unwrapped tensors.
inline bool may_be_differentiated(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  at::Tensor value = tensor;
  while (const auto* batched = at::functorch::maybeGetBatchedImpl(value)) value = batched->value();
  return at::functorch::maybeGetTensorWrapper(value) || value.requires_grad() || value._fw_grad(0).defined();
}
inline bool may_be_differentiated(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (may_be_differentiated(tensor)) return true;
  }
  return false;
}

}  // namespace fastops
