// The node of gated_mlp. Training goes through gated_mlp_forward, which also returns what the backward pass keeps.
#include "ops/gated_mlp.h"

#include <torch/library.h>

#include "autograd/node.h"
#include "autograd/products.h"
#include "ops/matrix.h"

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
    const Tensor x = input.unpack();
    const Tensor gate_w = gate_weight.unpack();
    const Tensor up_w = up_weight.unpack();
    const Tensor down_w = down_weight.unpack();
    const std::optional<Tensor> gate_b = as_optional(gate_bias.unpack());
    const std::optional<Tensor> up_b = as_optional(up_bias.unpack());
    if (checkpoint) {  // linear_act has other names for the arguments
      const std::optional<Tensor> no_bias;
      GatedMlpForward{x, gate_w, up_w, down_w, gate_b, up_b, no_bias, info(spec.id).name, parameters(spec)}.checked();
    }
    const Tensor g = checkpoint ? projected(x, gate_w, gate_b) : gate.unpack();
    const Tensor u = checkpoint ? projected(x, up_w, up_b) : up.unpack();
    const Tensor grad_output = with_even_rows(GatedMlpBackward::name, "grad_output", grads[0]);
    return scatter(call_op(GatedMlpBackward{grad_output, x, gate_w, up_w, down_w, gate_b, up_b, g, u,
                                            info(spec.id).name, parameters(spec), mask}),
                   mask);
  }

 private:
  // Where it was not kept. Derivatives of the backward pass do not need its history.
  static Tensor projected(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const at::AutoGradMode no_grad(false);
    return projection(x, weight, bias);
  }
};
const RegisterNode<GatedMlpNode> gated_mlp_node;

NodePtr<GatedMlpNode> make_gated_mlp_node(const GatedMlpArguments& mlp) {
  const auto node = make_node<GatedMlpNode>();
  node->set_next_edges(collect_next_edges(mlp.input, mlp.gate_weight, mlp.up_weight, mlp.down_weight, mlp.gate_bias,
                                          mlp.up_bias, mlp.down_bias));
  node->spec = mlp.activation;
  node->input = save(mlp.input);
  node->gate_weight = save(mlp.gate_weight);
  node->up_weight = save(mlp.up_weight);
  node->down_weight = save(mlp.down_weight);
  node->gate_bias = save(mlp.gate_bias);
  node->up_bias = save(mlp.up_bias);
  return node;
}

bool needs_grad_of(const GatedMlpForward& op) {
  return needs_grad(op.input, op.gate_weight, op.up_weight, op.down_weight, op.gate_bias, op.up_bias, op.down_bias);
}
bool any_tangent_of(const GatedMlpForward& op) {
  return any_tangent(op.input, op.gate_weight, op.up_weight, op.down_weight, op.gate_bias, op.up_bias, op.down_bias);
}

Tensor gated_mlp_autograd(c10::DispatchKeySet keys, GatedMlp op) {
  const bool grad = needs_grad_of(op);
  if (any_tangent_of(op) || (grad && !op.checkpoint)) {
    Tensor even;
    if (!op.checkpoint && !has_even_rows(op.input)) op.input = even = with_even_rows(GatedMlp::name, "input", op.input);
    return std::get<0>(call_op<GatedMlpForward>(op));
  }
  Tensor output = call_below_autograd(keys, op);
  if (grad) {
    const auto node = make_gated_mlp_node(op.resolved());
    node->checkpoint = true;
    set_history(output, node);
  }
  return output;
}

GatedMlpForward::Result gated_mlp_forward_autograd(c10::DispatchKeySet keys, const GatedMlpForward& op) {
  if (any_tangent_of(op)) return composite_gated_mlp(op.checked());
  GatedMlpForward::Result result = call_below_autograd(keys, op);
  if (needs_grad_of(op)) {
    auto& [output, gate, up] = result;
    const auto node = make_gated_mlp_node(op.resolved());
    set_history(output, node);
    node->gate = save(gate);
    node->up = save(up);
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<GatedMlp, gated_mlp_autograd>(m);
  implement<GatedMlpForward, gated_mlp_forward_autograd>(m);
}

}  // namespace fastops
