#include "backends/metal/bias_act.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "backends/metal/activation.h"
#include "backends/metal/rows.h"
#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/checks.h"

namespace fastops::mps {

void add_bias_and_activate(const ActivationSpec& spec, const Tensor& self, const Tensor& bias, const Tensor& pre,
                           const Tensor& result) {
  if (result.numel() == 0) return;
  own_memory(result);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  const uint32_t flags = flag_if(has_bias, bias) | flag_if(has_pre, pre);
  const RowArguments to = row_arguments(spec, flags, {self, {}, pre, result}, {bias_row});
  launch({KernelKind::bias_act, spec.id, self}, row_grid(to), {self, bias_row, pre, result}, to);
}

namespace {

Tensor biased(const ActivationSpec& spec, const Tensor& self, const Tensor& bias) {
  Tensor result = at::empty(self.sizes(), self.options());
  add_bias_and_activate(spec, rows_of(self), bias, {}, rows_of(result));
  return result;
}

Tensor forward(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  const auto spec = check_bias_act(self, bias, activation, params);
  if (!bias || !bias->defined()) return plain_activation(spec, self);
  return biased(spec, self, *bias);
}

Tensor& forward_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                    c10::ArrayRef<double> params, Tensor& out) {
  const auto spec = check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  if (!bias || !bias->defined()) return plain_activation_out(spec, self, out);
  if (!out.is_contiguous()) return out.copy_(biased(spec, self, *bias));
  add_bias_and_activate(spec, rows_of(self), *bias, {}, rows_of(out));
  return out;
}

// Blocks of rows are summed by threadgroups. Their number depends on the shape alone, so the bias gradient has the same
// bits in every run.
constexpr int64_t least_block_rows = block_lanes * 8;
constexpr int64_t most_blocks = 64;

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                             std::string_view activation, c10::ArrayRef<double> params, bool in_terms_of_output,
                             std::array<bool, 2> output_mask) {
  const auto spec = check_bias_act_backward(grad_output, saved, bias, activation, params, in_terms_of_output);
  const int64_t columns = saved.size(-1);
  std::vector<Tensor> grads;
  Tensor grad_self, grad_bias;
  if (output_mask[0]) grads.push_back(grad_self = at::empty(saved.sizes(), saved.options()));
  if (saved.numel() == 0) {
    if (output_mask[1]) grads.push_back(at::zeros({columns}, saved.options()));
    return grads;
  }
  if (output_mask[1]) grads.push_back(grad_bias = at::empty({columns}, saved.options()));

  const Tensor grad_rows = rows_of(grad_output);
  const Tensor saved_rows = rows_of(saved);
  const Tensor bias_row = in_terms_of_output || !bias || !bias->defined() ? Tensor() : bias->contiguous();
  const Tensor result_rows = grad_self.defined() ? rows_of(grad_self) : grad_self;
  const uint32_t flags = (in_terms_of_output ? from_output : 0) | flag_if(has_bias, bias_row) |
                         flag_if(has_grad_self, grad_self) | flag_if(has_grad_bias, grad_bias);
  RowArguments to = row_arguments(spec, flags, {grad_rows, saved_rows, {}, result_rows}, {bias_row});
  const int64_t rows = saved_rows.size(0);
  const int64_t block_rows = std::max(least_block_rows, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  to.block_rows = static_cast<uint32_t>(block_rows);
  Tensor sums;
  if (grad_bias.defined() && blocks > 1) sums = at::empty({blocks, columns}, saved.options().dtype(at::kFloat));
  const uint64_t across = (static_cast<uint64_t>(columns) + block_columns - 1) / block_columns;
  const Grid grid{{across * block_quads, static_cast<uint64_t>(blocks) * block_lanes}, {block_quads, block_lanes}};
  launch({KernelKind::bias_act_backward, spec.id, saved}, grid,
         {grad_rows, saved_rows, bias_row, result_rows, sums, grad_bias}, to);
  if (sums.defined()) {
    to.rows = static_cast<uint32_t>(blocks);
    launch({KernelKind::column_sums, Activation::identity, saved}, {{to.columns, 1}, {64, 1}}, {sums, grad_bias}, to);
  }
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

}  // namespace fastops::mps
