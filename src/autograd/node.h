// What every autograd kernel here uses: nodes, saved tensors and forward gradients, as PyTorch's own code generator
// writes them (torch/csrc/autograd/VariableTypeUtils.h).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/version.h>

#include <optional>
#include <vector>

namespace fastops {

using at::Tensor;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Nodes are held by std::shared_ptr up to torch 2.12 and by c10::intrusive_ptr since.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
template <class T>
using NodePtr = c10::intrusive_ptr<T>;
template <class T>
NodePtr<T> make_node() {
  return c10::make_intrusive<T>();
}
#else
template <class T>
using NodePtr = std::shared_ptr<T>;
template <class T>
NodePtr<T> make_node() {
  return std::shared_ptr<T>(new T(), torch::autograd::deleteNode);
}
#endif

// The keys below autograd, for redispatch.
inline c10::DispatchKeySet below_autograd(c10::DispatchKeySet keys) { return keys & c10::after_autograd_keyset; }

inline bool has_tangent(const Tensor& tensor) { return tensor.defined() && tensor._fw_grad(0).defined(); }
inline bool has_tangent(const std::optional<Tensor>& tensor) { return tensor && has_tangent(*tensor); }
inline bool has_tangent(at::TensorList tensors) {
  for (const Tensor& tensor : tensors) {
    if (has_tangent(tensor)) return true;
  }
  return false;
}

// Whether any of the tensors takes part in forward-mode differentiation.
template <class... Tensors>
bool any_tangent(const Tensors&... tensors) {
  return (has_tangent(tensors) || ...);
}

inline SavedVariable save(const Tensor& tensor, bool is_output = false) { return SavedVariable(tensor, is_output); }
inline SavedVariable save(const std::optional<Tensor>& tensor) {
  return SavedVariable(tensor ? *tensor : Tensor(), /*is_output=*/false);
}
inline std::vector<SavedVariable> save(at::TensorList tensors) {
  std::vector<SavedVariable> saved;
  saved.reserve(tensors.size());
  for (const Tensor& tensor : tensors) saved.emplace_back(tensor, /*is_output=*/false);
  return saved;
}
inline std::vector<Tensor> unpack(const std::vector<SavedVariable>& saved) {
  std::vector<Tensor> tensors;
  tensors.reserve(saved.size());
  for (const SavedVariable& variable : saved) tensors.push_back(variable.unpack());
  return tensors;
}
inline std::optional<Tensor> as_optional(Tensor tensor) {
  return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
}

// Which of the node's `count` inputs need a gradient.
template <size_t count>
std::array<bool, count> needed(const Node& node) {
  std::array<bool, count> mask;
  for (size_t i = 0; i < count; ++i) mask[i] = node.task_should_compute_output(i);
  return mask;
}

// Puts the gradients that were computed, in order, at the places of the mask.
template <class Mask>
variable_list scatter(std::vector<Tensor>&& computed, const Mask& mask) {
  variable_list grads(mask.size());
  size_t next = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) grads[i] = std::move(computed[next++]);
  }
  return grads;
}

}  // namespace fastops
