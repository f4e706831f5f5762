#include "ops/mlp.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <string>

#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/mlp_family.h"
#include "torch_internal/functorch.h"

namespace fastops {

namespace {

void check_members(std::string_view op, const MlpArguments& mlp, size_t layer, Argument weight) {
  const c10::SymInt members = mlp.weights[layer].sym_size(0);
  if (layer == 0) {
    TORCH_CHECK_VALUE(mlp.input.dim() >= 2 && mlp.input.sym_size(0) == members, "fastops.", op,
                      ": input must have shape [members, ..., in_features] for the ", members, " members of ", weight,
                      ", but has shape ", mlp.input.sym_sizes());
  } else {
    const c10::SymInt first = mlp.weights[0].sym_size(0);
    TORCH_CHECK_VALUE(members == first, "fastops.", op, ": ", weight, " has ", members, " members, but weights[0] has ",
                      first);
  }
}

void check_layer(std::string_view op, const MlpArguments& mlp, size_t layer, Argument weight, Argument bias) {
  const Tensor& w = mlp.weights[layer];
  check_like(op, weight, w, "input", mlp.input);
  const int64_t dims = mlp.ensemble ? 3 : 2;
  TORCH_CHECK_VALUE(w.dim() == dims, "fastops.", op, ": ", weight, " must have shape [",
                    mlp.ensemble ? "members, " : "", "out_features, in_features], but has ", w.dim(), " dimensions");
  if (mlp.ensemble) check_members(op, mlp, layer, weight);
  const c10::SymInt in_features = w.sym_size(-1);
  if (layer == 0) {
    TORCH_CHECK_VALUE(in_features == mlp.input.sym_size(-1), "fastops.", op, ": ", weight, " has ", in_features,
                      " input features, but input has ", mlp.input.sym_size(-1));
  } else {
    const auto outputs = mlp.weights[layer - 1].sym_size(-2);
    TORCH_CHECK_VALUE(in_features == outputs, "fastops.", op, ": ", weight, " has ", in_features,
                      " input features, but layer ", layer - 1, " has ", outputs, " outputs");
  }
  check_bias(op, bias, mlp.biases[layer], w.sym_sizes().slice(0, dims - 1), "input", mlp.input);
}

MlpArguments resolve(std::string_view op, const MlpForward& mlp) {
  MlpArguments arguments{mlp.input,
                         mlp.weights,
                         {},
                         activation_spec(op, mlp.activation, mlp.params),
                         activation_spec(op, mlp.output_activation, mlp.output_params, "output_"),
                         is_ensemble(mlp.weights)};
  const OptionalTensors& biases = mlp.biases;
  arguments.biases.reserve(biases.size());
  for (size_t i = 0; i < biases.size(); ++i) arguments.biases.push_back(value_or_undefined(biases.get(i)));
  return arguments;
}

}  // namespace

MlpArguments check_mlp(std::string_view op, const MlpForward& mlp) {
  const size_t biases = mlp.biases.get().size();
  TORCH_CHECK_VALUE(!mlp.weights.empty(), "fastops.", op, ": weights is empty; it needs one weight for each layer");
  TORCH_CHECK_VALUE(biases == mlp.weights.size(), "fastops.", op, ": biases has ", biases, " entries, but weights has ",
                    mlp.weights.size(), " (a layer without bias has None)");
  MlpArguments arguments = resolve(op, mlp);
  check_tensor(op, "input", mlp.input);
  last_size(op, "input", mlp.input);
  for (size_t i = 0; i < biases; ++i) check_layer(op, arguments, i, {"weights", i}, {"biases", i});
  return arguments;
}

MlpArguments MlpForward::checked() const { return check_mlp("mlp", *this); }

MlpArguments MlpForward::resolved() const { return resolve("mlp", *this); }

MlpArguments LinearAct::checked() const {
  const ActivationSpec identity{Activation::identity, {}};
  MlpArguments mlp{
      input, weight.get(), {value_or_undefined(bias)}, identity, activation_spec(name, activation, params)};
  check_tensor(name, "input", input);
  last_size(name, "input", input);
  check_layer(name, mlp, 0, "weight", "bias");
  return mlp;
}

void check_layer_tensor(std::string_view op, Argument argument, const Tensor& tensor, const MlpArguments& mlp,
                        size_t layer) {
  check_shape(op, argument, tensor, sizes_with(mlp.input, mlp.weights[layer].sym_size(-2)), "input", mlp.input);
}

MlpGradientArguments check_gradients(std::string_view op, const MlpArguments& mlp, const Tensor& grad_output,
                                     at::TensorList saved, size_t expected_saved, const c10::List<bool>& output_mask) {
  TORCH_CHECK_VALUE(saved.size() == expected_saved, "fastops.", op, ": saved has ", saved.size(),
                    " tensors, but must have ", expected_saved, ", as the forward op returned them");
  TORCH_CHECK_VALUE(output_mask.size() == 1 + 2 * mlp.layers(), "fastops.", op, ": output_mask has ",
                    output_mask.size(), " entries, but must have ", 1 + 2 * mlp.layers());
  check_layer_tensor(op, "grad_output", grad_output, mlp, mlp.layers() - 1);
  for (size_t i = 0; i < saved.size(); ++i) check_layer_tensor(op, {"saved", i}, saved[i], mlp, i);
  MlpGradientArguments gradients{grad_output, saved, {}};
  for (const bool wanted : output_mask) gradients.output_mask.push_back(wanted);
  return gradients;
}

MlpBackwardArguments MlpBackward::checked() const {
  MlpArguments mlp = check_mlp(name, {input, weights, biases, activation, output_activation, params, output_params});
  const size_t last = mlp.layers() - 1;
  const Tensor& kept_output = value_or_undefined(output);
  TORCH_CHECK_VALUE(!mlp.needs_output() || kept_output.defined(), "fastops.", name,
                    ": output must be given for output_activation ", output_activation);
  MlpGradientArguments gradients =
      check_gradients(name, mlp, grad_output, saved, last + (mlp.saves(last) ? 1 : 0), output_mask);
  if (kept_output.defined()) check_layer_tensor(name, "output", kept_output, mlp, last);
  return {std::move(mlp), std::move(gradients), kept_output};
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

namespace {

// A layer's weight, without the dimension of an ensemble's members if these share it, expanded: a product for all. The
// gradient of an expanded tensor has a part for each member, though.
Tensor of_all_members(const MlpArguments& mlp, size_t layer) {
  const Tensor& weight = mlp.weights[layer];
  const bool is_shared = mlp.ensemble && TORCH_GUARD_OR_FALSE(weight.sym_stride(0).sym_eq(0)) &&
                         TORCH_GUARD_OR_FALSE(weight.sym_size(0).sym_gt(0));
  return is_shared && !may_be_differentiated(weight) ? weight.select(0, 0) : weight;
}

}  // namespace

const LayerSteps layer_steps{forward_step, backward_step, product};

std::vector<Tensor> layered_mlp_backward(const MlpBackwardArguments& mlp, const LayerSteps& steps) {
  const size_t layers = mlp.layers();
  const size_t lowest = mlp.lowest_wanted();
  std::vector<Tensor> grads(mlp.output_mask.size());

  const auto multiply = mlp.ensemble ? product : steps.product;
  // The step of a layer; for an ensemble the sums are those of each network.
  const auto step_back = [&](const Tensor& grad, size_t layer, LayerSteps::Wanted wanted, bool disposable) {
    const ActivationSpec& activation = mlp.activation_of(layer);
    const bool from_output = mlp.saves_output(layer);
    const Tensor at = as_matrix(mlp.kept(layer), mlp.ensemble);
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

  Tensor grad = as_matrix(mlp.grad_output, mlp.ensemble);  // that of layer i's output
  Tensor above;                                            // that of z of layer i + 1
  for (size_t i = layers; i-- > 0;) {
    const bool wants_weight_above = i + 1 < layers && mlp.wants_weight(i + 1);
    const LayerSteps::Wanted wanted{mlp.wants_weight(i) || lowest < 1 + 2 * i, mlp.wants_bias(i), wants_weight_above};
    LayerSteps::Backward here;
    if (i + 1 == layers && mlp.output_activation.id == Activation::identity) {
      here.grad = grad;
      if (wanted.bias_grad) here.bias_grad = sum_of_rows(grad);
    } else if (wanted.grad || wanted.bias_grad || wanted.y) {
      here = step_back(grad, i, wanted, /*disposable=*/i + 1 < layers);
    }
    grads[2 + 2 * i] = here.bias_grad;
    if (wants_weight_above) grads[3 + 2 * i] = gradient_of_weight(mlp.weights[i + 1], above, here.y, multiply);
    if (!wanted.grad) break;
    above = here.grad;
    if (lowest < 1 + 2 * i) grad = multiply(above, of_all_members(mlp, i));
  }
  if (mlp.wants_weight(0)) {
    grads[1] = gradient_of_weight(mlp.weights[0], above, as_matrix(mlp.input, mlp.ensemble), multiply);
  }
  if (mlp.wants_input()) grads[0] = grad.view_symint(mlp.input.sym_sizes());

  grads.erase(std::remove_if(grads.begin(), grads.end(), [](const Tensor& g) { return !g.defined(); }), grads.end());
  return grads;
}

std::vector<Tensor> composite_mlp_backward(MlpBackwardArguments mlp) {
  std::vector<Tensor> saved;
  mlp.output = composite_mlp(mlp, &saved);
  mlp.saved = saved;
  return layered_mlp_backward(mlp);
}

Tensor layered_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved, const LayerSteps& steps) {
  if (mlp.ensemble) return composite_mlp(mlp, saved);
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

Tensor mlp_fallback(const MlpArguments& mlp, std::vector<Tensor>* saved) { return layered_mlp(mlp, saved); }

std::vector<Tensor> mlp_backward_fallback(const MlpBackwardArguments& mlp) { return layered_mlp_backward(mlp); }

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
  implement<Mlp, output_by<MlpArguments, output_meta<MlpArguments>>>(m);
  implement<MlpForward, output_and_saved_by<MlpArguments, output_meta<MlpArguments>>>(m);
  implement<MlpBackward, gradients_meta<MlpBackwardArguments>>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<Mlp, output_by<MlpArguments, mlp_fallback>>(m);
  implement_fallback<MlpForward, output_and_saved_by<MlpArguments, mlp_fallback>>(m);
  implement_fallback<MlpBackward, mlp_backward_fallback>(m);
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list. Also
// what fastops.decompositions() takes: nothing here is computed in place.
TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  implement<Mlp, output_by<MlpArguments, composite_mlp>>(m);
  implement<MlpForward, output_and_saved_by<MlpArguments, composite_mlp>>(m);
  implement<MlpBackward, composite_mlp_backward>(m);
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                           \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                         \
    implement<Mlp, lowered_by_autocast<Mlp, c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m);                \
    m.impl("mlp_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("mlp_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
