// The vmap rules of mlp and gated_mlp. A batch of inputs is one call of the op with more rows. A batch of weights or
// biases is an ensemble, whose products are batched ones; so are those of the parameters' gradients of each sample.
#include <torch/library.h>

#include "ops/batching.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"

namespace fastops {
namespace {

bool has_batched_parameters(const Vmap& vmap, const MlpArguments& mlp) {
  return vmap.is_batched(mlp.weights) || vmap.is_batched(mlp.biases);
}

// The same mlp as an ensemble. It refers to its weights, which `weights` holds.
MlpArguments as_ensemble(const Vmap& vmap, const MlpArguments& mlp, std::vector<Tensor>& weights) {
  weights = vmap.unwrap(mlp.weights);
  return {vmap.expand(mlp.input), weights, vmap.unwrap(mlp.biases), mlp.activation, mlp.output_activation, true};
}

using MlpResults = std::tuple<Tensor, std::vector<Tensor>>;

MlpResults mlp_forward(FASTOPS_MLP_PARAMETERS) {
  const MlpArguments mlp = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  const Vmap vmap(input, weights, mlp.biases);
  if (!has_batched_parameters(vmap, mlp)) {
    return vmap.wrap(mlp_forward_op().call(vmap.expand(input), weights, biases, activation, output_activation, params,
                                           output_params));
  }
  std::vector<Tensor> held;
  const MlpArguments ensemble = as_ensemble(vmap, mlp, held);
  std::vector<Tensor> saved;
  Tensor output = composite_mlp(ensemble, &saved);
  return vmap.wrap(MlpResults(std::move(output), std::move(saved)));
}

Tensor mlp(FASTOPS_MLP_PARAMETERS, bool checkpoint) {
  const MlpArguments mlp = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  const Vmap vmap(input, weights, mlp.biases);
  if (!has_batched_parameters(vmap, mlp)) {
    return vmap.wrap(mlp_op().call(vmap.expand(input), weights, biases, activation, output_activation, params,
                                   output_params, checkpoint));
  }
  std::vector<Tensor> held;
  const MlpArguments ensemble = as_ensemble(vmap, mlp, held);
  return vmap.wrap(composite_mlp(ensemble, nullptr));
}

std::vector<Tensor> mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                 const OptionalTensors& biases, const std::optional<Tensor>& output,
                                 at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                 c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                 const c10::List<bool>& output_mask) {
  const MlpArguments mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                              output_activation, params, output_params, output_mask);
  const Tensor last = output.value_or(Tensor());
  const Vmap vmap(grad_output, input, weights, mlp.biases, last, saved);
  const Tensor grad = vmap.expand(grad_output);
  bool wants_parameters = false;
  for (size_t i = 1; i < output_mask.size(); ++i) wants_parameters |= output_mask.get(i);
  if (!wants_parameters && !has_batched_parameters(vmap, mlp)) {
    const auto expanded_output = last.defined() ? std::optional(vmap.expand(last)) : std::nullopt;
    return vmap.wrap(mlp_backward_op().call(grad, vmap.expand(input), weights, biases, expanded_output,
                                            vmap.expand(saved), activation, output_activation, params, output_params,
                                            output_mask));
  }
  std::vector<Tensor> held;
  const MlpArguments ensemble = as_ensemble(vmap, mlp, held);
  if (may_be_differentiated(grad) || may_be_differentiated(ensemble.input) || may_be_differentiated(ensemble.weights) ||
      may_be_differentiated(ensemble.biases)) {
    return vmap.wrap(composite_mlp_backward(ensemble, grad, output_mask));
  }
  return vmap.wrap(layered_mlp_backward(ensemble, grad, vmap.expand(last), vmap.expand(saved), output_mask));
}

// Of a gated_mlp: its weights and biases; the same as an ensemble.
std::vector<Tensor> parameters_of(const GatedMlpArguments& mlp) {
  return {mlp.gate_weight,
          mlp.up_weight,
          mlp.down_weight,
          mlp.gate_bias.value_or(Tensor()),
          mlp.up_bias.value_or(Tensor()),
          mlp.down_bias.value_or(Tensor())};
}

GatedMlpArguments as_ensemble(const Vmap& vmap, const GatedMlpArguments& mlp) {
  const std::vector<Tensor> p = vmap.unwrap(parameters_of(mlp));
  return {vmap.expand(mlp.input), p[0], p[1], p[2], p[3], p[4], p[5], mlp.activation, true};
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_forward(FASTOPS_GATED_MLP_PARAMETERS) {
  const auto mlp = check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS);
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(input, parameters);
  if (vmap.is_batched(parameters)) return vmap.wrap(composite_gated_mlp(as_ensemble(vmap, mlp)));
  return vmap.wrap(gated_mlp_forward_op().call(vmap.expand(input), gate_weight, up_weight, down_weight, gate_bias,
                                               up_bias, down_bias, activation, params));
}

Tensor gated_mlp(FASTOPS_GATED_MLP_PARAMETERS, bool checkpoint) {
  const auto mlp = check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS);
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(input, parameters);
  if (vmap.is_batched(parameters)) return vmap.wrap(std::get<0>(composite_gated_mlp(as_ensemble(vmap, mlp))));
  return vmap.wrap(gated_mlp_op().call(vmap.expand(input), gate_weight, up_weight, down_weight, gate_bias, up_bias,
                                       down_bias, activation, params, checkpoint));
}

std::vector<Tensor> gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(grad_output, input, parameters, gate, up);
  const Tensor grad = vmap.expand(grad_output);
  const bool wants_parameters = std::find(output_mask.begin() + 1, output_mask.end(), true) != output_mask.end();
  if (!wants_parameters && !vmap.is_batched(parameters)) {
    return vmap.wrap(gated_mlp_backward_op().call(grad, vmap.expand(input), gate_weight, up_weight, down_weight,
                                                  gate_bias, up_bias, vmap.expand(gate), vmap.expand(up), activation,
                                                  params, output_mask));
  }
  const auto ensemble = as_ensemble(vmap, mlp);
  if (may_be_differentiated(grad) || may_be_differentiated(ensemble.input) ||
      may_be_differentiated(parameters_of(ensemble))) {
    return vmap.wrap(composite_gated_mlp_backward(ensemble, grad, output_mask));
  }
  return vmap.wrap(layered_gated_mlp_backward(ensemble, grad, vmap.expand(gate), vmap.expand(up), output_mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  m.impl("mlp", TORCH_FN(mlp));
  m.impl("mlp_forward", TORCH_FN(mlp_forward));
  m.impl("mlp_backward", TORCH_FN(mlp_backward));
  m.impl("gated_mlp", TORCH_FN(gated_mlp));
  m.impl("gated_mlp_forward", TORCH_FN(gated_mlp_forward));
  m.impl("gated_mlp_backward", TORCH_FN(gated_mlp_backward));
}

}  // namespace fastops
