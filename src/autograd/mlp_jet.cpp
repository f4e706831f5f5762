// The node of mlp_jet. Training goes through mlp_jet_forward, which also returns what the backward pass keeps.
#include "ops/mlp_jet.h"

#include <torch/library.h>

#include "autograd/mlp.h"

namespace fastops {
namespace {

struct MlpJetNode : OpNode<MlpJetNode> {
  SavedVariable input;
  std::vector<SavedVariable> weights, biases, saved;
  ActivationSpec activation, output_activation;
  int64_t directions = 0;
  std::vector<double> trace_weights;

  auto fields() {
    return std::tie(input, weights, biases, saved, activation, output_activation, directions, trace_weights);
  }
  std::string name() const override { return "FastopsMlpJetBackward"; }

  variable_list gradients(variable_list&& grads) override {
    const size_t count = 1 + 2 * weights.size();
    if (!grads[0].defined()) return variable_list(count);
    const c10::List<bool> mask = wanted(0, count);
    const OptionalTensors bias_list = as_optional(unpack(biases));
    const Tensor x = input.unpack();
    const std::vector<Tensor> w = unpack(weights);
    const std::vector<Tensor> z = unpack(saved);
    return scatter(call_op(MlpJetBackward{grads[0], x, directions, w, bias_list, z, info(activation.id).name,
                                          info(output_activation.id).name, parameters(activation),
                                          parameters(output_activation), trace_weights, mask}),
                   mask.vec());
  }
};
const RegisterNode<MlpJetNode> mlp_jet_node;

Tensor mlp_jet_autograd(c10::DispatchKeySet keys, const MlpJet& op) {
  if (any_tangent(op.input, op.weights, op.biases)) return composite_mlp_jet(op.checked(), nullptr);
  if (needs_grad(op.input, op.weights, op.biases)) return std::get<0>(call_op<MlpJetForward>(op));
  return call_below_autograd(keys, op);
}

MlpJetForward::Result mlp_jet_forward_autograd(c10::DispatchKeySet keys, const MlpJetForward& op) {
  if (any_tangent(op.input, op.weights, op.biases)) {
    std::vector<Tensor> saved;
    Tensor output = composite_mlp_jet(op.checked(), &saved);
    return {std::move(output), std::move(saved)};
  }
  MlpJetForward::Result result = call_below_autograd(keys, op);
  if (needs_grad(op.input, op.weights, op.biases)) {
    auto& [output, saved] = result;
    const MlpArguments mlp =
        MlpForward{op.input, op.weights, op.biases, op.activation, op.output_activation, op.params, op.output_params}
            .resolved();
    const auto node = make_node<MlpJetNode>();
    node->set_next_edges(collect_next_edges(differentiable_inputs(mlp)));
    node->input = save(mlp.input);
    node->weights = save(mlp.weights);
    node->biases = save(at::TensorList(mlp.biases));
    node->saved = save(saved);
    node->activation = mlp.activation;
    node->output_activation = mlp.output_activation;
    node->directions = op.directions;
    node->trace_weights = op.trace_weights.vec();
    set_history(output, node);
  }
  return result;
}

// Where it is differentiated in turn, it is made of ops that have their own derivatives.
std::vector<Tensor> mlp_jet_backward_autograd(c10::DispatchKeySet keys, const MlpJetBackward& op) {
  if (any_tangent(op.grad_output, op.input, op.weights, op.biases) ||
      needs_grad(op.grad_output, op.input, op.weights, op.biases)) {
    return composite_mlp_jet_backward(op.checked(), /*again=*/true);
  }
  return call_below_autograd(keys, op);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<MlpJet, mlp_jet_autograd>(m);
  implement<MlpJetForward, mlp_jet_forward_autograd>(m);
  implement<MlpJetBackward, mlp_jet_backward_autograd>(m);
}

}  // namespace fastops
