// The node of gated_mlp_backward.
#include <torch/library.h>

#include "autograd/node.h"
#include "autograd/second_derivatives.h"
#include "ops/bias_act.h"
#include "ops/gated_mlp.h"

namespace fastops {
namespace {

struct GatedMlpBackwardNode : OpNode<GatedMlpBackwardNode> {
  SavedVariable grad_output, input, gate_weight, up_weight, down_weight, gate_bias, up_bias;
  ActivationSpec spec;
  std::vector<bool> mask;  // of the results

  auto fields() {
    return std::tie(grad_output, input, gate_weight, up_weight, down_weight, gate_bias, up_bias, spec, mask);
  }
  std::string name() const override { return "FastopsGatedMlpBackwardBackward"; }

  // The inputs are grad_output and those of gated_mlp but down_bias. In the names below g and u are the gate and the up
  // projection, f is the activation of g, d before a name is the derivative in the direction, by_ before it the
  // gradient in it.
  variable_list gradients(variable_list&& cotangents) override {
    const std::vector<Tensor> direction = scatter(std::move(cotangents), mask);
    const Tensor &dx = direction[0], &d_gate = direction[1], &d_up = direction[2], &d_down = direction[3];
    constexpr auto op = "gated_mlp_backward";
    const Tensor by_y = unpack(op, "grad_output", grad_output);
    const Tensor x = unpack(op, "input", input);
    const Tensor gate = unpack(op, "gate_weight", gate_weight);
    const Tensor up = unpack(op, "up_weight", up_weight);
    const Tensor down = unpack(op, "down_weight", down_weight);
    const auto b_gate = as_optional(unpack(op, "gate_bias", gate_bias));
    const auto b_up = as_optional(unpack(op, "up_bias", up_bias));
    variable_list grads(7);

    const auto [point, u] = recomputed_.get(
        [&]() -> Projections { return {Point(spec, projection(x, gate, b_gate)), projection(x, up, b_up)}; });
    const auto moved = [&](const Tensor& weight, const Tensor& d_weight, const Tensor& d_bias) {
      const Tensor by_weight = add(times(dx, weight), times(x, d_weight));
      if (!d_bias.defined()) return by_weight;
      return by_weight.defined() ? by_weight + d_bias : d_bias.expand_as(u);
    };
    const Tensor dg = moved(gate, d_gate, direction[4]);
    const Tensor du = moved(up, d_up, direction[5]);
    const Tensor& f = point.value;
    const Tensor df = point.through(dg);
    const Tensor d_product = add(multiply(df, u), multiply(f, du));
    if (wants(0)) {
      grads[0] = add(times(d_product, down), times(f * u, d_down));
      if (direction[6].defined())
        grads[0] = grads[0].defined() ? grads[0] + direction[6] : direction[6].expand_as(by_y);
    }
    if (wants(4)) grads[4] = weight_gradient(by_y, d_product);

    const Tensor by_d_product = input_gradient(by_y, down);
    const Tensor by_product = input_gradient(by_y, d_down);
    const Tensor by_df = by_d_product * u;
    const Tensor by_dg = point.through(by_df);
    const Tensor by_du = by_d_product * f;
    const Tensor by_f = add(multiply(by_product, u), multiply(by_d_product, du));
    const Tensor by_g = add(point.through(by_f), point.through_slope(by_df, dg, df));
    const Tensor by_u = add(multiply(by_product, f), multiply(by_d_product, df));
    if (wants(1)) {
      grads[1] = add(add(input_gradient(by_g, gate), input_gradient(by_u, up)),
                     add(input_gradient(by_dg, d_gate), input_gradient(by_du, d_up)));
    }
    if (wants(2)) grads[2] = add(weight_gradient(by_g, x), weight_gradient(by_dg, dx));
    if (wants(3)) grads[3] = add(weight_gradient(by_u, x), weight_gradient(by_du, dx));
    if (wants(5)) grads[5] = bias_gradient(by_g);
    if (wants(6)) grads[6] = bias_gradient(by_u);
    return grads;
  }
  void release_saved() override {
    OpNode::release_saved();
    recomputed_.clear();
  }

 private:
  using Projections = std::pair<Point, Tensor>;
  Recomputed<Projections> recomputed_;
};
const RegisterNode<GatedMlpBackwardNode> gated_mlp_backward_node;

std::vector<Tensor> gated_mlp_backward_autograd(c10::DispatchKeySet keys, const GatedMlpBackward& op) {
  const std::array<Tensor, 7> inputs = {op.grad_output,
                                        op.input,
                                        op.gate_weight,
                                        op.up_weight,
                                        op.down_weight,
                                        value_or_undefined(op.gate_bias),
                                        value_or_undefined(op.up_bias)};
  if (any_tangent(inputs)) return composite_gated_mlp_backward(op.checked());
  std::vector<Tensor> grads = call_below_autograd(keys, op);
  if (needs_grad(inputs)) {
    const auto node = make_node<GatedMlpBackwardNode>();
    node->set_next_edges(collect_next_edges(at::TensorList(inputs)));
    node->spec = activation_spec(GatedMlpBackward::name, op.activation, op.params);
    node->grad_output = save(inputs[0]);
    node->input = save(inputs[1]);
    node->gate_weight = save(inputs[2]);
    node->up_weight = save(inputs[3]);
    node->down_weight = save(inputs[4]);
    node->gate_bias = save(inputs[5]);
    node->up_bias = save(inputs[6]);
    node->mask.assign(op.output_mask.begin(), op.output_mask.end());
    set_history(grads, node);
  }
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) { implement<GatedMlpBackward, gated_mlp_backward_autograd>(m); }

}  // namespace fastops
