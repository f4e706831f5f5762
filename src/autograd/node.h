// What every autograd kernel here uses: nodes, saved tensors and forward gradients, as PyTorch's own code generator
// writes them (torch/csrc/autograd/VariableTypeUtils.h).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/version.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "autograd/shared_node.h"
#include "ops/activation_spec.h"
#include "ops/checks.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;
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
  return torch::autograd::GradMode::is_enabled() && (any_of(arguments, requires_grad) || ...);
}
template <class... Arguments>
bool any_tangent(const Arguments&... arguments) {
  return (any_of(arguments, has_tangent) || ...);
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

// What was saved of an op's argument, for PyTorch's ops: they would not say that its memory has been freed since.
inline Tensor unpack(std::string_view op, Argument argument, const SavedVariable& saved) {
  Tensor tensor = saved.unpack();
  if (tensor.defined()) check_tensor(op, argument, tensor);
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

// A node of the autograd graph. The derived class lists everything that it keeps, saved tensors and what describes the
// op, once, as
//
//   auto fields() { return std::tie(input, weights, spec); }
//
// and computes in gradients() what it wants(i), not task_should_compute_output(i). Freeing the saved tensors and
// compiled autograd follow. For the latter the node becomes a function of gradients and fields
// (torch/csrc/dynamo/compiled_autograd.h says how): apply_with_saved() puts a call of it into the graph, and when it is
// called, with real or fake tensors, it fills a new node with the fields and applies that.
template <class Derived>
class OpNode : public SharedNode {
 public:
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    const_cast<OpNode*>(this)->each_field([&](auto& field) { collect(args, field); });
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    each_field([&](auto& field) { swap_in(saved, field); });
    std::vector<c10::IValue> packed;
    std::vector<bool> wanted;
    for (size_t i = 0; i < num_outputs(); ++i) wanted.push_back(task_should_compute_output(i));
    packed.emplace_back(wanted);
    each_field([&](auto& field) { pack(packed, field); });
    std::vector<at::TypePtr> types;
    types.reserve(packed.size());
    for (const c10::IValue& value : packed) {
      types.push_back(value.isTensor() ? static_cast<at::TypePtr>(at::TensorType::get()) : value.type());
    }
    const auto& python = compiled::getPyCompilerInterface();
    const std::string function = python->bind_function(saved.get_py_compiler(), name(), apply_packed, types,
                                                       /*is_custom_function=*/true, /*is_traceable=*/true);
    using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
    const auto metadata = compiled::IValuePacker<Metadata>::pack(compiled::get_input_metadata(next_edges()));
    variable_list result =
        python->call_function(saved.get_py_compiler(), "apply_functional", function, grads, packed, metadata);
    each_field([&](auto& field) { swap_out(saved, field); });
    return result;
  }

 protected:
  // Whether input i needs a gradient.
  bool wants(size_t i) const { return wanted_ ? (*wanted_)[i] : task_should_compute_output(i); }

  // The same of the first `count` inputs.
  template <size_t count>
  std::array<bool, count> wanted() const {
    std::array<bool, count> mask;
    for (size_t i = 0; i < count; ++i) mask[i] = wants(i);
    return mask;
  }

  void release_saved() override {
    each_field([](auto& field) { release(field); });
  }

 private:
  template <class F>
  void each_field(F f) {
    std::apply([&](auto&... field) { (f(field), ...); }, static_cast<Derived*>(this)->fields());
  }

  static variable_list apply_packed(const variable_list& grads, const std::vector<c10::IValue>& packed) {
    const auto node = make_node<Derived>();
    auto next = packed.begin();
    node->wanted_ = (next++)->to<std::vector<bool>>();
    node->each_field([&](auto& field) { unpack_field(next, field); });
    return node->apply(variable_list(grads));
  }

  // What happens to a field of each type: a saved tensor, several, or a value that packs into numbers.

  static void release(SavedVariable& field) { field.reset_data(); }
  static void release(std::vector<SavedVariable>& field) {
    for (SavedVariable& saved : field) saved.reset_data();
  }
  template <class T>
  static void release(T&) {}

  using Arguments = torch::dynamo::autograd::CompiledNodeArgs;
  // "is_output" makes it unpack with this node at hand, which does no harm to the others.
  static void collect(Arguments& args, const SavedVariable& field) { args.collect(field, /*is_output=*/true); }
  static void collect(Arguments& args, const std::vector<SavedVariable>& field) {
    args.collect(field, /*is_output=*/true);
  }
  static void collect(Arguments& args, const ActivationSpec& field) {
    args.collect(static_cast<int64_t>(field.id));
    for (const double value : field.values) args.collect(value);
  }
  static void collect(Arguments& args, const std::vector<bool>& field) {
    args.collect(static_cast<int64_t>(field.size()));
    for (const bool value : field) args.collect(value);
  }
  static void collect(Arguments& args, bool field) { args.collect(field); }
  static void collect(Arguments& args, int64_t field) { args.collect(field); }

  using Swap = torch::dynamo::autograd::SwapSavedVariables;
  static void swap_in(Swap& swap, SavedVariable& field) { swap.before(field); }
  static void swap_in(Swap& swap, std::vector<SavedVariable>& field) { swap.before(field); }
  template <class T>
  static void swap_in(Swap&, T&) {}
  static void swap_out(Swap& swap, SavedVariable& field) { swap.after(field); }
  static void swap_out(Swap& swap, std::vector<SavedVariable>& field) { swap.after(field); }
  template <class T>
  static void swap_out(Swap&, T&) {}

  using Packed = std::vector<c10::IValue>;
  void pack(Packed& packed, const SavedVariable& field) {
    Tensor tensor = field.unpack(getptr());
    packed.push_back(tensor.defined() ? c10::IValue(std::move(tensor)) : c10::IValue());
  }
  void pack(Packed& packed, const std::vector<SavedVariable>& field) {
    packed.emplace_back(static_cast<int64_t>(field.size()));
    for (const SavedVariable& saved : field) pack(packed, saved);
  }
  void pack(Packed& packed, const ActivationSpec& field) {
    packed.emplace_back(static_cast<int64_t>(field.id));
    for (const double value : field.values) packed.emplace_back(value);
  }
  void pack(Packed& packed, const std::vector<bool>& field) { packed.emplace_back(field); }
  void pack(Packed& packed, bool field) { packed.emplace_back(field); }
  void pack(Packed& packed, int64_t field) { packed.emplace_back(field); }

  using Next = Packed::const_iterator;
  static void unpack_field(Next& next, SavedVariable& field) {
    field = save(next->isNone() ? Tensor() : next->toTensor());
    ++next;
  }
  static void unpack_field(Next& next, std::vector<SavedVariable>& field) {
    field.resize((next++)->toInt());
    for (SavedVariable& saved : field) unpack_field(next, saved);
  }
  static void unpack_field(Next& next, ActivationSpec& field) {
    field.id = static_cast<Activation>((next++)->toInt());
    for (double& value : field.values) value = (next++)->toDouble();
  }
  static void unpack_field(Next& next, std::vector<bool>& field) { field = (next++)->to<std::vector<bool>>(); }
  static void unpack_field(Next& next, bool& field) { field = (next++)->toBool(); }
  static void unpack_field(Next& next, int64_t& field) { field = (next++)->toInt(); }

  std::optional<std::vector<bool>> wanted_;  // by compiled autograd
};

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
