#include "backends/metal/gated_act.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backends/metal/rows.h"
#include "ops/checks.h"
#include "ops/gated_act.h"

namespace fastops::mps {

void activate_and_multiply(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& gate_bias,
                           const Tensor& up_bias, bool saves, const Tensor& result) {
  if (result.numel() == 0) return;
  const Tensor saved_gate = saves ? gate : Tensor();
  const Tensor saved_up = saves ? up : Tensor();
  const Tensor gate_row = gate_bias.defined() ? gate_bias.contiguous() : gate_bias;
  const Tensor up_row = up_bias.defined() ? up_bias.contiguous() : up_bias;
  const uint32_t flags =
      flag_if(has_gate_bias, gate_row) | flag_if(has_up_bias, up_row) | flag_if(has_saved, saved_gate);
  const RowArguments to = row_arguments(spec, flags, {gate, up, result, saved_gate, saved_up}, {gate_row, up_row});
  launch({KernelKind::gated_act, spec.id, gate}, row_grid(to),
         {gate, up, result, saved_gate, saved_up, gate_row, up_row}, to);
}

namespace {

void forward_into(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  activate_and_multiply(spec, rows_of(gate), rows_of(up), {}, {}, /*saves=*/false, rows_of(result));
}

// Undefined results are not computed.
void backward_into(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const Tensor& grad_gate, const Tensor& grad_up) {
  if (gate.numel() == 0 || !(grad_gate.defined() || grad_up.defined())) return;
  const auto rows_if_defined = [](const Tensor& tensor) { return tensor.defined() ? rows_of(tensor) : tensor; };
  const Tensor tensors[] = {rows_of(grad_output), rows_of(gate), rows_of(up), rows_if_defined(grad_gate),
                            rows_if_defined(grad_up)};
  const uint32_t flags = flag_if(has_grad_gate, grad_gate) | flag_if(has_grad_up, grad_up);
  const RowArguments to = row_arguments(spec, flags, tensors);
  launch({KernelKind::gated_act_backward, spec.id, gate}, row_grid(to), tensors, to);
}

Tensor act_mul(const Tensor& gate, const Tensor& up, std::string_view activation, c10::ArrayRef<double> params) {
  const auto spec = check_act_mul(gate, up, activation, params);
  Tensor result = at::empty(gate.sizes(), gate.options());
  forward_into(spec, gate, up, result);
  return result;
}

std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                     std::string_view activation, c10::ArrayRef<double> params,
                                     std::array<bool, 2> output_mask) {
  const auto spec = check_act_mul_backward(grad_output, gate, up, activation, params);
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
  const auto [gate, up] = split_gate(self, gate_last);
  Tensor result = at::empty(gate.sizes(), gate.options());
  forward_into(spec, gate, up, result);
  return result;
}

Tensor gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                          c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = check_gated_act_backward(grad_output, self, activation, params);
  const auto [gate, up] = split_gate(self, gate_last);
  Tensor result = at::empty(self.sizes(), self.options());
  const auto [grad_gate, grad_up] = split_gate(result, gate_last);
  backward_into(spec, grad_output, gate, up, grad_gate, grad_up);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) {
  m.impl("act_mul", TORCH_FN(act_mul));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward));
  m.impl("gated_act", TORCH_FN(gated_act));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward));
}

}  // namespace fastops::mps
