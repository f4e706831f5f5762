// The node of sequential. Training goes through sequential_forward, which also returns what the backward pass keeps.
#include "ops/sequential.h"

#include <torch/library.h>

#include "autograd/node.h"

namespace fastops {
namespace {

struct SequentialNode : OpNode<SequentialNode> {
  SavedVariable input, seed;
  std::vector<SavedVariable> parameters, saved;
  std::string steps;
  std::vector<double> params;

  auto fields() { return std::tie(input, seed, parameters, saved, steps, params); }
  std::string name() const override { return "FastopsSequentialBackward"; }

  // The inputs are input and parameters, as in sequential_backward's output_mask.
  variable_list gradients(variable_list&& grads) override {
    const size_t count = 1 + parameters.size();
    if (!grads[0].defined()) return variable_list(count);
    const c10::List<bool> mask = wanted(0, count);
    const OptionalTensors parameter_list = as_optional(unpack(parameters));
    const Tensor x = input.unpack();
    const std::vector<Tensor> values = unpack(saved);
    const std::optional<Tensor> s = as_optional(seed.unpack());
    return scatter(call_op(SequentialBackward{grads[0], x, parameter_list, values, steps, params, s, mask}),
                   mask.vec());
  }
};
const RegisterNode<SequentialNode> sequential_node;

Tensor sequential_autograd(c10::DispatchKeySet keys, const Sequential& op) {
  if (any_tangent(op.input, op.parameters)) return layered_sequential(op.checked(), nullptr);
  if (needs_grad(op.input, op.parameters)) return std::get<0>(call_op<SequentialForward>(op));
  return call_below_autograd(keys, op);
}

SequentialForward::Result sequential_forward_autograd(c10::DispatchKeySet keys, const SequentialForward& op) {
  if (any_tangent(op.input, op.parameters)) {
    std::vector<Tensor> saved;
    Tensor output = layered_sequential(op.checked(), &saved);
    return {std::move(output), std::move(saved)};
  }
  SequentialForward::Result result = call_below_autograd(keys, op);
  if (needs_grad(op.input, op.parameters)) {
    auto& [output, saved] = result;
    std::vector<Tensor> inputs = {op.input};
    for (size_t i = 0; i < op.parameters.get().size(); ++i) {
      inputs.push_back(value_or_undefined(op.parameters.get().get(i)));
    }
    const auto node = make_node<SequentialNode>();
    node->set_next_edges(collect_next_edges(at::TensorList(inputs)));
    node->input = save(inputs[0]);
    node->parameters = save(at::TensorList(inputs).slice(1));
    node->seed = save(value_or_undefined(op.seed));
    node->saved = save(saved);
    node->steps = op.steps;
    node->params = op.params.vec();
    set_history(output, node);
  }
  return result;
}

// Where it is differentiated in turn, it is made of ops that have their own derivatives.
std::vector<Tensor> sequential_backward_autograd(c10::DispatchKeySet keys, const SequentialBackward& op) {
  if (any_tangent(op.grad_output, op.input, op.parameters) || needs_grad(op.grad_output, op.input, op.parameters)) {
    return composite_sequential_backward(op.checked());
  }
  return call_below_autograd(keys, op);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<Sequential, sequential_autograd>(m);
  implement<SequentialForward, sequential_forward_autograd>(m);
  implement<SequentialBackward, sequential_backward_autograd>(m);
}

}  // namespace fastops
