// The node of gated_mlp. Training goes through gated_mlp_forward, which also returns what the backward pass keeps.
#include "ops/gated_mlp.h"

#include <torch/library.h>

#include "autograd/node.h"

namespace fastops {
namespace {

struct GatedMlpNode : Node {
  SavedVariable input, gate_weight, up_weight, down_weight, gate_bias, up_bias, gate, up;
  ActivationSpec spec;

  std::string name() const override { return "FastopsGatedMlpBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(7);
    const auto mask = needed<7>(*this);
    return scatter(gated_mlp_backward_op().call(grads[0], input.unpack(), gate_weight.unpack(), up_weight.unpack(),
                                                down_weight.unpack(), as_optional(gate_bias.unpack()),
                                                as_optional(up_bias.unpack()), gate.unpack(), up.unpack(),
                                                info(spec.id).name, parameters(spec), mask),
                   mask);
  }
  void release_variables() override {
    for (auto* variable : {&input, &gate_weight, &up_weight, &down_weight, &gate_bias, &up_bias, &gate, &up}) {
      variable->reset_data();
    }
  }
};

Tensor inference(c10::DispatchKeySet keys, const Tensor& input, const Tensor& gate_weight, const Tensor& up_weight,
                 const Tensor& down_weight, const std::optional<Tensor>& gate_bias,
                 const std::optional<Tensor>& up_bias, const std::optional<Tensor>& down_bias,
                 std::string_view activation, c10::ArrayRef<double> params) {
  if (any_tangent(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias) ||
      torch::autograd::compute_requires_grad(input, gate_weight, up_weight, down_weight, gate_bias, up_bias,
                                             down_bias)) {
    return std::get<0>(gated_mlp_forward_op().call(input, gate_weight, up_weight, down_weight, gate_bias, up_bias,
                                                   down_bias, activation, params));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return gated_mlp_op().redispatch(below_autograd(keys), input, gate_weight, up_weight, down_weight, gate_bias, up_bias,
                                   down_bias, activation, params);
}

std::tuple<Tensor, Tensor, Tensor> forward(c10::DispatchKeySet keys, const Tensor& input, const Tensor& gate_weight,
                                           const Tensor& up_weight, const Tensor& down_weight,
                                           const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                                           const std::optional<Tensor>& down_bias, std::string_view activation,
                                           c10::ArrayRef<double> params) {
  const auto check = [&] {
    return check_gated_mlp(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation,
                           params);
  };
  if (any_tangent(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias)) {
    return composite_gated_mlp(check());
  }
  NodePtr<GatedMlpNode> node;
  if (torch::autograd::compute_requires_grad(input, gate_weight, up_weight, down_weight, gate_bias, up_bias,
                                             down_bias)) {
    node = make_node<GatedMlpNode>();
    node->set_next_edges(
        torch::autograd::collect_next_edges(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias));
    node->spec = check().activation;
    node->input = save(input);
    node->gate_weight = save(gate_weight);
    node->up_weight = save(up_weight);
    node->down_weight = save(down_weight);
    node->gate_bias = save(gate_bias);
    node->up_bias = save(up_bias);
  }
  std::tuple<Tensor, Tensor, Tensor> result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = gated_mlp_forward_op().redispatch(below_autograd(keys), input, gate_weight, up_weight, down_weight,
                                               gate_bias, up_bias, down_bias, activation, params);
  }
  if (node) {
    auto& [output, gate, up] = result;
    torch::autograd::set_history(output, node);
    node->gate = save(gate);
    node->up = save(up);
  }
  return result;
}

std::vector<Tensor> backward(c10::DispatchKeySet keys, FASTOPS_GATED_MLP_BACKWARD_PARAMETERS,
                             std::array<bool, 7> output_mask) {
  if (any_tangent(grad_output, input, gate_weight, up_weight, down_weight, gate_bias, up_bias) ||
      torch::autograd::compute_requires_grad(grad_output, input, gate_weight, up_weight, down_weight, gate_bias,
                                             up_bias)) {
    const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
    return composite_gated_mlp_backward(mlp, grad_output, output_mask);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return gated_mlp_backward_op().redispatch(below_autograd(keys), grad_output, input, gate_weight, up_weight,
                                            down_weight, gate_bias, up_bias, gate, up, activation, params, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  m.impl("gated_mlp", TORCH_FN(inference));
  m.impl("gated_mlp_forward", TORCH_FN(forward));
  m.impl("gated_mlp_backward", TORCH_FN(backward));
}

}  // namespace fastops
