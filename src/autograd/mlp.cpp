// The nodes of mlp and linear_act. Training goes through mlp_forward, which also returns what the backward pass keeps.
#include "autograd/mlp.h"

#include <torch/library.h>

#include "ops/matrix.h"

namespace fastops {
namespace {

struct MlpNode : OpNode<MlpNode> {
  SavedVariable input, output;
  std::vector<SavedVariable> weights, biases, saved;
  ActivationSpec activation, output_activation;
  bool needs_output = false;
  bool checkpoint = false;  // neither output nor saved is kept

  auto fields() {
    return std::tie(input, output, weights, biases, saved, activation, output_activation, needs_output, checkpoint);
  }
  std::string name() const override { return "FastopsMlpBackward"; }

  // The inputs are input, weights[0], biases[0], weights[1], ..., as in mlp_backward's output_mask.
  variable_list gradients(variable_list&& grads) override {
    const size_t count = 1 + 2 * weights.size();
    if (!grads[0].defined()) return variable_list(count);
    c10::List<bool> mask;
    for (size_t i = 0; i < count; ++i) mask.push_back(wants(i));
    OptionalTensors bias_list;
    for (Tensor& bias : unpack(biases)) bias_list.push_back(as_optional(std::move(bias)));
    const Tensor x = input.unpack();
    const std::vector<Tensor> w = unpack(weights);
    const auto [out, hidden] = checkpoint ? forward_again(x, w, bias_list) : kept();
    return scatter(mlp_backward_op().call(with_even_rows("mlp_backward", "grad_output", grads[0]), x, w, bias_list, out,
                                          hidden, info(activation.id).name, info(output_activation.id).name,
                                          parameters(activation), parameters(output_activation), mask),
                   mask.vec());
  }

 private:
  // The arguments `output` and `saved` of mlp_backward.
  using Kept = std::pair<std::optional<Tensor>, std::vector<Tensor>>;

  Kept kept() { return {needs_output ? std::optional(output.unpack(getptr())) : std::nullopt, unpack(saved)}; }

  // Derivatives of the backward pass do not need the history of what this computes. The last layer is left out where
  // nothing of it is wanted.
  Kept forward_again(const Tensor& x, at::TensorList all_weights, const OptionalTensors& all_biases) const {
    const at::AutoGradMode no_grad(false);
    const bool whole = needs_output || !output_suffices(output_activation, x.scalar_type());
    const size_t layers = all_weights.size() - (whole ? 0 : 1);
    if (layers == 0) return {};
    OptionalTensors some_biases;
    for (size_t i = 0; i < layers; ++i) some_biases.push_back(all_biases.get(i));
    const ActivationSpec& last = whole ? output_activation : activation;
    auto [out, hidden] = mlp_forward_op().call(x, all_weights.slice(0, layers), some_biases, info(activation.id).name,
                                               info(last.id).name, parameters(activation), parameters(last));
    if (!whole && output_suffices(activation, x.scalar_type())) hidden.push_back(std::move(out));
    return {needs_output ? std::optional(std::move(out)) : std::nullopt, std::move(hidden)};
  }
};

NodePtr<MlpNode> make_mlp_node(const MlpArguments& mlp) {
  const auto node = make_node<MlpNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable_inputs(mlp)));
  node->input = save(mlp.input);
  node->weights = save(mlp.weights);
  node->biases = save(at::TensorList(mlp.biases));
  node->activation = mlp.activation;
  node->output_activation = mlp.output_activation;
  node->needs_output = mlp.needs_output();
  return node;
}

Tensor inference(c10::DispatchKeySet keys, FASTOPS_MLP_PARAMETERS, bool checkpoint) {
  if (!checkpoint && !has_even_rows(input)) {
    return mlp_op().call(with_even_rows("mlp", "input", input), weights, biases, activation, output_activation, params,
                         output_params, checkpoint);
  }
  const bool grad = needs_grad(input, weights, biases);
  if (needs_tangent(input, weights, biases) || (grad && !checkpoint)) {
    return std::get<0>(mlp_forward_op().call(FASTOPS_MLP_ARGUMENTS));
  }
  NodePtr<MlpNode> node;
  if (grad) {
    node = make_mlp_node(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS));
    node->checkpoint = true;
  }
  Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = mlp_op().redispatch(below_autograd(keys), FASTOPS_MLP_ARGUMENTS, checkpoint);
  }
  if (node) torch::autograd::set_history(output, node);
  return output;
}

std::tuple<Tensor, std::vector<Tensor>> forward(c10::DispatchKeySet keys, FASTOPS_MLP_PARAMETERS) {
  const auto check = [&] { return check_mlp("mlp", FASTOPS_MLP_ARGUMENTS); };
  if (needs_tangent(input, weights, biases)) {
    std::vector<Tensor> saved;
    Tensor output = composite_mlp(check(), &saved);
    return {std::move(output), std::move(saved)};
  }
  NodePtr<MlpNode> node;
  if (needs_grad(input, weights, biases)) node = make_mlp_node(check());
  std::tuple<Tensor, std::vector<Tensor>> result;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    result = mlp_forward_op().redispatch(below_autograd(keys), FASTOPS_MLP_ARGUMENTS);
  }
  if (node) {
    auto& [output, saved] = result;
    torch::autograd::set_history(output, node);
    node->saved = save(saved);
    if (node->needs_output) node->output = save(output, /*is_output=*/true);
  }
  return result;
}

Tensor linear_act(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                  const std::optional<Tensor>& bias, std::string_view activation, c10::ArrayRef<double> params) {
  if (!has_even_rows(input)) {
    return linear_act_op().call(with_even_rows("linear_act", "input", input), weight, bias, activation, params);
  }
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
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace fastops
