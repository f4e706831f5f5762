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

Tensor forward(c10::DispatchKeySet keys, const Tensor& self, const std::optional<Tensor>& bias,
               std::string_view activation, c10::ArrayRef<double> params) {
  const auto redispatch = [&] {
    return bias_act_op().redispatch(below_autograd(keys), self, bias, activation, params);
  };
  if (!torch::autograd::compute_requires_grad(self, bias) && !any_tangent(self, bias)) {
    at::AutoDispatchBelowADInplaceOrView below;
    return redispatch();
  }
  const auto spec = check_bias_act(self, bias, activation, params);
  if (!bias || !bias->defined()) return record_functional(spec, self, redispatch);
  if (any_tangent(self, bias)) return bias_act(self + *bias, std::nullopt, spec);

  const auto node = make_node<BiasActNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(self, bias));
  node->spec = spec;
  node->from_output = output_suffices(spec, self.scalar_type());
  if (!node->from_output) {
    node->saved = save(self);
    node->bias = save(bias);
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = redispatch();
  }
  torch::autograd::set_history(result, node);
  if (node->from_output && spec.id != Activation::identity) node->saved = save(result, /*is_output=*/true);
  return result;
}

Tensor& forward_out(c10::DispatchKeySet keys, const Tensor& self, const std::optional<Tensor>& bias,
                    std::string_view activation, c10::ArrayRef<double> params, Tensor& out) {
  check_out_without_grad("bias_act", self, bias, out);
  at::AutoDispatchBelowAutograd below;
  return bias_act_out_op().redispatch(below_autograd(keys), self, bias, activation, params, out);
}

Tensor& versioned_out(c10::DispatchKeySet keys, const Tensor& self, const std::optional<Tensor>& bias,
                      std::string_view activation, c10::ArrayRef<double> params, Tensor& out) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    bias_act_out_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, self, bias, activation, params, out);
  }
  torch::autograd::increment_version(out);
  return out;
}

std::vector<Tensor> backward(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& saved,
                             const std::optional<Tensor>& bias, std::string_view activation,
                             c10::ArrayRef<double> params, bool from_output, std::array<bool, 2> output_mask) {
  if (torch::autograd::compute_requires_grad(grad_output, saved, bias) || any_tangent(grad_output, saved, bias)) {
    return composite_bias_act_backward(grad_output, saved, bias, activation, params, from_output, output_mask);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return bias_act_backward_op().redispatch(below_autograd(keys), grad_output, saved, bias, activation, params,
                                           from_output, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

TORCH_LIBRARY_IMPL(fastops, ADInplaceOrView, m) { m.impl("bias_act.out", TORCH_FN(versioned_out)); }

}  // namespace fastops
