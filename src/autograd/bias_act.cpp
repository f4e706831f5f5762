#include "ops/bias_act.h"

#include "autograd/activation.h"

namespace fastops {
namespace {

struct BiasActNode : OpNode<BiasActNode> {
  SavedVariable saved, bias;
  ActivationSpec spec;
  bool from_output = false;

  auto fields() { return std::tie(saved, bias, spec, from_output); }
  std::string name() const override { return "FastopsBiasActBackward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(2);
    const auto mask = wanted<2>();
    const auto b = from_output ? std::nullopt : as_optional(bias.unpack());
    // identity's gradient does not look at what is saved, so nothing is
    const Tensor at_point = spec.id == Activation::identity ? grads[0].detach() : saved.unpack(getptr());
    return scatter(bias_act_backward(grads[0], at_point, b, spec, from_output, mask), mask);
  }
};
const RegisterNode<BiasActNode> bias_act_node;

Tensor bias_act_autograd(c10::DispatchKeySet keys, const BiasAct& op) {
  const Tensor& self = op.self;
  const Tensor& bias = value_or_undefined(op.bias);
  const bool grad = needs_grad(self, bias);
  const bool tangents = any_tangent(self, bias);
  if (!grad && !tangents) return call_below_autograd(keys, op);
  const ActivationSpec spec = activation_spec(BiasAct::name, op.activation, op.params);
  if (!bias.defined()) return record_functional(spec, self, [&] { return redispatch(below_autograd(keys), op); });
  if (tangents) {
    op.checked();
    return bias_act(self + bias, std::nullopt, spec);
  }

  Tensor result = call_below_autograd(keys, op);
  const auto node = make_node<BiasActNode>();
  node->set_next_edges(collect_next_edges(self, bias));
  node->spec = spec;
  node->from_output = output_suffices(spec, self.scalar_type());
  if (!node->from_output) {
    node->saved = save(self);
    node->bias = save(bias);
  }
  set_history(result, node);
  if (node->from_output && spec.id != Activation::identity) node->saved = save(result, /*is_output=*/true);
  return result;
}

Tensor& bias_act_out_autograd(c10::DispatchKeySet keys, const BiasActOut& op) {
  check_out_without_grad("bias_act", op.self, op.bias, op.out.get());
  at::AutoDispatchBelowAutograd below;
  return redispatch(below_autograd(keys), op);
}

Tensor& bias_act_out_versioned(c10::DispatchKeySet keys, const BiasActOut& op) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    redispatch(keys & c10::after_ADInplaceOrView_keyset, op);
  }
  increment_version(op.out);
  return op.out;
}

std::vector<Tensor> bias_act_backward_autograd(c10::DispatchKeySet keys, const BiasActBackward& op) {
  if (needs_grad(op.grad_output, op.saved, op.bias) || any_tangent(op.grad_output, op.saved, op.bias)) {
    return composite_bias_act_backward(op.checked());
  }
  return call_below_autograd(keys, op);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<BiasAct, bias_act_autograd>(m);
  implement<BiasActOut, bias_act_out_autograd>(m);
  implement<BiasActBackward, bias_act_backward_autograd>(m);
}

TORCH_LIBRARY_IMPL(fastops, ADInplaceOrView, m) { implement<BiasActOut, bias_act_out_versioned>(m); }

}  // namespace fastops
