#include "ops/bias_act.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backends/hip/activation.h"
#include "backends/hip/launch.h"
#include "ops/activation.h"
#include "ops/checks.h"

namespace fastops::hip {
namespace {

bool is_given(const std::optional<Tensor>& tensor) { return tensor && tensor->defined(); }

// y = f(x + bias), if the strides make a grid.
bool forward_into(const ActivationSpec& spec, const Tensor& x, const Tensor& bias, const Tensor& y) {
  const auto grid = find_grid({y}, {x, bias.expand(y.sizes())});
  if (!grid) return false;
  check(bias_forward(call_for(spec, y, *grid), grid->matrices[1], grid->matrices[2], grid->matrices[0]));
  return true;
}

Tensor forward_of(const ActivationSpec& spec, const Tensor& self, const Tensor& bias) {
  Tensor result = at::empty(self.sizes(), self.options());
  if (!forward_into(spec, self, bias, result)) forward_into(spec, self.contiguous(), bias, result);
  return result;
}

Tensor forward(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  const auto spec = check_bias_act(self, bias, activation, params);
  if (!is_given(bias)) return plain_activation(spec, self);
  const c10::DeviceGuard guard(self.device());
  return forward_of(spec, self, *bias);
}

Tensor& forward_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                    c10::ArrayRef<double> params, Tensor& out) {
  const auto spec = check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  if (!is_given(bias)) return plain_activation_out(spec, self, out);
  const c10::DeviceGuard guard(self.device());
  if (!forward_into(spec, self, *bias, out)) out.copy_(forward_of(spec, self, *bias));
  return out;
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                             std::string_view activation, c10::ArrayRef<double> params, bool from_output,
                             std::array<bool, 2> output_mask) {
  const auto spec = check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  const c10::DeviceGuard guard(saved.device());
  std::vector<Tensor> grads;
  Tensor grad_self, grad_bias;
  if (output_mask[0]) grads.push_back(grad_self = at::empty(saved.sizes(), saved.options()));
  if (output_mask[1]) grads.push_back(grad_bias = at::empty({saved.size(-1)}, saved.options()));
  if (grads.empty()) return grads;

  const Tensor added = !from_output && is_given(bias) ? bias->expand(saved.sizes()) : Tensor();
  auto grid = find_grid({grad_self}, {grad_output, saved, added}, /*keep_columns=*/true);
  Tensor grad_rows, saved_rows;  // copies, where the strides do not make a grid
  if (!grid) {
    grad_rows = grad_output.contiguous();
    saved_rows = saved.contiguous();
    grid = find_grid({grad_self}, {grad_rows, saved_rows, added}, /*keep_columns=*/true);
  }
  const Call call = call_for(spec, saved, *grid);
  Tensor block_sums;
  if (const int64_t blocks = bias_backward_blocks(call); output_mask[1] && blocks > 1) {
    block_sums = at::empty({blocks, call.columns}, saved.options().dtype(compute_type(saved)));
  }
  const auto data = [](const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; };
  check(bias_backward(call, from_output, grid->matrices[1], grid->matrices[2], grid->matrices[3], grid->matrices[0],
                      data(block_sums), data(grad_bias)));
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

}  // namespace fastops::hip
