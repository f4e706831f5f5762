#include "ops/gated_act.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backends/hip/launch.h"
#include "ops/checks.h"

namespace fastops::hip {
namespace {

void forward_into(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  if (const auto grid = find_grid({result}, {gate, up})) {
    check(gated_forward(call_for(spec, gate, *grid), grid->matrices[1], grid->matrices[2], grid->matrices[0]));
  } else {
    forward_into(spec, gate.contiguous(), up.contiguous(), result);
  }
}

// Undefined results are not computed.
void backward_into(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const Tensor& grad_gate, const Tensor& grad_up) {
  if (!grad_gate.defined() && !grad_up.defined()) return;
  if (const auto grid = find_grid({grad_gate, grad_up}, {grad_output, gate, up})) {
    const auto& m = grid->matrices;
    check(gated_backward(call_for(spec, gate, *grid), m[2], m[3], m[4], m[0], m[1], /*y=*/{}));
  } else {
    backward_into(spec, grad_output.contiguous(), gate.contiguous(), up.contiguous(), grad_gate, grad_up);
  }
}

Tensor act_mul(const Tensor& gate, const Tensor& up, std::string_view activation, c10::ArrayRef<double> params) {
  const auto spec = check_act_mul(gate, up, activation, params);
  const c10::DeviceGuard guard(gate.device());
  const Tensor result = at::empty(gate.sizes(), gate.options());
  forward_into(spec, gate, up, result);
  return result;
}

std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                     std::string_view activation, c10::ArrayRef<double> params,
                                     std::array<bool, 2> output_mask) {
  const auto spec = check_act_mul_backward(grad_output, gate, up, activation, params);
  const c10::DeviceGuard guard(gate.device());
  std::vector<Tensor> grads;
  std::array<Tensor, 2> result;
  for (size_t i = 0; i < 2; ++i) {
    if (output_mask[i]) grads.push_back(result[i] = at::empty(gate.sizes(), gate.options()));
  }
  backward_into(spec, grad_output, gate, up, result[0], result[1]);
  return grads;
}

Tensor gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = check_gated_act(self, activation, params);
  const c10::DeviceGuard guard(self.device());
  const auto [gate, up] = split_gate(self, gate_last);
  const Tensor result = at::empty(gate.sizes(), gate.options());
  forward_into(spec, gate, up, result);
  return result;
}

Tensor gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                          c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = check_gated_act_backward(grad_output, self, activation, params);
  const c10::DeviceGuard guard(self.device());
  const auto [gate, up] = split_gate(self, gate_last);
  const Tensor result = at::empty(self.sizes(), self.options());
  const auto [grad_gate, grad_up] = split_gate(result, gate_last);
  backward_into(spec, grad_output, gate, up, grad_gate, grad_up);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) {
  m.impl("act_mul", TORCH_FN(act_mul));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward));
  m.impl("gated_act", TORCH_FN(gated_act));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward));
}

}  // namespace fastops::hip
