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

GatedMlpArguments GatedMlpForward::resolved() const {
  return {input,
          gate_weight,
          up_weight,
          down_weight,
          value_or_undefined(gate_bias),
          value_or_undefined(up_bias),
          value_or_undefined(down_bias),
          activation_spec("gated_mlp", activation, params)};
}

GatedMlpArguments GatedMlpForward::checked() const {
  constexpr auto op = "gated_mlp";
  GatedMlpArguments mlp = resolved();
  check_tensor(op, "input", input);
  const c10::SymInt in_features = last_size(op, "input", input);
  const auto check_weight = [&](const char* argument, const Tensor& weight, const c10::SymInt& columns,
                                const char* columns_of) {
    check_like(op, argument, weight, "input", input);
    TORCH_CHECK_VALUE(weight.dim() == 2, "fastops.", op, ": ", argument,
                      " must have shape [out_features, in_features], but has ", weight.dim(), " dimensions");
    TORCH_CHECK_VALUE(weight.sym_size(1) == columns, "fastops.", op, ": ", argument, " has ", weight.sym_size(1),
                      " input features, but ", columns_of, " has ", columns);
  };
  check_weight("gate_weight", mlp.gate_weight, in_features, "input");
  check_weight("up_weight", mlp.up_weight, in_features, "input");
  const c10::SymInt hidden = mlp.gate_weight.sym_size(0);
  TORCH_CHECK_VALUE(mlp.up_weight.sym_size(0) == hidden, "fastops.", op, ": up_weight has ", mlp.up_weight.sym_size(0),
                    " outputs, but gate_weight has ", hidden);
  check_weight("down_weight", mlp.down_weight, hidden, "the hidden layer (gate_weight's outputs)");
  check_bias(op, "gate_bias", gate_bias, {hidden}, "input", input);
  check_bias(op, "up_bias", up_bias, {hidden}, "input", input);
  check_bias(op, "down_bias", down_bias, {mlp.down_weight.sym_size(0)}, "input", input);
  return mlp;
}

GatedMlpBackwardArguments GatedMlpBackward::checked() const {
  const std::optional<Tensor> no_bias;
  const GatedMlpForward forward{input,   gate_weight, up_weight,  down_weight, gate_bias,
                                up_bias, no_bias,     activation, params};
  const GatedMlpArguments mlp = forward.checked();
  const auto check = [&](const char* argument, const Tensor& tensor, const Tensor& weight) {
    check_shape(name, argument, tensor, sizes_with(mlp.input, weight.sym_size(0)), "input", input);
  };
  check("grad_output", grad_output, mlp.down_weight);
  check("gate", gate, mlp.gate_weight);
  check("up", up, mlp.gate_weight);
  return {mlp, grad_output, gate, up, output_mask};
}

std::tuple<Tensor, Tensor, Tensor> composite_gated_mlp(const GatedMlpArguments& mlp) {
  const Tensor gate = linear(mlp.input, mlp.gate_weight, mlp.gate_bias, mlp.ensemble);
  const Tensor up = linear(mlp.input, mlp.up_weight, mlp.up_bias, mlp.ensemble);
  return {linear(act_mul(gate, up, mlp.activation), mlp.down_weight, mlp.down_bias, mlp.ensemble), gate, up};
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

Tensor sum_of_rows(const Tensor& matrix) { return matrix.sum(0); }

}  // namespace

const GatedSteps gated_steps{backward_step, product, sum_of_rows};

std::vector<Tensor> layered_gated_mlp_backward(const GatedMlpBackwardArguments& mlp, const GatedSteps& steps) {
  const auto [wants_input, wants_gate_weight, wants_up_weight, wants_down_weight, wants_gate_bias, wants_up_bias,
              wants_down_bias] = mlp.output_mask;
  const Tensor grad = as_matrix(mlp.grad_output, mlp.ensemble);
  const Tensor gate = as_matrix(mlp.gate, mlp.ensemble);
  const Tensor up = as_matrix(mlp.up, mlp.ensemble);
  const Tensor x = as_matrix(mlp.input, mlp.ensemble);
  const bool wants_gate = wants_input || wants_gate_weight || wants_gate_bias;
  const bool wants_up = wants_input || wants_up_weight || wants_up_bias;
  const auto bias_gradient = [&](const Tensor& grad) { return mlp.ensemble ? grad.sum(-2) : steps.sum_of_rows(grad); };

  std::array<Tensor, 7> grads;
  if (wants_down_bias) grads[6] = bias_gradient(grad);
  if (wants_gate || wants_up || wants_down_weight) {
    // For the hidden values alone any matrix serves as their gradient: they have the same bits, whatever is wanted.
    const Tensor grad_hidden = wants_gate || wants_up ? steps.product(grad, mlp.down_weight) : gate;
    const auto [grad_gate, grad_up, hidden] =
        steps.backward(grad_hidden, gate, up, mlp.activation, {wants_gate, wants_up, wants_down_weight});
    if (wants_down_weight) grads[3] = gradient_of_weight(mlp.down_weight, grad, hidden, steps.product);
    if (wants_gate_weight) grads[1] = gradient_of_weight(mlp.gate_weight, grad_gate, x, steps.product);
    if (wants_up_weight) grads[2] = gradient_of_weight(mlp.up_weight, grad_up, x, steps.product);
    if (wants_gate_bias) grads[4] = bias_gradient(grad_gate);
    if (wants_up_bias) grads[5] = bias_gradient(grad_up);
    if (wants_input) {
      const Tensor through_gate = steps.product(grad_gate, mlp.gate_weight);
      const Tensor both = mlp.ensemble ? through_gate + steps.product(grad_up, mlp.up_weight)
                                       : through_gate.addmm(grad_up, mlp.up_weight);
      grads[0] = both.view_symint(mlp.input.sym_sizes());
    }
  }
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (mlp.output_mask[i]) wanted.push_back(grads[i]);
  }
  return wanted;
}

std::vector<Tensor> composite_gated_mlp_backward(GatedMlpBackwardArguments mlp) {
  mlp.gate = linear(mlp.input, mlp.gate_weight, mlp.gate_bias, mlp.ensemble);
  mlp.up = linear(mlp.input, mlp.up_weight, mlp.up_bias, mlp.ensemble);
  return layered_gated_mlp_backward(mlp);
}

namespace {

// The output of kernel(mlp), which returns (output, gate, up).
template <auto kernel>
Tensor gated_mlp_by(const GatedMlpArguments& mlp) {
  return std::get<0>(kernel(mlp));
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_forward_meta(const GatedMlpArguments& mlp) {
  const auto empty = [&](const Tensor& weight) {
    return at::empty_symint(sizes_with(mlp.input, weight.sym_size(0)), mlp.input.options());
  };
  return {empty(mlp.down_weight), empty(mlp.gate_weight), empty(mlp.gate_weight)};
}

std::vector<Tensor> gated_mlp_backward_fallback(const GatedMlpBackwardArguments& mlp) {
  return layered_gated_mlp_backward(mlp);
}

std::vector<Tensor> gated_mlp_backward_meta(const GatedMlpBackwardArguments& mlp) {
  const auto empty = [&](c10::SymIntArrayRef sizes) { return at::empty_symint(sizes, mlp.input.options()); };
  const std::array weights = {mlp.gate_weight, mlp.up_weight, mlp.down_weight};
  std::vector<Tensor> grads;
  if (mlp.output_mask[0]) grads.push_back(empty(mlp.input.sym_sizes()));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (mlp.output_mask[1 + i]) grads.push_back(in_layout_of(weights[i], empty(weights[i].sym_sizes())));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (mlp.output_mask[4 + i]) grads.push_back(empty({weights[i].sym_size(0)}));
  }
  return grads;
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor gated_mlp_autocast(const GatedMlp& op) {
  const AutocastScope scope(GatedMlp::name, device, key);
  const Tensor input = scope.lower("input", op.input.get());
  const Tensor gate_weight = scope.lower("gate_weight", op.gate_weight.get());
  const Tensor up_weight = scope.lower("up_weight", op.up_weight.get());
  const Tensor down_weight = scope.lower("down_weight", op.down_weight.get());
  const std::optional<Tensor> gate_bias = scope.lower("gate_bias", op.gate_bias.get());
  const std::optional<Tensor> up_bias = scope.lower("up_bias", op.up_bias.get());
  const std::optional<Tensor> down_bias = scope.lower("down_bias", op.down_bias.get());
  return call_op(
      GatedMlp{{input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, op.activation, op.params},
               op.checkpoint});
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
  implement<GatedMlp, gated_mlp_by<gated_mlp_forward_meta>>(m);
  implement<GatedMlpForward, gated_mlp_forward_meta>(m);
  implement<GatedMlpBackward, gated_mlp_backward_meta>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<GatedMlp, gated_mlp_by<composite_gated_mlp>>(m);
  implement_fallback<GatedMlpForward, composite_gated_mlp>(m);
  implement_fallback<GatedMlpBackward, gated_mlp_backward_fallback>(m);
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  implement<GatedMlpForward, composite_gated_mlp>(m);
  implement<GatedMlpBackward, composite_gated_mlp_backward>(m);
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                                 \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                               \
    implement<GatedMlp, gated_mlp_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m);                       \
    m.impl("gated_mlp_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("gated_mlp_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
