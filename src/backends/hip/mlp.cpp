// mlp and linear_act: small networks in one kernel, others as PyTorch's matrix products with the kernels of bias_act
// between them.
//
// at::_addmm_activation would let cuBLASLt and hipBLASLt apply ReLU and the tanh-GELU in the product's last step, but
// it is not known to keep a NaN, as PyTorch's functions do; at::addmm, which layered_mlp uses, adds the bias there.
#include "ops/mlp.h"

#include <torch/library.h>

#include "backends/hip/launch.h"
#include "backends/hip/small_mlp.h"

namespace fastops::hip {
namespace {

Tensor run(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  const c10::DeviceGuard guard(mlp.input.device());
  return use_small_mlp(mlp) ? small_mlp(mlp, saved) : layered_mlp(mlp, saved);
}

Tensor mlp(FASTOPS_MLP_PARAMETERS, bool) { return run(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), nullptr); }

std::tuple<Tensor, std::vector<Tensor>> forward(FASTOPS_MLP_PARAMETERS) {
  std::vector<Tensor> saved;
  Tensor output = run(check_mlp("mlp", FASTOPS_MLP_ARGUMENTS), &saved);
  return {std::move(output), std::move(saved)};
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                             const OptionalTensors& biases, const std::optional<Tensor>& output, at::TensorList saved,
                             std::string_view activation, std::string_view output_activation,
                             c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                             const c10::List<bool>& output_mask) {
  const auto mlp = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation, output_activation,
                                      params, output_params, output_mask);
  const c10::DeviceGuard guard(input.device());
  return use_small_mlp(mlp) ? small_mlp_gradients(mlp, grad_output, output, saved, output_mask)
                            : layered_mlp_backward(mlp, grad_output, output, saved, output_mask);
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  std::string_view activation, c10::ArrayRef<double> params) {
  return run(check_linear_act(input, weight, bias, activation, params), nullptr);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) {
  m.impl("mlp", TORCH_FN(mlp));
  m.impl("mlp_forward", TORCH_FN(forward));
  m.impl("mlp_backward", TORCH_FN(backward));
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace fastops::hip
