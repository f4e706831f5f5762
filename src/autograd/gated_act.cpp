#include "ops/gated_act.h"

#include <torch/library.h>

#include "autograd/node.h"

namespace fastops {
namespace {

struct ActMulNode : OpNode<ActMulNode> {
  SavedVariable gate, up;
  ActivationSpec spec;

  auto fields() { return std::tie(gate, up, spec); }
  std::string name() const override { return "FastopsActMulBackward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(2);
    const auto mask = wanted<2>();
    return scatter(act_mul_backward(grads[0], gate.unpack(), up.unpack(), spec, mask), mask);
  }
};

struct GatedActNode : OpNode<GatedActNode> {
  SavedVariable self;
  ActivationSpec spec;
  bool gate_last = false;

  auto fields() { return std::tie(self, spec, gate_last); }
  std::string name() const override { return "FastopsGatedActBackward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!wants(0) || !grads[0].defined()) return {Tensor()};
    return {gated_act_backward_op().call(grads[0], self.unpack(), info(spec.id).name, parameters(spec), gate_last)};
  }
};

Tensor act_mul_forward(c10::DispatchKeySet keys, const Tensor& gate, const Tensor& up, std::string_view activation,
                       c10::ArrayRef<double> params) {
  if (any_tangent(gate, up)) return composite_act_mul(gate, up, activation, params);
  NodePtr<ActMulNode> node;
  if (torch::autograd::compute_requires_grad(gate, up)) {
    node = make_node<ActMulNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(gate, up));
    node->spec = check_act_mul(gate, up, activation, params);
    node->gate = save(gate);
    node->up = save(up);
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = act_mul_op().redispatch(below_autograd(keys), gate, up, activation, params);
  }
  if (node) torch::autograd::set_history(result, node);
  return result;
}

std::vector<Tensor> act_mul_backward_(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& gate,
                                      const Tensor& up, std::string_view activation, c10::ArrayRef<double> params,
                                      std::array<bool, 2> output_mask) {
  if (torch::autograd::compute_requires_grad(grad_output, gate, up) || any_tangent(grad_output, gate, up)) {
    return composite_act_mul_backward(grad_output, gate, up, activation, params, output_mask);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return act_mul_backward_op().redispatch(below_autograd(keys), grad_output, gate, up, activation, params, output_mask);
}

Tensor gated_act_forward(c10::DispatchKeySet keys, const Tensor& self, std::string_view activation,
                         c10::ArrayRef<double> params, bool gate_last) {
  if (any_tangent(self)) return composite_gated_act(self, activation, params, gate_last);
  NodePtr<GatedActNode> node;
  if (torch::autograd::compute_requires_grad(self)) {
    node = make_node<GatedActNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(self));
    node->spec = check_gated_act(self, activation, params);
    node->gate_last = gate_last;
    node->self = save(self);
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = gated_act_op().redispatch(below_autograd(keys), self, activation, params, gate_last);
  }
  if (node) torch::autograd::set_history(result, node);
  return result;
}

Tensor gated_act_backward_(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& self,
                           std::string_view activation, c10::ArrayRef<double> params, bool gate_last) {
  if (torch::autograd::compute_requires_grad(grad_output, self) || any_tangent(grad_output, self)) {
    return composite_gated_act_backward(grad_output, self, activation, params, gate_last);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return gated_act_backward_op().redispatch(below_autograd(keys), grad_output, self, activation, params, gate_last);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  m.impl("act_mul", TORCH_FN(act_mul_forward));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward_));
  m.impl("gated_act", TORCH_FN(gated_act_forward));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward_));
}

}  // namespace fastops
