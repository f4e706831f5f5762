#include "ops/mlp.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <string>

#include "ops/activation.h"
#include "ops/autocast.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/matrix.h"

namespace fastops {

const c10::TypedOperatorHandle<Mlp>& mlp_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::mlp", "").typed<Mlp>();
  return op;
}

const c10::TypedOperatorHandle<MlpForward>& mlp_forward_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::mlp_forward", "").typed<MlpForward>();
  return op;
}

const c10::TypedOperatorHandle<MlpBackward>& mlp_backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::mlp_backward", "").typed<MlpBackward>();
  return op;
}

namespace {

void check_layer(std::string_view op, const MlpArguments& mlp, size_t layer, Argument weight, Argument bias) {
  const Tensor& w = mlp.weights[layer];
  check_like(op, weight, w, "input", mlp.input);
  TORCH_CHECK_VALUE(w.dim() == 2, "fastops.", op, ": ", weight,
                    " must have shape [out_features, in_features], but has ", w.dim(), " dimensions");
  if (layer == 0) {
    TORCH_CHECK_VALUE(w.sym_size(1) == mlp.input.sym_size(-1), "fastops.", op, ": ", weight, " has ", w.sym_size(1),
                      " input features, but input has ", mlp.input.sym_size(-1));
  } else {
    const auto outputs = mlp.weights[layer - 1].sym_size(0);
    TORCH_CHECK_VALUE(w.sym_size(1) == outputs, "fastops.", op, ": ", weight, " has ", w.sym_size(1),
                      " input features, but layer ", layer - 1, " has ", outputs, " outputs");
  }
  check_bias(op, bias, mlp.biases[layer], w.sym_size(0), "input", mlp.input);
}

}  // namespace

MlpArguments check_mlp(std::string_view op, const Tensor& input, at::TensorList weights, const OptionalTensors& biases,
                       std::string_view activation, std::string_view output_activation, c10::ArrayRef<double> params,
                       c10::ArrayRef<double> output_params) {
  TORCH_CHECK_VALUE(!weights.empty(), "fastops.", op, ": weights is empty; it needs one weight for each layer");
  TORCH_CHECK_VALUE(biases.size() == weights.size(), "fastops.", op, ": biases has ", biases.size(),
                    " entries, but weights has ", weights.size(), " (a layer without bias has None)");
  MlpArguments mlp{input,
                   weights,
                   {},
                   activation_spec(op, activation, params),
                   activation_spec(op, output_activation, output_params, "output_")};
  check_tensor(op, "input", input);
  last_size(op, "input", input);
  mlp.biases.reserve(biases.size());
  for (size_t i = 0; i < biases.size(); ++i) mlp.biases.push_back(value_or_undefined(biases.get(i)));
  for (size_t i = 0; i < weights.size(); ++i) check_layer(op, mlp, i, {"weights", i}, {"biases", i});
  return mlp;
}

MlpArguments check_linear_act(const Tensor& input, at::TensorList weight, const std::optional<Tensor>& bias,
                              std::string_view activation, c10::ArrayRef<double> params) {
  constexpr auto op = "linear_act";
  const ActivationSpec identity{Activation::identity, {}};
  MlpArguments mlp{input, weight, {value_or_undefined(bias)}, identity, activation_spec(op, activation, params)};
  check_tensor(op, "input", input);
  last_size(op, "input", input);
  check_layer(op, mlp, 0, "weight", "bias");
  return mlp;
}

MlpArguments check_mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                const OptionalTensors& biases, const std::optional<Tensor>& output,
                                at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                const c10::List<bool>& output_mask) {
  constexpr auto op = "mlp_backward";
  MlpArguments mlp = check_mlp(op, input, weights, biases, activation, output_activation, params, output_params);
  const size_t expected = mlp.layers() - 1 + (mlp.saves(mlp.layers() - 1) ? 1 : 0);
  TORCH_CHECK_VALUE(saved.size() == expected, "fastops.", op, ": saved has ", saved.size(), " tensors, but must have ",
                    expected, ", as mlp_forward returned them");
  TORCH_CHECK_VALUE(!mlp.needs_output() || (output && output->defined()), "fastops.", op,
                    ": output must be given for output_activation ", output_activation);
  TORCH_CHECK_VALUE(output_mask.size() == 1 + 2 * mlp.layers(), "fastops.", op, ": output_mask has ",
                    output_mask.size(), " entries, but must have ", 1 + 2 * mlp.layers());
  const auto check_layer_tensor = [&](Argument name, const Tensor& tensor, size_t layer) {
    check_like(op, name, tensor, "input", input);
    auto sizes = input.sym_sizes().vec();
    sizes.back() = weights[layer].sym_size(0);
    TORCH_CHECK_VALUE(tensor.sym_sizes().equals(sizes), "fastops.", op, ": ", name, " has shape ", tensor.sym_sizes(),
                      ", but must have shape ", c10::SymIntArrayRef(sizes));
  };
  check_layer_tensor("grad_output", grad_output, mlp.layers() - 1);
  if (mlp.needs_output()) check_layer_tensor("output", *output, mlp.layers() - 1);
  for (size_t i = 0; i < saved.size(); ++i) check_layer_tensor({"saved", i}, saved[i], i);
  return mlp;
}

Tensor composite_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  Tensor h = mlp.input;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const ActivationSpec& activation = mlp.activation_of(i);
    const Tensor z = linear(h, mlp.weights[i], mlp.biases[i], mlp.ensemble);
    h = activation.id == Activation::identity ? z : bias_act(z, std::nullopt, activation);
    if (saved && mlp.saves(i)) saved->push_back(mlp.saves_output(i) ? h : z);
  }
  return h;
}

namespace {

LayerSteps::Forward forward_step(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f,
                                 bool keeps_z) {
  if (f.id == Activation::identity || keeps_z) {
    Tensor z = bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
    Tensor y = f.id == Activation::identity ? z : bias_act(z, std::nullopt, f);
    return {std::move(z), std::move(y)};
  }
  auto [z, rest] = project(x, weight, bias);
  bias_act_out(z, rest, f, z);
  return {{}, std::move(z)};
}

LayerSteps::Backward backward_step(const Tensor& grad, const Tensor& saved, const ActivationSpec& f, bool from_output,
                                   LayerSteps::Wanted wanted, bool) {
  LayerSteps::Backward results;
  if (wanted.grad || wanted.bias_grad) {
    auto grads = bias_act_backward(grad, saved, std::nullopt, f, from_output, {wanted.grad, wanted.bias_grad});
    if (wanted.bias_grad) results.bias_grad = grads.back();
    if (wanted.grad) results.grad = grads.front();
  }
  if (wanted.y) results.y = from_output ? saved : bias_act(saved, std::nullopt, f);
  return results;
}

}  // namespace

const LayerSteps layer_steps{forward_step, backward_step, product};

std::vector<Tensor> layered_mlp_backward(const MlpArguments& mlp, const Tensor& grad_output,
                                         const std::optional<Tensor>& output, at::TensorList saved,
                                         const c10::List<bool>& output_mask, const LayerSteps& steps) {
  const size_t layers = mlp.layers();
  const auto wants_weight = [&](size_t layer) { return layer < layers && output_mask.get(1 + 2 * layer); };
  const auto wants_bias = [&](size_t layer) { return output_mask.get(2 + 2 * layer); };
  std::vector<Tensor> grads(output_mask.size());

  // The lowest place that a gradient is wanted for: nothing below it is computed.
  size_t lowest = 0;
  while (lowest < output_mask.size() && !output_mask.get(lowest)) ++lowest;

  const auto weight_gradient = [&](size_t layer, const Tensor& dz, const Tensor& x) {
    return is_transposed(mlp.weights[layer]) ? steps.product(x.mT(), dz).mT() : steps.product(dz.mT(), x);
  };
  // The step of a layer; for an ensemble the sums are those of each network.
  const auto step_back = [&](const Tensor& grad, size_t layer, LayerSteps::Wanted wanted, bool disposable) {
    const ActivationSpec& activation = mlp.activation_of(layer);
    const bool from_output = mlp.saves_output(layer);
    const Tensor at = as_matrix(layer < saved.size() ? saved[layer] : *output, mlp.ensemble);
    if (!mlp.ensemble || !wanted.bias_grad) {
      return steps.backward(grad, at, activation, from_output, wanted, disposable);
    }
    auto results = steps.backward(grad, at, activation, from_output, {true, false, wanted.y}, disposable);
    results.bias_grad = results.grad.sum(-2);
    return results;
  };

  const auto sum_of_rows = [&](const Tensor& grad) {
    if (mlp.ensemble) return grad.sum(-2);
    return steps.backward(grad, grad, mlp.output_activation, /*from_output=*/true, {false, true, false}, false)
        .bias_grad;
  };

  Tensor grad = as_matrix(grad_output, mlp.ensemble);  // that of layer i's output
  Tensor above;                                        // that of z of layer i + 1
  for (size_t i = layers; i-- > 0;) {
    const LayerSteps::Wanted wanted{wants_weight(i) || lowest < 1 + 2 * i, wants_bias(i), wants_weight(i + 1)};
    LayerSteps::Backward here;
    if (i + 1 == layers && mlp.output_activation.id == Activation::identity) {
      here.grad = grad;
      if (wanted.bias_grad) here.bias_grad = sum_of_rows(grad);
    } else if (wanted.grad || wanted.bias_grad || wanted.y) {
      here = step_back(grad, i, wanted, /*disposable=*/i + 1 < layers);
    }
    grads[2 + 2 * i] = here.bias_grad;
    if (wants_weight(i + 1)) grads[3 + 2 * i] = weight_gradient(i + 1, above, here.y);
    if (!wanted.grad) break;
    above = here.grad;
    if (lowest < 1 + 2 * i) grad = steps.product(above, mlp.weights[i]);
  }
  if (wants_weight(0)) grads[1] = weight_gradient(0, above, as_matrix(mlp.input, mlp.ensemble));
  if (output_mask.get(0)) grads[0] = grad.view_symint(mlp.input.sym_sizes());

  grads.erase(std::remove_if(grads.begin(), grads.end(), [](const Tensor& g) { return !g.defined(); }), grads.end());
  return grads;
}

std::vector<Tensor> composite_mlp_backward(const MlpArguments& mlp, const Tensor& grad_output,
                                           const c10::List<bool>& output_mask) {
  std::vector<Tensor> saved;
  const Tensor output = composite_mlp(mlp, &saved);
  return layered_mlp_backward(mlp, grad_output, output, saved, output_mask);
}

Tensor layered_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved, const LayerSteps& steps) {
  Tensor h = as_matrix(mlp.input);
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const ActivationSpec& activation = mlp.activation_of(i);
    const bool saves = saved && mlp.saves(i);
    const bool saves_z = saves && !mlp.saves_output(i);
    auto layer = steps.forward(h, mlp.weights[i], mlp.biases[i], activation, saves_z);
    h = std::move(layer.y);
    if (saves) saved->push_back(with_leading_dims(saves_z ? layer.z : h, mlp.input));
  }
  return with_leading_dims(h, mlp.input);
}

namespace {

Tensor layered(FASTOPS_MLP_PARAMETERS, bool) { return layered_mlp(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), nullptr); }

std::tuple<Tensor, std::vector<Tensor>> layered_forward(FASTOPS_MLP_PARAMETERS) {
  std::vector<Tensor> saved;
  Tensor output = layered_mlp(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), &saved);
  return {std::move(output), std::move(saved)};
}

Tensor composite(FASTOPS_MLP_PARAMETERS, bool) {
  return composite_mlp(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), nullptr);
}

std::tuple<Tensor, std::vector<Tensor>> composite_forward(FASTOPS_MLP_PARAMETERS) {
  std::vector<Tensor> saved;
  Tensor output = composite_mlp(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), &saved);
  return {std::move(output), std::move(saved)};
}

Tensor empty_output(const MlpArguments& mlp, size_t layer) {
  auto sizes = mlp.input.sym_sizes().vec();
  sizes.back() = mlp.weights[layer].sym_size(0);
  return at::empty_symint(sizes, mlp.input.options());
}

Tensor meta(FASTOPS_MLP_PARAMETERS, bool) {
  const MlpArguments mlp = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  return empty_output(mlp, mlp.layers() - 1);
}

std::tuple<Tensor, std::vector<Tensor>> meta_forward(FASTOPS_MLP_PARAMETERS) {
  const MlpArguments mlp = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  std::vector<Tensor> saved;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    if (mlp.saves(i)) saved.push_back(empty_output(mlp, i));
  }
  return {empty_output(mlp, mlp.layers() - 1), std::move(saved)};
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                             const OptionalTensors& biases, const std::optional<Tensor>& output, at::TensorList saved,
                             std::string_view activation, std::string_view output_activation,
                             c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                             const c10::List<bool>& output_mask) {
  const MlpArguments mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                              output_activation, params, output_params, output_mask);
  return layered_mlp_backward(mlp, grad_output, output, saved, output_mask);
}

std::vector<Tensor> composite_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                       const OptionalTensors& biases, const std::optional<Tensor>& output,
                                       at::TensorList saved, std::string_view activation,
                                       std::string_view output_activation, c10::ArrayRef<double> params,
                                       c10::ArrayRef<double> output_params, const c10::List<bool>& output_mask) {
  const MlpArguments mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                              output_activation, params, output_params, output_mask);
  return composite_mlp_backward(mlp, grad_output, output_mask);
}

std::vector<Tensor> backward_meta(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                  const OptionalTensors& biases, const std::optional<Tensor>& output,
                                  at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                  c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                  const c10::List<bool>& output_mask) {
  check_mlp_backward(grad_output, input, weights, biases, output, saved, activation, output_activation, params,
                     output_params, output_mask);
  std::vector<Tensor> grads;
  if (output_mask.get(0)) grads.push_back(at::empty_symint(input.sym_sizes(), input.options()));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (output_mask.get(1 + 2 * i)) {
      grads.push_back(in_layout_of(weights[i], at::empty_symint(weights[i].sym_sizes(), input.options())));
    }
    if (output_mask.get(2 + 2 * i)) grads.push_back(at::empty_symint({weights[i].sym_size(0)}, input.options()));
  }
  return grads;
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor autocast(FASTOPS_MLP_PARAMETERS, bool checkpoint) {
  const AutocastScope scope("mlp", device, key);
  return mlp_op().call(scope.lower("input", input), scope.lower("weights", weights), scope.lower("biases", biases),
                       activation, output_activation, params, output_params, checkpoint);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  const std::string arguments =
      "(Tensor input, Tensor[] weights, Tensor?[] biases, str activation, str output_activation='identity', "
      "float[] params=[], float[] output_params=[]";
  define(m, "mlp" + arguments + ", bool checkpoint=False) -> Tensor");
  define(m, "mlp_forward" + arguments + ") -> (Tensor output, Tensor[] saved)");
  define(m,
         "mlp_backward(Tensor grad_output, Tensor input, Tensor[] weights, Tensor?[] biases, Tensor? output, "
         "Tensor[] saved, str activation, str output_activation, float[] params, float[] output_params, "
         "bool[] output_mask) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  m.impl("mlp", TORCH_FN(meta));
  m.impl("mlp_forward", TORCH_FN(meta_forward));
  m.impl("mlp_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  m.impl("mlp", FASTOPS_COMPOSITE("mlp", layered));
  m.impl("mlp_forward", FASTOPS_COMPOSITE("mlp_forward", layered_forward));
  m.impl("mlp_backward", FASTOPS_COMPOSITE("mlp_backward", backward));
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list. Also
// what fastops.decompositions() takes: nothing here is computed in place.
TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  m.impl("mlp", TORCH_FN(composite));
  m.impl("mlp_forward", TORCH_FN(composite_forward));
  m.impl("mlp_backward", TORCH_FN(composite_backward));
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                           \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                         \
    m.impl("mlp", TORCH_FN((autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>)));                        \
    m.impl("mlp_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("mlp_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
