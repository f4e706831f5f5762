// bias_act and its backward.
#include <torch/library.h>

#include "activation.h"

namespace hostmem {
namespace {

// y = f(x + bias), y contiguous.
void run(const ActivationSpec& spec, const Tensor& self, const Tensor& bias, const Tensor& y) {
  const int64_t n = columns(y);
  const auto result = row_data(y, n);  // first, as in activation.cpp
  const Tensor x = self.contiguous();
  const Tensor row = bias.contiguous();
  kernels_for(spec, x).bias_forward(const_row_data(x, n), const_data(row), no_rows, result, rows(x), n, spec.params());
}

Tensor forward(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  const auto spec = fastops::check_bias_act(self, bias, activation, params);
  if (!bias || !bias->defined()) return plain_activation(spec, self);
  Tensor result = at::empty(self.sizes(), self.options());
  run(spec, self, *bias, result);
  return result;
}

Tensor& forward_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                    c10::ArrayRef<double> params, Tensor& out) {
  const auto spec = fastops::check_bias_act(self, bias, activation, params);
  fastops::check_separate("bias_act", "bias", bias, out);
  fastops::prepare_out("bias_act", out, self);
  if (!bias || !bias->defined()) {
    plain_activation_out(spec, self, out);
  } else if (out.is_contiguous()) {
    run(spec, self, *bias, out);
  } else {
    out.copy_(forward(self, bias, activation, params));
  }
  return out;
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                             std::string_view activation, c10::ArrayRef<double> params, bool from_output,
                             std::array<bool, 2> output_mask) {
  const auto spec = fastops::check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  const auto& table = kernels_for(spec, saved);
  const Tensor grad = grad_output.contiguous();
  const Tensor point = saved.contiguous();
  const Tensor added = fastops::value_or_undefined(bias);
  const Tensor row = from_output || !added.defined() ? Tensor() : added.contiguous();
  const int64_t n = columns(point);
  Tensor dx, sums;
  if (output_mask[0]) dx = at::empty(saved.sizes(), saved.options());
  if (output_mask[1]) {
    const auto sum_type = saved.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    sums = at::empty({n}, saved.options().dtype(sum_type));
  }
  (from_output ? table.bias_backward_from_output : table.bias_backward)(
      const_row_data(grad, n), const_row_data(point, n), const_data(row), row_data(dx, n), data(sums), no_rows,
      rows(point), n, spec.params());
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(dx);
  if (output_mask[1]) grads.push_back(sums.to(saved.scalar_type()));
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

}  // namespace hostmem
