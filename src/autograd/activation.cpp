// Derivatives of the plain activations, of any order.
#include "autograd/activation.h"

#include <array>
#include <tuple>
#include <utility>

namespace fastops {
namespace {

struct ActivationBackwardNode : OpNode<ActivationBackwardNode> {
  SavedVariable grad_output, saved;
  ActivationSpec spec;
  bool from_output = false;
  int64_t order = 1;

  auto fields() { return std::tie(grad_output, saved, spec, from_output, order); }
  std::string name() const override { return std::string("Fastops") + info(spec.id).class_name + "BackwardBackward"; }
  variable_list gradients(variable_list&& grads) override {
    const Tensor& grad = grads[0];
    if (!grad.defined()) return {Tensor(), Tensor()};
    const Tensor x = saved.unpack();
    variable_list result(2);
    if (wants(0)) result[0] = activation_backward(grad, x, spec, from_output, order);
    if (wants(1)) {
      const Tensor by_slope = grad * unpack("activation_backward", "grad_output", grad_output);
      result[1] = activation_backward(by_slope, x, spec, from_output, order + 1);
    }
    return result;
  }
};

// A node's class is one of Python's, which has a name: a class for each activation.
template <class Node, Activation id>
struct NodeOf : Node {
  NodeOf() { this->spec.id = id; }
};

// Makes the node of an activation.
template <class Node>
NodePtr<Node> make_node_of(const ActivationSpec& spec) {
  static constexpr auto makers = []<int... id>(std::integer_sequence<int, id...>) {
    return std::array<NodePtr<Node> (*)(), activation_count>{
        [] { return NodePtr<Node>(make_node<NodeOf<Node, Activation{id}>>()); }...};
  }(std::make_integer_sequence<int, activation_count>());
  NodePtr<Node> node = makers[static_cast<int>(spec.id)]();
  node->spec = spec;
  return node;
}

template <int... id>
auto register_nodes(std::integer_sequence<int, id...>) {
  return std::tuple<RegisterNode<NodeOf<ActivationNode, Activation{id}>>...,
                    RegisterNode<NodeOf<ActivationBackwardNode, Activation{id}>>...>();
}
const auto activation_nodes = register_nodes(std::make_integer_sequence<int, activation_count>());

struct AutogradLayer {
  static Tensor functional(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self) {
    return record_functional(spec, self, [&] { return redispatch_activation(below_autograd(keys), spec, self); });
  }

  static Tensor& in_place(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self) {
    const bool requires_grad = needs_grad(self);
    check_inplace(self, requires_grad);
    if (!self.is_nested()) check_in_place(info(spec.id).name, self);  // it is copied below
    std::optional<Tensor> tangent;
    if (has_tangent(self)) {
      // Both are written below, and may be kept for differentiating this in turn.
      tangent = activation_backward(self._fw_grad(0).clone(), self._fw_primal(0).clone(), spec, /*from_output=*/false);
    }
    NodePtr<ActivationNode> node;
    if (requires_grad) {
      node = make_activation_node(spec);
      node->set_next_edges(collect_next_edges(self));
      node->from_output = output_suffices(spec);  // a rounded output, too: it is what is left, in PyTorch as well
      if (!node->from_output) node->saved = save(self.clone());
    }
    {
      at::AutoDispatchBelowAutograd below;
      redispatch_activation_(below_autograd(keys), spec, self);
    }
    if (node) rebase_history(self, node);
    if (tangent) self._set_fw_grad(self._fw_grad(0).copy_(*tangent), 0, /*is_inplace_op=*/true);
    if (node && node->from_output && spec.id != Activation::identity) {
      node->saved = SavedVariable(self, /*is_output=*/true, self.is_view());
    }
    return self;
  }

  static Tensor& out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_out_without_grad(info(spec.id).name, self, out);
    at::AutoDispatchBelowAutograd below;
    return redispatch_activation_out(below_autograd(keys), spec, self, out);
  }
};

// Counts the versions of what is written, so that autograd notices; refuses inference tensors outside inference mode.
struct VersionLayer {
  static Tensor& in_place(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self) {
    {
      at::AutoDispatchBelowADInplaceOrView below;
      redispatch_activation_(keys & c10::after_ADInplaceOrView_keyset, spec, self);
    }
    increment_version(self);
    return self;
  }
  static Tensor& out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    {
      at::AutoDispatchBelowADInplaceOrView below;
      redispatch_activation_out(keys & c10::after_ADInplaceOrView_keyset, spec, self, out);
    }
    increment_version(out);
    return out;
  }
};

Tensor activation_backward_autograd(c10::DispatchKeySet keys, const ActivationBackward& op) {
  const Tensor& grad_output = op.grad_output;
  const Tensor& saved = op.saved;
  const bool grad = needs_grad(grad_output, saved);
  const bool tangents = any_tangent(grad_output, saved);
  if (!grad && !tangents) return call_below_autograd(keys, op);

  const bool through_saved = (grad && saved.requires_grad()) || has_tangent(saved);
  const ActivationSpec spec = activation_spec(ActivationBackward::name, op.activation, op.params);
  // Beyond the orders with kernels, autograd differentiates the formula; of jagged tensors, too, which no kernel takes.
  if (op.order == max_order && through_saved) {
    const bool is_jagged = saved.layout() == at::kJagged;
    return composite_gradient(
        is_jagged ? ActivationBackwardArguments{grad_output, saved, spec, op.from_output, op.order} : op.checked());
  }

  Tensor result = call_below_autograd(keys, op);
  if (grad) {
    const auto node = make_node_of<ActivationBackwardNode>(spec);
    node->set_next_edges(collect_next_edges(grad_output, saved));
    if (saved.requires_grad()) node->grad_output = save(grad_output);
    node->saved = save(saved);
    node->from_output = op.from_output;
    node->order = op.order;
    set_history(result, node);
  }
  if (tangents) {
    const Tensor x = saved._fw_primal(0);
    Tensor tangent;
    if (has_tangent(grad_output)) {
      tangent = activation_backward(grad_output._fw_grad(0), x, spec, op.from_output, op.order);
    }
    if (has_tangent(saved)) {
      const Tensor through =
          activation_backward(grad_output._fw_primal(0) * saved._fw_grad(0), x, spec, op.from_output, op.order + 1);
      tangent = tangent.defined() ? tangent + through : through;
    }
    result._set_fw_grad(tangent, 0, false);
  }
  return result;
}

}  // namespace

NodePtr<ActivationNode> make_activation_node(const ActivationSpec& spec) { return make_node_of<ActivationNode>(spec); }

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  impl_activations<AutogradLayer>(m);
  implement<ActivationBackward, activation_backward_autograd>(m);
}

TORCH_LIBRARY_IMPL(fastops, ADInplaceOrView, m) { impl_activations<VersionLayer>(m); }

}  // namespace fastops
