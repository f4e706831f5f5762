#include "backends/metal/gated_act.h"

#include <ATen/ops/empty.h>

#include "backends/metal/rows.h"
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

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

  static void forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
    activate_and_multiply(spec, rows_of(gate), rows_of(up), {}, {}, /*saves=*/false, rows_of(result));
  }

  static void backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                       const Tensor& grad_gate, const Tensor& grad_up) {
    if (gate.numel() == 0) return;
    const auto rows_if_defined = [](const Tensor& tensor) { return tensor.defined() ? rows_of(tensor) : tensor; };
    const Tensor tensors[] = {rows_of(grad_output), rows_of(gate), rows_of(up), rows_if_defined(grad_gate),
                              rows_if_defined(grad_up)};
    const uint32_t flags = flag_if(has_grad_gate, grad_gate) | flag_if(has_grad_up, grad_up);
    const RowArguments to = row_arguments(spec, flags, tensors);
    launch({KernelKind::gated_act_backward, spec.id, gate}, row_grid(to), tensors, to);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) { impl_gated_acts<Device>(m); }

}  // namespace fastops::mps
