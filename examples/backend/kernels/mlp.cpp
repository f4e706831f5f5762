// mlp, its training form and its backward, and linear_act.
//
// A device with a matrix product alone need not register these: the composites are PyTorch's products, which it has
// under aten::addmm, with the kernels of bias_act after each.
#include <torch/library.h>

#include "library.h"

namespace hostmem {
namespace {

using fastops::OptionalTensors;

Tensor mlp(FASTOPS_MLP_PARAMETERS, bool checkpoint) {
  fastops::check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  return to_device(fastops::mlp_op().call(on_host(input), on_host(weights), on_host(biases), activation,
                                          output_activation, params, output_params, checkpoint),
                   input.device());
}

std::tuple<Tensor, std::vector<Tensor>> mlp_forward(FASTOPS_MLP_PARAMETERS) {
  fastops::check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  auto [output, saved] = fastops::mlp_forward_op().call(on_host(input), on_host(weights), on_host(biases), activation,
                                                        output_activation, params, output_params);
  return {to_device(output, input.device()), to_device(std::move(saved), input.device())};
}

std::vector<Tensor> mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                 const OptionalTensors& biases, const std::optional<Tensor>& output,
                                 at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                 c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                 const c10::List<bool>& output_mask) {
  fastops::check_mlp_backward(grad_output, input, weights, biases, output, saved, activation, output_activation, params,
                              output_params, output_mask);
  return to_device(fastops::mlp_backward_op().call(on_host(grad_output), on_host(input), on_host(weights),
                                                   on_host(biases), on_host(output), on_host(saved), activation,
                                                   output_activation, params, output_params, output_mask),
                   input.device());
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  std::string_view activation, c10::ArrayRef<double> params) {
  fastops::check_linear_act(input, weight, bias, activation, params);
  return to_device(fastops::linear_act_op().call(on_host(input), on_host(weight), on_host(bias), activation, params),
                   input.device());
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) {
  m.impl("mlp", TORCH_FN(mlp));
  m.impl("mlp_forward", TORCH_FN(mlp_forward));
  m.impl("mlp_backward", TORCH_FN(mlp_backward));
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace hostmem
