// The node of gated_mlp. Training goes through gated_mlp_forward, which also returns what the backward pass keeps.
#include "ops/gated_mlp.h"

#include <torch/library.h>

#include "autograd/node.h"
#include "ops/matrix.h"
#include "ops/mlp.h"

namespace fastops {
namespace {

struct GatedMlpNode : OpNode<GatedMlpNode> {
  SavedVariable input, gate_weight, up_weight, down_weight, gate_bias, up_bias, gate, up;
  ActivationSpec spec;
  bool checkpoint = false;  // gate and up are not kept

  auto fields() {
    return std::tie(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, gate, up, spec, checkpoint);
  }
  std::string name() const override { return "FastopsGatedMlpBackward"; }
  variable_list gradients(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(7);
    const auto mask = wanted<7>();
    const GatedMlpArguments mlp{input.unpack(),
                                gate_weight.unpack(),
                                up_weight.unpack(),
                                down_weight.unpack(),
                                as_optional(gate_bias.unpack()),
                                as_optional(up_bias.unpack()),
                                std::nullopt,
                                spec};
    const auto [g, u] = checkpoint ? projections(mlp) : std::pair(gate.unpack(), up.unpack());
    return scatter(
        gated_mlp_backward_op().call(with_even_rows("gated_mlp_backward", "grad_output", grads[0]), mlp.input,
                                     mlp.gate_weight, mlp.up_weight, mlp.down_weight, mlp.gate_bias, mlp.up_bias, g, u,
                                     info(spec.id).name, parameters(spec), mask),
        mask);
  }

 private:
  // Where they were not kept. Derivatives of the backward pass do not need their history.
  static std::pair<Tensor, Tensor> projections(const GatedMlpArguments& mlp) {
    const at::AutoGradMode no_grad(false);
    const auto project = [&](const Tensor& weight, const std::optional<Tensor>& bias) {
      return linear_act_op().call(mlp.input, weight, bias, "identity", {});
    };
    return {project(mlp.gate_weight, mlp.gate_bias), project(mlp.up_weight, mlp.up_bias)};
  }
};

NodePtr<GatedMlpNode> make_gated_mlp_node(const GatedMlpArguments& mlp) {
  const auto node = make_node<GatedMlpNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(mlp.input, mlp.gate_weight, mlp.up_weight, mlp.down_weight,
                                                           mlp.gate_bias, mlp.up_bias, mlp.down_bias));
  node->spec = mlp.activation;
  node->input = save(mlp.input);
  node->gate_weight = save(mlp.gate_weight);
  node->up_weight = save(mlp.up_weight);
  node->down_weight = save(mlp.down_weight);
  node->gate_bias = save(mlp.gate_bias);
  node->up_bias = save(mlp.up_bias);
  return node;
}

#define FASTOPS_GATED_MLP_TENSORS input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias

Tensor inference(c10::DispatchKeySet keys, FASTOPS_GATED_MLP_PARAMETERS, bool checkpoint) {
  if (!checkpoint && !has_even_rows(input)) {
    return gated_mlp_op().call(with_even_rows("gated_mlp", "input", input), gate_weight, up_weight, down_weight,
                               gate_bias, up_bias, down_bias, activation, params, checkpoint);
  }
  const bool grad = torch::autograd::compute_requires_grad(FASTOPS_GATED_MLP_TENSORS);
  if (any_tangent(FASTOPS_GATED_MLP_TENSORS) || (grad && !checkpoint)) {
    return std::get<0>(gated_mlp_forward_op().call(FASTOPS_GATED_MLP_ARGUMENTS));
  }
  NodePtr<GatedMlpNode> node;
  if (grad) {
    node = make_gated_mlp_node(check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS));
    node->checkpoint = true;
  }
  Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = gated_mlp_op().redispatch(below_autograd(keys), FASTOPS_GATED_MLP_ARGUMENTS, checkpoint);
  }
  if (node) torch::autograd::set_history(output, node);
  return output;
}

std::tuple<Tensor, Tensor, Tensor> forward(c10::DispatchKeySet keys, FASTOPS_GATED_MLP_PARAMETERS) {
  const auto check = [&] { return check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS); };
  if (any_tangent(FASTOPS_GATED_MLP_TENSORS)) return composite_gated_mlp(check());
  NodePtr<GatedMlpNode> node;
  if (torch::autograd::compute_requires_grad(FASTOPS_GATED_MLP_TENSORS)) node = make_gated_mlp_node(check());
  std::tuple<Tensor, Tensor, Tensor> result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = gated_mlp_forward_op().redispatch(below_autograd(keys), FASTOPS_GATED_MLP_ARGUMENTS);
  }
  if (node) {
    auto& [output, gate, up] = result;
    torch::autograd::set_history(output, node);
    node->gate = save(gate);
    node->up = save(up);
  }
  return result;
}

#undef FASTOPS_GATED_MLP_TENSORS

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  m.impl("gated_mlp", TORCH_FN(inference));
  m.impl("gated_mlp_forward", TORCH_FN(forward));
}

}  // namespace fastops
