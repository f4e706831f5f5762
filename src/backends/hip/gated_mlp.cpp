// gated_mlp: PyTorch's matrix products with the kernels of act_mul between them.
#include "ops/gated_mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "backends/hip/launch.h"
#include "ops/matrix.h"

namespace fastops::hip {
namespace {

std::tuple<Tensor, Tensor, Tensor> forward(FASTOPS_GATED_MLP_PARAMETERS) {
  const ProductScope scope(input);
  return composite_gated_mlp(check_gated_mlp(FASTOPS_GATED_MLP_ARGUMENTS));
}

Tensor inference(FASTOPS_GATED_MLP_PARAMETERS, bool) { return std::get<0>(forward(FASTOPS_GATED_MLP_ARGUMENTS)); }

// The gradients of gate and up and the product of the two once more, in one pass. Undefined ones are not computed.
struct Hidden {
  Tensor grad_gate, grad_up, product;
};
void compute(const Hidden& hidden, const ActivationSpec& spec, const Tensor& grad, const Tensor& gate,
             const Tensor& up) {
  const auto grid = find_grid({hidden.grad_gate, hidden.grad_up, hidden.product}, {grad, gate, up});
  if (!grid) return compute(hidden, spec, grad.contiguous(), gate.contiguous(), up.contiguous());
  const auto& m = grid->matrices;
  check(gated_backward(call_for(spec, gate, *grid), m[3], m[4], m[5], m[0], m[1], m[2]));
}

std::vector<Tensor> backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS, std::array<bool, 7> output_mask) {
  const auto mlp = check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS);
  const ProductScope scope(input);
  const auto [wants_input, wants_gate_weight, wants_up_weight, wants_down_weight, wants_gate_bias, wants_up_bias,
              wants_down_bias] = output_mask;
  const Tensor grad = as_matrix(grad_output);
  const Tensor x = as_matrix(input);
  const Tensor g = as_matrix(gate);
  const auto empty_if = [&](bool wanted) { return wanted ? at::empty(g.sizes(), g.options()) : Tensor(); };
  const Hidden hidden{empty_if(wants_input || wants_gate_weight || wants_gate_bias),
                      empty_if(wants_input || wants_up_weight || wants_up_bias), empty_if(wants_down_weight)};
  if (hidden.grad_gate.defined() || hidden.grad_up.defined() || hidden.product.defined()) {
    compute(hidden, mlp.activation, at::mm(grad, down_weight), g, as_matrix(up));
  }
  std::array<Tensor, 7> grads;
  if (wants_input) {
    grads[0] = at::mm(hidden.grad_gate, gate_weight).addmm_(hidden.grad_up, up_weight).view(input.sizes());
  }
  if (wants_gate_weight) grads[1] = at::mm(hidden.grad_gate.t(), x);
  if (wants_up_weight) grads[2] = at::mm(hidden.grad_up.t(), x);
  if (wants_down_weight) grads[3] = at::mm(grad.t(), hidden.product);
  if (wants_gate_bias) grads[4] = hidden.grad_gate.sum(0);
  if (wants_up_bias) grads[5] = hidden.grad_up.sum(0);
  if (wants_down_bias) grads[6] = grad.sum(0);
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (output_mask[i]) wanted.push_back(grads[i]);
  }
  return wanted;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) {
  m.impl("gated_mlp", TORCH_FN(inference));
  m.impl("gated_mlp_forward", TORCH_FN(forward));
  m.impl("gated_mlp_backward", TORCH_FN(backward));
}

}  // namespace fastops::hip
