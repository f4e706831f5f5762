// The node of an elementwise op y = f(x), shared by the plain activations and bias_act without a bias.
#pragma once

#include <string>

#include "autograd/node.h"
#include "ops/activation.h"

namespace fastops {

struct ActivationNode : OpNode<ActivationNode> {
  SavedVariable saved;
  ActivationSpec spec;
  bool from_output = false;

  auto fields() { return std::tie(saved, spec, from_output); }
  std::string name() const override { return std::string("Fastops") + info(spec.id).class_name + "Backward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!wants(0) || !grads[0].defined()) return {Tensor()};
    if (spec.id == Activation::identity) return {grads[0]};  // nothing is saved
    return {activation_backward(grads[0], saved.unpack(getptr()), spec, from_output)};
  }
};

// A node of that activation, with the spec.
NodePtr<ActivationNode> make_activation_node(const ActivationSpec& spec);

// Records the op run by `redispatch` below autograd and carries a tangent through it.
template <class Redispatch>
Tensor record_functional(const ActivationSpec& spec, const Tensor& self, Redispatch redispatch) {
  NodePtr<ActivationNode> node;
  if (needs_grad(self)) {
    node = make_activation_node(spec);
    node->set_next_edges(collect_next_edges(self));
    node->from_output = output_suffices(spec, self.scalar_type());
    if (!node->from_output) node->saved = save(self);
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = redispatch();
  }
  if (node) set_history(result, node);
  if (const Tensor tangent = self._fw_grad(0); tangent.defined()) {
    result._set_fw_grad(activation_backward(tangent, self._fw_primal(0), spec, /*from_output=*/false), 0, false);
  }
  // Last: the saved output keeps its history and its tangent.
  if (node && node->from_output && spec.id != Activation::identity) node->saved = save(result, /*is_output=*/true);
  return result;
}

// Functions with out= take no part in differentiation.
template <class... Inputs>
void check_out_without_grad(const char* op, const Inputs&... tensors) {
  if (needs_grad(tensors...)) throw_error_out_requires_grad(op);
  TORCH_CHECK(!any_tangent(tensors...), op, "(): functions with out=... arguments don't support forward-mode AD");
}

}  // namespace fastops
