// mlp and linear_act as PyTorch's matrix products with one kernel after each.
//
// The products are of matrices, never PyTorch's linear, which has been wrong with a bias on some Macs, for some shapes.
#include "ops/mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "backends/metal/bias_act.h"
#include "backends/metal/linear_act.h"
#include "ops/matrix.h"

namespace fastops::mps {
namespace {

Tensor run_forward(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  Tensor h = as_matrix(mlp.input);
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const ActivationSpec& activation = mlp.activation_of(i);
    const Tensor& weight = mlp.weights[i];
    const bool saves_output = saved && mlp.saves(i) && mlp.saves_output(i);
    const bool saves_input = saved && mlp.saves(i) && !saves_output;
    const bool fused = use_linear_act(weight);
    const auto [z, bias] = fused ? Projection{at::empty({h.size(0), weight.size(0)}, h.options()), mlp.biases[i]}
                                 : project(h, weight, mlp.biases[i]);
    const Tensor y = saves_input ? at::empty_like(z) : z;
    if (fused) {
      linear_and_activate(activation, h, weight, bias, saves_input ? z : Tensor(), y);
    } else if (bias.defined() || activation.id != Activation::identity) {
      add_bias_and_activate(activation, z, bias, saves_input && bias.defined() ? z : Tensor(), y);
    }
    if (saves_input || saves_output) saved->push_back(with_leading_dims(saves_input ? z : y, mlp.input));
    h = y;
  }
  return with_leading_dims(h, mlp.input);
}

Tensor mlp(FASTOPS_MLP_PARAMETERS, bool) { return run_forward(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), nullptr); }

std::tuple<Tensor, std::vector<Tensor>> mlp_forward(FASTOPS_MLP_PARAMETERS) {
  std::vector<Tensor> saved;
  Tensor output = run_forward(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), &saved);
  return {std::move(output), std::move(saved)};
}

// What it calls are PyTorch's products and the kernels of bias_act_backward.
std::vector<Tensor> mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                 const OptionalTensors& biases, const std::optional<Tensor>& output,
                                 at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                 c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                 const c10::List<bool>& output_mask) {
  const MlpArguments mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                              output_activation, params, output_params, output_mask);
  return layered_mlp_backward(mlp, grad_output, output, saved, output_mask);
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  std::string_view activation, c10::ArrayRef<double> params) {
  return run_forward(check_linear_act(input, weight, bias, activation, params), nullptr);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) {
  m.impl("mlp", TORCH_FN(mlp));
  m.impl("mlp_forward", TORCH_FN(mlp_forward));
  m.impl("mlp_backward", TORCH_FN(mlp_backward));
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace fastops::mps
