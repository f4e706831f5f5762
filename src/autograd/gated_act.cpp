#include "ops/gated_act.h"

#include <torch/library.h>

#include "autograd/node.h"
#include "autograd/second_derivatives.h"

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
const RegisterNode<ActMulNode> act_mul_node;

// The gradients of act_mul_backward: of <a, grad_output * up * f'(gate)> + <b, grad_output * f(gate)>.
struct ActMulBackwardNode : OpNode<ActMulBackwardNode> {
  SavedVariable grad_output, gate, up;
  ActivationSpec spec;
  std::vector<bool> mask;  // of the results

  auto fields() { return std::tie(grad_output, gate, up, spec, mask); }
  std::string name() const override { return "FastopsActMulBackwardBackward"; }
  variable_list gradients(variable_list&& cotangents) override {
    const std::vector<Tensor> by = scatter(std::move(cotangents), mask);
    const Tensor &a = by[0], &b = by[1];
    const Tensor grad = unpack(ActMulBackward::name, "grad_output", grad_output);
    const Tensor x = unpack(ActMulBackward::name, "gate", gate);
    const Tensor u = unpack(ActMulBackward::name, "up", up);
    const auto through = [&](const Tensor& factor, int64_t order = 1) {
      return factor.defined() ? activation_backward(factor, x, spec, /*from_output=*/false, order) : Tensor();
    };
    const Tensor slope = wants(0) || wants(2) ? through(a) : Tensor();
    variable_list grads(3);
    if (wants(0)) {
      grads[0] = multiply(slope, u);
      if (b.defined()) grads[0] = add(grads[0], b * bias_act(x, std::nullopt, spec));
    }
    if (wants(1)) grads[1] = add(through(multiply(multiply(a, grad), u), 2), through(multiply(b, grad)));
    if (wants(2)) grads[2] = multiply(slope, grad);
    return grads;
  }
};
const RegisterNode<ActMulBackwardNode> act_mul_backward_node;

struct GatedActNode : OpNode<GatedActNode> {
  SavedVariable self;
  ActivationSpec spec;
  bool gate_last = false;

  auto fields() { return std::tie(self, spec, gate_last); }
  std::string name() const override { return "FastopsGatedActBackward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!wants(0) || !grads[0].defined()) return {Tensor()};
    const Tensor x = self.unpack();
    return {call_op(GatedActBackward{grads[0], x, info(spec.id).name, parameters(spec), gate_last})};
  }
};
const RegisterNode<GatedActNode> gated_act_node;

Tensor act_mul_autograd(c10::DispatchKeySet keys, const ActMul& op) {
  const Tensor& gate = op.gate;
  const Tensor& up = op.up;
  if (any_tangent(gate, up)) return composite_act_mul(op.checked());
  Tensor result = call_below_autograd(keys, op);
  if (needs_grad(gate, up)) {
    const auto node = make_node<ActMulNode>();
    node->set_next_edges(collect_next_edges(gate, up));
    node->spec = activation_spec(ActMul::name, op.activation, op.params);
    node->gate = save(gate);
    node->up = save(up);
    set_history(result, node);
  }
  return result;
}

std::vector<Tensor> act_mul_backward_autograd(c10::DispatchKeySet keys, const ActMulBackward& op) {
  const Tensor &grad_output = op.grad_output, &gate = op.gate, &up = op.up;
  if (any_tangent(grad_output, gate, up)) return composite_act_mul_backward(op.checked());
  std::vector<Tensor> grads = call_below_autograd(keys, op);
  if (needs_grad(grad_output, gate, up)) {
    const auto node = make_node<ActMulBackwardNode>();
    node->set_next_edges(collect_next_edges(grad_output, gate, up));
    node->spec = activation_spec(ActMulBackward::name, op.activation, op.params);
    node->mask.assign(op.output_mask.begin(), op.output_mask.end());
    node->grad_output = save(grad_output);
    node->gate = save(gate);
    node->up = save(up);
    set_history(grads, node);
  }
  return grads;
}

Tensor gated_act_autograd(c10::DispatchKeySet keys, const GatedAct& op) {
  const Tensor& self = op.self;
  if (any_tangent(self)) return composite_gated_act(op.checked());
  Tensor result = call_below_autograd(keys, op);
  if (needs_grad(self)) {
    const auto node = make_node<GatedActNode>();
    node->set_next_edges(collect_next_edges(self));
    node->spec = activation_spec(GatedAct::name, op.activation, op.params);
    node->gate_last = op.gate_last;
    node->self = save(self);
    set_history(result, node);
  }
  return result;
}

Tensor gated_act_backward_autograd(c10::DispatchKeySet keys, const GatedActBackward& op) {
  if (needs_grad(op.grad_output, op.self) || any_tangent(op.grad_output, op.self)) {
    return composite_gated_act_backward(op.checked());
  }
  return call_below_autograd(keys, op);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<ActMul, act_mul_autograd>(m);
  implement<ActMulBackward, act_mul_backward_autograd>(m);
  implement<GatedAct, gated_act_autograd>(m);
  implement<GatedActBackward, gated_act_backward_autograd>(m);
}

}  // namespace fastops
