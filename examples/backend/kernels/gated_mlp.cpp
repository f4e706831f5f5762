// gated_mlp, its training form and its backward.
#include <torch/library.h>

#include "library.h"

namespace hostmem {
namespace {

Tensor gated_mlp(FASTOPS_GATED_MLP_PARAMETERS, bool checkpoint) {
  fastops::check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS);
  return to_device(fastops::gated_mlp_op().call(on_host(input), on_host(gate_weight), on_host(up_weight),
                                                on_host(down_weight), on_host(gate_bias), on_host(up_bias),
                                                on_host(down_bias), activation, params, checkpoint),
                   input.device());
}

std::tuple<Tensor, Tensor, Tensor> gated_mlp_forward(FASTOPS_GATED_MLP_PARAMETERS) {
  fastops::check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS);
  const auto [output, gate, up] = fastops::gated_mlp_forward_op().call(
      on_host(input), on_host(gate_weight), on_host(up_weight), on_host(down_weight), on_host(gate_bias),
      on_host(up_bias), on_host(down_bias), activation, params);
  const auto device = input.device();
  return {to_device(output, device), to_device(gate, device), to_device(up, device)};
}

std::vector<Tensor> gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  fastops::check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  return to_device(fastops::gated_mlp_backward_op().call(on_host(grad_output), on_host(input), on_host(gate_weight),
                                                         on_host(up_weight), on_host(down_weight), on_host(gate_bias),
                                                         on_host(up_bias), on_host(gate), on_host(up), activation,
                                                         params, output_mask),
                   input.device());
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) {
  m.impl("gated_mlp", TORCH_FN(gated_mlp));
  m.impl("gated_mlp_forward", TORCH_FN(gated_mlp_forward));
  m.impl("gated_mlp_backward", TORCH_FN(gated_mlp_backward));
}

}  // namespace hostmem
