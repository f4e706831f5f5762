// The tensors of torch.func: those that vmap has batched, those that grad and jvp have wrapped, one level in another.
//
// Private, in all torch versions from 2.11 to 2.15: at::functorch, in which the vmap rules of PyTorch's own ops are
// written. The public way, torch.library.register_vmap, is for vmap alone, and goes through Python.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>  // a batched tensor
#include <ATen/functorch/DynamicLayer.h>       // the level of the innermost transform
#include <ATen/functorch/PlumbingHelper.h>     // a batched tensor at that level, taken apart
#include <ATen/functorch/TensorWrapper.h>      // a tensor of grad or jvp

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

namespace fastops {

// Whether a transform of torch.func is going on.
inline bool in_transform() { return at::functorch::maybeCurrentDynamicLayer().has_value(); }

// Whether one of the tensors is of grad or jvp, at a level that may be over: its history is that of this level alone.
inline bool is_of_transform(const at::Tensor& tensor) {
  return at::functorch::maybeGetTensorWrapper(tensor) != nullptr;
}
inline bool is_of_transform(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return is_of_transform(tensor); });
}

// The tensor inside the wrappers of vmap and grad.
inline const at::Tensor& unwrapped(const at::Tensor& tensor) {
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) return unwrapped(batched->value());
  if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor)) return unwrapped(wrapper->value());
  return tensor;
}

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

  // Whether one tensor has the batch dimension. They may all be of levels outside.
  bool is_batched() const { return size_.has_value(); }

  // Of the batch dimension; one tensor has it.
  c10::SymInt size() const { return size_.value(); }

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

// Whether a level outside of this vmap may differentiate what is computed from the unwrapped tensors. What a functional
// tensor stands for is not known before all that was written to its base has been.
inline bool may_be_differentiated(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  at::Tensor value = tensor;
  while (const auto* batched = at::functorch::maybeGetBatchedImpl(value)) value = batched->value();
  return at::functionalization::impl::isFunctionalTensor(value) || at::functorch::maybeGetTensorWrapper(value) ||
         value.requires_grad() || value._fw_grad(0).defined();
}
inline bool may_be_differentiated(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (may_be_differentiated(tensor)) return true;
  }
  return false;
}

}  // namespace fastops
