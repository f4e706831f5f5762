// What every autograd kernel here uses besides the node itself (torch_internal/node.h): which arguments take part in
// differentiation, the op without autograd, saved arguments.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "ops/checks.h"
#include "ops/operator.h"
#include "torch_internal/node.h"

namespace fastops {

// The keys below autograd, for redispatch.
inline c10::DispatchKeySet below_autograd(c10::DispatchKeySet keys) { return keys & c10::after_autograd_keyset; }

// The op without autograd. It checks the arguments: a kernel that builds its node after the call need not.
template <class Op>
typename Op::Result call_below_autograd(c10::DispatchKeySet keys, const Op& op) {
  at::AutoDispatchBelowADInplaceOrView below;
  return redispatch(below_autograd(keys), op);
}

// Whether an argument takes part in differentiation: in backward mode, in forward mode.
inline bool requires_grad(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
inline bool has_tangent(const Tensor& tensor) { return tensor.defined() && tensor._fw_grad(0).defined(); }

inline bool any_of(const Tensor& tensor, bool (*condition)(const Tensor&)) { return condition(tensor); }
inline bool any_of(const std::optional<Tensor>& tensor, bool (*condition)(const Tensor&)) {
  return tensor && condition(*tensor);
}
inline bool any_of(const c10::List<std::optional<Tensor>>& tensors, bool (*condition)(const Tensor&)) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (any_of(tensors.get(i), condition)) return true;
  }
  return false;
}
template <class Tensors>
bool any_of(const Tensors& tensors, bool (*condition)(const Tensor&)) {
  for (const auto& tensor : tensors) {
    if (any_of(tensor, condition)) return true;
  }
  return false;
}
template <class T>
bool any_of(In<T> argument, bool (*condition)(const Tensor&)) {
  return any_of(argument.get(), condition);
}

// The same of several: tensors, optional tensors, lists of either.
template <class... Arguments>
bool needs_grad(const Arguments&... arguments) {
  return at::GradMode::is_enabled() && (any_of(arguments, requires_grad) || ...);
}
template <class... Arguments>
bool any_tangent(const Arguments&... arguments) {
  return (any_of(arguments, has_tangent) || ...);
}

// What was saved of an op's argument, for PyTorch's ops: they would not say that its memory has been freed since. Of a
// jagged tensor, which has none of its own, they do.
inline Tensor unpack(std::string_view op, Argument argument, const SavedVariable& saved) {
  Tensor tensor = saved.unpack();
  if (tensor.defined() && !tensor.is_nested()) check_tensor(op, argument, tensor);
  return tensor;
}
inline std::vector<Tensor> unpack(std::string_view op, std::string_view list, const std::vector<SavedVariable>& saved) {
  std::vector<Tensor> tensors;
  tensors.reserve(saved.size());
  for (const SavedVariable& variable : saved) tensors.push_back(unpack(op, {list, tensors.size()}, variable));
  return tensors;
}
inline std::optional<Tensor> as_optional(Tensor tensor) {
  return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
}
inline c10::List<std::optional<Tensor>> as_optional(std::vector<Tensor> tensors) {
  c10::List<std::optional<Tensor>> list;
  for (Tensor& tensor : tensors) list.push_back(as_optional(std::move(tensor)));
  return list;
}

// Puts tensors, in order, at the places of the mask.
template <class Mask>
variable_list scatter(std::vector<Tensor>&& tensors, const Mask& mask) {
  variable_list placed(mask.size());
  size_t next = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) placed[i] = std::move(tensors[next++]);
  }
  return placed;
}

}  // namespace fastops
