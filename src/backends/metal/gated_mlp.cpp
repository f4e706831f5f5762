// gated_mlp as PyTorch's matrix products with one kernel after both projections and one for the last bias.
#include "ops/gated_mlp.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "backends/metal/bias_act.h"
#include "backends/metal/gated_act.h"
#include "ops/checks.h"
#include "ops/matrix.h"

namespace fastops::mps {
namespace {

// The output, and gate and up if `saves`.
std::tuple<Tensor, Tensor, Tensor> run_forward(const GatedMlpArguments& mlp, bool saves) {
  const Tensor input = as_matrix(mlp.input);
  const auto [gate, gate_bias] = project(input, mlp.gate_weight, value_or_undefined(mlp.gate_bias));
  const auto [up, up_bias] = project(input, mlp.up_weight, value_or_undefined(mlp.up_bias));
  const Tensor hidden = saves ? at::empty_like(gate) : gate;
  activate_and_multiply(mlp.activation, gate, up, gate_bias, up_bias,
                        saves && (gate_bias.defined() || up_bias.defined()), hidden);
  const auto [output, down_bias] = project(hidden, mlp.down_weight, value_or_undefined(mlp.down_bias));
  if (down_bias.defined()) add_bias_and_activate({Activation::identity, {}}, output, down_bias, {}, output);
  return {with_leading_dims(output, mlp.input), with_leading_dims(gate, mlp.input), with_leading_dims(up, mlp.input)};
}

Tensor gated_mlp(FASTOPS_GATED_MLP_PARAMETERS, bool) {
  return std::get<0>(run_forward(check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS), /*saves=*/false));
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_forward(FASTOPS_GATED_MLP_PARAMETERS) {
  return run_forward(check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS), /*saves=*/true);
}

// What it calls are PyTorch's products and the kernels of act_mul.
std::vector<Tensor> gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  return layered_gated_mlp_backward(mlp, grad_output, gate, up, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) {
  m.impl("gated_mlp", TORCH_FN(gated_mlp));
  m.impl("gated_mlp_forward", TORCH_FN(gated_mlp_forward));
  m.impl("gated_mlp_backward", TORCH_FN(gated_mlp_backward));
}

}  // namespace fastops::mps
