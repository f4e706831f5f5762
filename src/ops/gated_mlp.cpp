#include "ops/gated_mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "ops/autocast.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/gated_act.h"
#include "ops/matrix.h"

namespace fastops {

const c10::TypedOperatorHandle<GatedMlp>& gated_mlp_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::gated_mlp", "").typed<GatedMlp>();
  return op;
}

const c10::TypedOperatorHandle<GatedMlpForward>& gated_mlp_forward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::gated_mlp_forward", "").typed<GatedMlpForward>();
  return op;
}

const c10::TypedOperatorHandle<GatedMlpBackward>& gated_mlp_backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::gated_mlp_backward", "").typed<GatedMlpBackward>();
  return op;
}

GatedMlpArguments check_gated_mlp(const Tensor& input, const Tensor& gate_weight, const Tensor& up_weight,
                                  const Tensor& down_weight, const std::optional<Tensor>& gate_bias,
                                  const std::optional<Tensor>& up_bias, const std::optional<Tensor>& down_bias,
                                  std::string_view activation, c10::ArrayRef<double> params) {
  constexpr auto op = "gated_mlp";
  const ActivationSpec spec = activation_spec(op, activation, params);
  check_tensor(op, "input", input);
  const c10::SymInt in_features = last_size(op, "input", input);
  const auto check_weight = [&](const char* name, const Tensor& weight, const c10::SymInt& columns,
                                const char* columns_of) {
    check_like(op, name, weight, "input", input);
    TORCH_CHECK_VALUE(weight.dim() == 2, "fastops.", op, ": ", name,
                      " must have shape [out_features, in_features], but has ", weight.dim(), " dimensions");
    TORCH_CHECK_VALUE(weight.sym_size(1) == columns, "fastops.", op, ": ", name, " has ", weight.sym_size(1),
                      " input features, but ", columns_of, " has ", columns);
  };
  check_weight("gate_weight", gate_weight, in_features, "input");
  check_weight("up_weight", up_weight, in_features, "input");
  TORCH_CHECK_VALUE(up_weight.sym_size(0) == gate_weight.sym_size(0), "fastops.", op, ": up_weight has ",
                    up_weight.sym_size(0), " outputs, but gate_weight has ", gate_weight.sym_size(0));
  check_weight("down_weight", down_weight, gate_weight.sym_size(0), "the hidden layer (gate_weight's outputs)");
  check_bias(op, "gate_bias", gate_bias, gate_weight.sym_size(0), "input", input);
  check_bias(op, "up_bias", up_bias, up_weight.sym_size(0), "input", input);
  check_bias(op, "down_bias", down_bias, down_weight.sym_size(0), "input", input);
  return {input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, spec};
}

GatedMlpArguments check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS) {
  constexpr auto op = "gated_mlp_backward";
  auto mlp =
      check_gated_mlp(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, std::nullopt, activation, params);
  const auto check_shape = [&](const char* name, const Tensor& tensor, const c10::SymInt& features) {
    check_like(op, name, tensor, "input", input);
    auto sizes = input.sym_sizes().vec();
    sizes.back() = features;
    TORCH_CHECK_VALUE(tensor.sym_sizes().equals(sizes), "fastops.", op, ": ", name, " has shape ", tensor.sym_sizes(),
                      ", but must have shape ", c10::SymIntArrayRef(sizes));
  };
  check_shape("grad_output", grad_output, down_weight.sym_size(0));
  check_shape("gate", gate, gate_weight.sym_size(0));
  check_shape("up", up, gate_weight.sym_size(0));
  return mlp;
}

namespace {

Tensor project(const GatedMlpArguments& mlp, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return linear(x, weight, bias.value_or(Tensor()), mlp.ensemble);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> composite_gated_mlp(const GatedMlpArguments& mlp) {
  const Tensor gate = project(mlp, mlp.input, mlp.gate_weight, mlp.gate_bias);
  const Tensor up = project(mlp, mlp.input, mlp.up_weight, mlp.up_bias);
  return {project(mlp, act_mul(gate, up, mlp.activation), mlp.down_weight, mlp.down_bias), gate, up};
}

namespace {

GatedGradients backward_step(const Tensor& grad, const Tensor& gate, const Tensor& up, const ActivationSpec& f,
                             std::array<bool, 3> wanted) {
  GatedGradients results;
  if (wanted[2]) results.product = act_mul(gate, up, f);
  if (wanted[0] || wanted[1]) {
    auto grads = act_mul_backward(grad, gate, up, f, {wanted[0], wanted[1]});
    if (wanted[1]) results.up = grads.back();
    if (wanted[0]) results.gate = grads.front();
  }
  return results;
}

}  // namespace

const GatedSteps gated_steps{backward_step, product};

std::vector<Tensor> layered_gated_mlp_backward(const GatedMlpArguments& mlp, const Tensor& grad_output,
                                               const Tensor& gate, const Tensor& up, std::array<bool, 7> output_mask,
                                               const GatedSteps& steps) {
  const auto [wants_input, wants_gate_weight, wants_up_weight, wants_down_weight, wants_gate_bias, wants_up_bias,
              wants_down_bias] = output_mask;
  const Tensor grad = as_matrix(grad_output, mlp.ensemble);
  const Tensor g = as_matrix(gate, mlp.ensemble);
  const Tensor u = as_matrix(up, mlp.ensemble);
  const Tensor x = as_matrix(mlp.input, mlp.ensemble);
  const bool wants_gate = wants_input || wants_gate_weight || wants_gate_bias;
  const bool wants_up = wants_input || wants_up_weight || wants_up_bias;

  std::array<Tensor, 7> grads;
  if (wants_down_bias) grads[6] = grad.sum(-2);
  if (!wants_gate && !wants_up) {
    if (wants_down_weight) grads[3] = steps.product(grad.mT(), act_mul(g, u, mlp.activation));
  } else {
    const auto [grad_gate, grad_up, hidden] = steps.backward(steps.product(grad, mlp.down_weight), g, u, mlp.activation,
                                                             {wants_gate, wants_up, wants_down_weight});
    if (wants_down_weight) grads[3] = steps.product(grad.mT(), hidden);
    if (wants_gate_weight) grads[1] = steps.product(grad_gate.mT(), x);
    if (wants_up_weight) grads[2] = steps.product(grad_up.mT(), x);
    if (wants_gate_bias) grads[4] = grad_gate.sum(-2);
    if (wants_up_bias) grads[5] = grad_up.sum(-2);
    if (wants_input) {
      const Tensor through_gate = steps.product(grad_gate, mlp.gate_weight);
      const Tensor both = mlp.ensemble ? through_gate + steps.product(grad_up, mlp.up_weight)
                                       : through_gate.addmm(grad_up, mlp.up_weight);
      grads[0] = both.view_symint(mlp.input.sym_sizes());
    }
  }
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (output_mask[i]) wanted.push_back(grads[i]);
  }
  return wanted;
}

std::vector<Tensor> composite_gated_mlp_backward(const GatedMlpArguments& mlp, const Tensor& grad_output,
                                                 std::array<bool, 7> output_mask) {
  const Tensor gate = project(mlp, mlp.input, mlp.gate_weight, mlp.gate_bias);
  const Tensor up = project(mlp, mlp.input, mlp.up_weight, mlp.up_bias);
  return layered_gated_mlp_backward(mlp, grad_output, gate, up, output_mask);
}

namespace {

std::tuple<Tensor, Tensor, Tensor> forward(FASTOPS_GATED_MLP_PARAMETERS) {
  return composite_gated_mlp(check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS));
}

Tensor inference(FASTOPS_GATED_MLP_PARAMETERS, bool) { return std::get<0>(forward(FASTOPS_GATED_MLP_ARGUMENTS)); }

std::tuple<Tensor, Tensor, Tensor> meta_forward(FASTOPS_GATED_MLP_PARAMETERS) {
  check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS);
  const auto empty = [&](const c10::SymInt& features) {
    auto sizes = input.sym_sizes().vec();
    sizes.back() = features;
    return at::empty_symint(sizes, input.options());
  };
  return {empty(down_weight.sym_size(0)), empty(gate_weight.sym_size(0)), empty(gate_weight.sym_size(0))};
}

Tensor meta(FASTOPS_GATED_MLP_PARAMETERS, bool) { return std::get<0>(meta_forward(FASTOPS_GATED_MLP_ARGUMENTS)); }

std::vector<Tensor> backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  return layered_gated_mlp_backward(mlp, grad_output, gate, up, output_mask);
}

std::vector<Tensor> composite_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  return composite_gated_mlp_backward(mlp, grad_output, output_mask);
}

std::vector<Tensor> backward_meta(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  const auto hidden = gate_weight.sym_size(0);
  const std::array<std::vector<c10::SymInt>, 7> sizes = {input.sym_sizes().vec(),
                                                         gate_weight.sym_sizes().vec(),
                                                         up_weight.sym_sizes().vec(),
                                                         down_weight.sym_sizes().vec(),
                                                         {hidden},
                                                         {hidden},
                                                         {down_weight.sym_size(0)}};
  std::vector<Tensor> grads;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (output_mask[i]) grads.push_back(at::empty_symint(sizes[i], input.options()));
  }
  return grads;
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor autocast(FASTOPS_GATED_MLP_PARAMETERS, bool checkpoint) {
  const AutocastScope scope("gated_mlp", device, key);
  return gated_mlp_op().call(scope.lower("input", input), scope.lower("gate_weight", gate_weight),
                             scope.lower("up_weight", up_weight), scope.lower("down_weight", down_weight),
                             scope.lower("gate_bias", gate_bias), scope.lower("up_bias", up_bias),
                             scope.lower("down_bias", down_bias), activation, params, checkpoint);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  const std::string arguments =
      "(Tensor input, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor? gate_bias=None, "
      "Tensor? up_bias=None, Tensor? down_bias=None, str activation='silu', float[] params=[]";
  define(m, "gated_mlp" + arguments + ", bool checkpoint=False) -> Tensor");
  define(m, "gated_mlp_forward" + arguments + ") -> (Tensor output, Tensor gate, Tensor up)");
  define(m,
         "gated_mlp_backward(Tensor grad_output, Tensor input, Tensor gate_weight, Tensor up_weight, "
         "Tensor down_weight, Tensor? gate_bias, Tensor? up_bias, Tensor gate, Tensor up, str activation, "
         "float[] params, bool[7] output_mask) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  m.impl("gated_mlp", TORCH_FN(meta));
  m.impl("gated_mlp_forward", TORCH_FN(meta_forward));
  m.impl("gated_mlp_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  m.impl("gated_mlp", FASTOPS_COMPOSITE("gated_mlp", inference));
  m.impl("gated_mlp_forward", FASTOPS_COMPOSITE("gated_mlp_forward", forward));
  m.impl("gated_mlp_backward", FASTOPS_COMPOSITE("gated_mlp_backward", backward));
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  m.impl("gated_mlp_forward", TORCH_FN(forward));
  m.impl("gated_mlp_backward", TORCH_FN(composite_backward));
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                                 \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                               \
    m.impl("gated_mlp", TORCH_FN((autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>)));                        \
    m.impl("gated_mlp_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("gated_mlp_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
