// The frame of a node of the autograd graph, for the engine and for compiled autograd.
//
// Private, in all torch versions from 2.11 to 2.15: torch::dynamo::autograd, in which a node says what compiled
// autograd needs to know of it. A node that says nothing is an error there, and works everywhere else.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch_internal/node_classes.h"
#include "torch_internal/shared_node.h"

namespace fastops {

// A node of the autograd graph. The derived class lists everything that it keeps, saved tensors and what describes the
// op, once, as
//
//   auto fields() { return std::tie(input, weights, spec); }
//
// (a field may have fields() in turn) and computes in gradients() what it wants(i), not task_should_compute_output(i).
// Freeing the saved tensors and compiled autograd follow. For the latter the node becomes a function of gradients and
// fields (torch/csrc/dynamo/compiled_autograd.h says how): apply_with_saved() puts a call of it into the graph, and
// when it is called, with real or fake tensors, it fills a new node with the fields and applies that.
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
  // Whether it is a copy in a graph of compiled autograd, which has no edges, and where None is no gradient of zeros.
  bool is_of_compiled_autograd() const { return wanted_.has_value(); }

  // Whether input i needs a gradient.
  bool wants(size_t i) const { return wanted_ ? (*wanted_)[i] : task_should_compute_output(i); }

  // The same of inputs from `first` on, and of the first `count` ones.
  c10::List<bool> wanted(size_t first, size_t end) const {
    c10::List<bool> mask;
    for (size_t i = first; i < end; ++i) mask.push_back(wants(i));
    return mask;
  }
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
    visit(static_cast<Derived&>(*this), f);
  }
  template <class T, class F>
  static void visit(T& field, F& f) {
    if constexpr (requires { field.fields(); }) {
      std::apply([&](auto&... part) { (visit(part, f), ...); }, field.fields());
    } else {
      f(field);
    }
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
  template <size_t n>
  static void collect(Arguments& args, const std::array<double, n>& field) {
    for (const double value : field) args.collect(value);
  }
  static void collect(Arguments& args, const std::vector<double>& field) {
    args.collect(static_cast<int64_t>(field.size()));
    for (const double value : field) args.collect(value);
  }
  static void collect(Arguments& args, const std::vector<bool>& field) {
    args.collect(static_cast<int64_t>(field.size()));
    for (const bool value : field) args.collect(value);
  }
  static void collect(Arguments& args, const std::string& field) { args.collect(field); }
  static void collect(Arguments& args, bool field) { args.collect(field); }
  static void collect(Arguments& args, int64_t field) { args.collect(field); }
  template <class Enum>
    requires std::is_enum_v<Enum>
  static void collect(Arguments& args, Enum field) {
    args.collect(static_cast<int64_t>(field));
  }

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
  template <size_t n>
  void pack(Packed& packed, const std::array<double, n>& field) {
    for (const double value : field) packed.emplace_back(value);
  }
  void pack(Packed& packed, const std::vector<double>& field) { packed.emplace_back(field); }
  void pack(Packed& packed, const std::vector<bool>& field) { packed.emplace_back(field); }
  void pack(Packed& packed, const std::string& field) { packed.emplace_back(field); }
  void pack(Packed& packed, bool field) { packed.emplace_back(field); }
  void pack(Packed& packed, int64_t field) { packed.emplace_back(field); }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void pack(Packed& packed, Enum field) {
    packed.emplace_back(static_cast<int64_t>(field));
  }

  using Next = Packed::const_iterator;
  static void unpack_field(Next& next, SavedVariable& field) {
    field = save(next->isNone() ? Tensor() : next->toTensor());
    ++next;
  }
  static void unpack_field(Next& next, std::vector<SavedVariable>& field) {
    field.resize((next++)->toInt());
    for (SavedVariable& saved : field) unpack_field(next, saved);
  }
  template <size_t n>
  static void unpack_field(Next& next, std::array<double, n>& field) {
    for (double& value : field) value = (next++)->toDouble();
  }
  static void unpack_field(Next& next, std::vector<double>& field) { field = (next++)->toDoubleVector(); }
  static void unpack_field(Next& next, std::vector<bool>& field) { field = (next++)->to<std::vector<bool>>(); }
  static void unpack_field(Next& next, std::string& field) { field = (next++)->toStringRef(); }
  static void unpack_field(Next& next, bool& field) { field = (next++)->toBool(); }
  static void unpack_field(Next& next, int64_t& field) { field = (next++)->toInt(); }
  template <class Enum>
    requires std::is_enum_v<Enum>
  static void unpack_field(Next& next, Enum& field) {
    field = static_cast<Enum>((next++)->toInt());
  }

  std::optional<std::vector<bool>> wanted_;  // by compiled autograd
};

// To be defined once for each class of nodes.
template <class T>
struct RegisterNode {
  RegisterNode() {
    node_classes().push_back({&typeid(T), [] { return make_node<T>()->name(); }});
  }
};

}  // namespace fastops
