// act_mul, gated_act and their backward.
#include <torch/library.h>

#include "launch.h"

namespace hostmem {
namespace {

// Rows of tensors whose rows may be halves of longer ones: their stride is that of the dimension before the last.
struct Halves {
  Tensor gate, up;
  int64_t stride;
};

// Of a contiguous tensor [..., 2 * columns].
Halves halves(const Tensor& self, bool gate_last) {
  const auto [gate, up] = fastops::split_gate(self, gate_last);
  return {gate, up, columns(self)};
}
Halves two_tensors(const Tensor& gate, const Tensor& up) { return {gate, up, columns(gate.defined() ? gate : up)}; }

// y = f(gate) * up
void forward_into(const ActivationSpec& spec, const Halves& x, const Tensor& y) {
  kernels_for(spec, y).gated_forward(const_row_data(x.gate, x.stride), const_row_data(x.up, x.stride),
                                     row_data(y, columns(y)), rows(y), columns(y), spec.params());
}

// Undefined results are not computed.
void backward_into(const ActivationSpec& spec, const Tensor& grad_output, const Halves& x, const Halves& dx) {
  const Tensor grad = grad_output.contiguous();
  kernels_for(spec, grad)
      .gated_backward(const_row_data(grad, columns(grad)), const_row_data(x.gate, x.stride),
                      const_row_data(x.up, x.stride), row_data(dx.gate, dx.stride), row_data(dx.up, dx.stride),
                      rows(grad), columns(grad), spec.params());
}

Tensor act_mul(const Tensor& gate, const Tensor& up, std::string_view activation, c10::ArrayRef<double> params) {
  const auto spec = fastops::check_act_mul(gate, up, activation, params);
  Tensor result = at::empty(gate.sizes(), gate.options());
  forward_into(spec, two_tensors(gate.contiguous(), up.contiguous()), result);
  return result;
}

std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                     std::string_view activation, c10::ArrayRef<double> params,
                                     std::array<bool, 2> output_mask) {
  const auto spec = fastops::check_act_mul_backward(grad_output, gate, up, activation, params);
  std::array<Tensor, 2> results;
  std::vector<Tensor> grads;
  for (size_t i = 0; i < 2; ++i) {
    if (!output_mask[i]) continue;
    results[i] = at::empty(gate.sizes(), gate.options());
    grads.push_back(results[i]);
  }
  if (!grads.empty()) {
    backward_into(spec, grad_output, two_tensors(gate.contiguous(), up.contiguous()),
                  two_tensors(results[0], results[1]));
  }
  return grads;
}

Tensor gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = fastops::check_gated_act(self, activation, params);
  const Halves x = halves(self.contiguous(), gate_last);
  Tensor result = at::empty(x.gate.sizes(), self.options());
  forward_into(spec, x, result);
  return result;
}

Tensor gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                          c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = fastops::check_gated_act_backward(grad_output, self, activation, params);
  Tensor result = at::empty(self.sizes(), self.options());
  backward_into(spec, grad_output, halves(self.contiguous(), gate_last), halves(result, gate_last));
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) {
  m.impl("act_mul", TORCH_FN(act_mul));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward));
  m.impl("gated_act", TORCH_FN(gated_act));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward));
}

}  // namespace hostmem
