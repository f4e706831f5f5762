// vmap of elementwise ops: run once on the tensors with their batch dimension in front.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>

#include <optional>

namespace fastops {

// f(tensors...), where the tensors have the same shape once a missing batch dimension is expanded. f returns a tensor
// whose first dimension is the batch dimension.
template <class F, class... Tensors>
at::Tensor batched_elementwise(F f, const Tensors&... tensors) {
  namespace ft = at::functorch;
  const auto layer = ft::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value());
  const int64_t level = layer->layerId();
  std::optional<c10::SymInt> batch_size;
  const auto measure = [&](const at::Tensor& tensor) {
    const auto [value, dim] = ft::unwrapTensorAtLevel(tensor, level);
    if (dim) batch_size = value.sym_size(*dim);
  };
  (measure(tensors), ...);
  const auto to_front = [&](const at::Tensor& tensor) {
    const auto [value, dim] = ft::unwrapTensorAtLevel(tensor, level);
    if (dim) return value.movedim(*dim, 0);
    if (!batch_size) return value;
    auto sizes = value.sym_sizes().vec();
    sizes.insert(sizes.begin(), *batch_size);
    return value.expand_symint(sizes);
  };
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  const at::Tensor result = f(to_front(tensors)...);
  return batch_size ? ft::makeBatched(result, 0, level) : result;
}

}  // namespace fastops
