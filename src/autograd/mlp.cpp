// The nodes of mlp and linear_act. Training goes through mlp_forward, which also returns what the backward pass keeps.
#include "ops/mlp.h"

#include <torch/library.h>

#include "autograd/node.h"

namespace fastops {
namespace {

struct MlpNode : Node {
  SavedVariable input, output;
  std::vector<SavedVariable> weights, biases, saved;
  ActivationSpec activation, output_activation;
  bool needs_output = false;

  std::string name() const override { return "FastopsMlpBackward"; }

  // The inputs are input, weights[0], biases[0], weights[1], ..., as in mlp_backward's output_mask.
  variable_list apply(variable_list&& grads) override {
    const size_t count = 1 + 2 * weights.size();
    if (!grads[0].defined()) return variable_list(count);
    c10::List<bool> mask;
    for (size_t i = 0; i < count; ++i) mask.push_back(task_should_compute_output(i));
    OptionalTensors bias_list;
    for (Tensor& bias : unpack(biases)) bias_list.push_back(as_optional(std::move(bias)));
    const auto out = needs_output ? std::optional(output.unpack(getptr())) : std::nullopt;
    return scatter(mlp_backward_op().call(grads[0], input.unpack(), unpack(weights), bias_list, out, unpack(saved),
                                          info(activation.id).name, info(output_activation.id).name,
                                          parameters(activation), parameters(output_activation), mask),
                   mask.vec());
  }
  void release_variables() override {
    input.reset_data();
    output.reset_data();
    for (auto* list : {&weights, &biases, &saved}) {
      for (SavedVariable& variable : *list) variable.reset_data();
    }
  }
};

std::vector<Tensor> differentiable_inputs(const MlpArguments& mlp) {
  std::vector<Tensor> inputs = {mlp.input};
  for (size_t i = 0; i < mlp.layers(); ++i) {
    inputs.push_back(mlp.weights[i]);
    inputs.push_back(mlp.biases[i]);
  }
  return inputs;
}

// Whether the op takes part in differentiation: backward, forward.
bool needs_grad(const Tensor& input, at::TensorList weights, const OptionalTensors& biases) {
  if (torch::autograd::compute_requires_grad(input, weights)) return true;
  if (!torch::autograd::GradMode::is_enabled()) return false;
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto bias = biases.get(i);
    if (bias && bias->defined() && bias->requires_grad()) return true;
  }
  return false;
}
bool needs_tangent(const Tensor& input, at::TensorList weights, const OptionalTensors& biases) {
  return any_tangent(input, weights) || torch::autograd::isFwGradDefinedTensorList(biases);
}

Tensor inference(c10::DispatchKeySet keys, const Tensor& input, at::TensorList weights, const OptionalTensors& biases,
                 std::string_view activation, std::string_view output_activation, c10::ArrayRef<double> params,
                 c10::ArrayRef<double> output_params) {
  if (needs_tangent(input, weights, biases)) {
    return composite_mlp(check_mlp("mlp", input, weights, biases, activation, output_activation, params, output_params),
                         nullptr);
  }
  if (needs_grad(input, weights, biases)) {
    return std::get<0>(
        mlp_forward_op().call(input, weights, biases, activation, output_activation, params, output_params));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return mlp_op().redispatch(below_autograd(keys), input, weights, biases, activation, output_activation, params,
                             output_params);
}

std::tuple<Tensor, std::vector<Tensor>> forward(c10::DispatchKeySet keys, const Tensor& input, at::TensorList weights,
                                                const OptionalTensors& biases, std::string_view activation,
                                                std::string_view output_activation, c10::ArrayRef<double> params,
                                                c10::ArrayRef<double> output_params) {
  const bool tangents = needs_tangent(input, weights, biases);
  NodePtr<MlpNode> node;
  if (tangents || needs_grad(input, weights, biases)) {
    const auto mlp = check_mlp("mlp", input, weights, biases, activation, output_activation, params, output_params);
    if (tangents) {
      std::vector<Tensor> saved;
      Tensor output = composite_mlp(mlp, &saved);
      return {std::move(output), std::move(saved)};
    }
    node = make_node<MlpNode>();
    node->set_next_edges(torch::autograd::collect_next_edges(differentiable_inputs(mlp)));
    node->input = save(input);
    node->weights = save(weights);
    node->biases = save(mlp.biases);
    node->activation = mlp.activation;
    node->output_activation = mlp.output_activation;
    node->needs_output = mlp.needs_output();
  }
  std::tuple<Tensor, std::vector<Tensor>> result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = mlp_forward_op().redispatch(below_autograd(keys), input, weights, biases, activation, output_activation,
                                         params, output_params);
  }
  if (node) {
    auto& [output, saved] = result;
    torch::autograd::set_history(output, node);
    node->saved = save(saved);
    if (node->needs_output) node->output = save(output, /*is_output=*/true);
  }
  return result;
}

std::vector<Tensor> backward(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& input,
                             at::TensorList weights, const OptionalTensors& biases, const std::optional<Tensor>& output,
                             at::TensorList saved, std::string_view activation, std::string_view output_activation,
                             c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                             const c10::List<bool>& output_mask) {
  if (needs_grad(input, weights, biases) || torch::autograd::compute_requires_grad(grad_output) ||
      needs_tangent(input, weights, biases) || has_tangent(grad_output)) {
    const auto mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                        output_activation, params, output_params, output_mask);
    return composite_mlp_backward(mlp, grad_output, output_mask);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return mlp_backward_op().redispatch(below_autograd(keys), grad_output, input, weights, biases, output, saved,
                                      activation, output_activation, params, output_params, output_mask);
}

Tensor linear_act(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                  const std::optional<Tensor>& bias, std::string_view activation, c10::ArrayRef<double> params) {
  const bool tangents = any_tangent(input, weight, bias);
  if (tangents || torch::autograd::compute_requires_grad(input, weight, bias)) {
    const auto mlp = check_linear_act(input, weight, bias, activation, params);
    if (tangents) return composite_mlp(mlp, nullptr);
    return std::get<0>(
        mlp_forward_op().call(input, weight, OptionalTensors({bias}), "identity", activation, {}, params));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return linear_act_op().redispatch(below_autograd(keys), input, weight, bias, activation, params);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  m.impl("mlp", TORCH_FN(inference));
  m.impl("mlp_forward", TORCH_FN(forward));
  m.impl("mlp_backward", TORCH_FN(backward));
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace fastops
