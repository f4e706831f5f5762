// act_mul, gated_act and their backward.
#include "launch.h"

namespace hostmem {
namespace {

// From one row to the next: more than a row's elements in the half of a contiguous tensor.
int64_t row_stride(const Tensor& tensor) { return tensor.dim() > 1 ? tensor.stride(-2) : columns(tensor); }

fastops::cpu::Rows rows_if_defined(const Tensor& tensor) {
  return tensor.defined() ? row_data(tensor, row_stride(tensor)) : no_rows;
}

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

  static void forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
    const Tensor gate_rows = gate.contiguous();
    const Tensor up_rows = up.contiguous();
    kernels_for(spec, gate)
        .gated_forward(const_row_data(gate_rows, columns(gate)), const_row_data(up_rows, columns(up)),
                       row_data(result, columns(result)), rows(gate), columns(gate), spec.params());
  }

  static void backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                       const Tensor& grad_gate, const Tensor& grad_up) {
    const Tensor grad_rows = grad_output.contiguous();
    const Tensor gate_rows = gate.contiguous();
    const Tensor up_rows = up.contiguous();
    kernels_for(spec, gate)
        .gated_backward(const_row_data(grad_rows, columns(gate)), const_row_data(gate_rows, columns(gate)),
                        const_row_data(up_rows, columns(up)), rows_if_defined(grad_gate), rows_if_defined(grad_up),
                        no_rows, rows(gate), columns(gate), spec.params());
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) { fastops::impl_gated_acts<Device>(m); }

}  // namespace hostmem
