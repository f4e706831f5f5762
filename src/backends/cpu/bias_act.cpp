#include "ops/bias_act.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "backends/cpu/activation.h"
#include "backends/cpu/launch.h"
#include "ops/activation.h"
#include "ops/checks.h"

namespace fastops::cpu {
namespace {

// y = f(x + bias); y's rows must be contiguous.
void forward_into(const ActivationSpec& spec, const Tensor& x, const Tensor& bias, const Tensor& y) {
  const auto kernel = kernels_for(spec, x).bias_forward;
  const RowView x_rows(x);
  const RowView y_rows(y);
  const Tensor bias_row = bias.contiguous();
  share_rows(x_rows.rows(), x_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(x_rows.from(begin), bias_row.const_data_ptr(), y_rows.from_mutable(begin), end - begin, x_rows.columns(),
           spec.params());
  });
}

Tensor forward(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  const auto spec = check_bias_act(self, bias, activation, params);
  if (!bias || !bias->defined()) return plain_activation(spec, self);
  Tensor result = in_huge_pages(at::empty(self.sizes(), self.options()));
  forward_into(spec, self, *bias, result);
  return result;
}

Tensor& forward_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                    c10::ArrayRef<double> params, Tensor& out) {
  const auto spec = check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  if (!bias || !bias->defined()) return plain_activation_out(spec, self, out);
  if (out.is_contiguous()) {
    forward_into(spec, self, *bias, out);
  } else {
    const Tensor result = in_huge_pages(at::empty(self.sizes(), self.options()));
    forward_into(spec, self, *bias, result);
    out.copy_(result);
  }
  return out;
}

// Rows are dealt out in blocks whose number does not depend on the threads, each with its own column sums; the sums are
// added in order. So the bias gradient has the same bits for every number of threads.
constexpr int64_t most_blocks = 64;

template <class S>
Tensor add_blocks(const Tensor& sums, int64_t blocks, int64_t columns) {
  S* total = sums.mutable_data_ptr<S>();
  for (int64_t block = 1; block < blocks; ++block) {
    for (int64_t c = 0; c < columns; ++c) total[c] += total[block * columns + c];
  }
  return sums.select(0, 0);
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                             std::string_view activation, c10::ArrayRef<double> params, bool from_output,
                             std::array<bool, 2> output_mask) {
  const auto spec = check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  const Kernels& table = kernels_for(spec, saved);
  const auto kernel = from_output ? table.bias_backward_from_output : table.bias_backward;
  const RowView grad_rows(grad_output);
  const RowView saved_rows(saved);
  const int64_t rows = saved_rows.rows();
  const int64_t columns = saved_rows.columns();
  const bool add_bias = !from_output && bias && bias->defined();
  const Tensor bias_row = add_bias ? bias->contiguous() : Tensor();

  std::vector<Tensor> grads;
  Tensor grad_self;
  if (output_mask[0]) {
    grad_self = in_huge_pages(at::empty(saved.sizes(), saved.options()));
    grads.push_back(grad_self);
  }
  const int64_t least_rows = std::max<int64_t>(1, grain_size / std::max<int64_t>(1, columns));
  const int64_t block_rows = std::max(least_rows, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  const auto sum_type = saved.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor sums;
  if (output_mask[1]) sums = at::empty({blocks, columns}, saved.options().dtype(sum_type));

  share(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * block_rows;
      const int64_t end = std::min(rows, begin + block_rows);
      const Rows dx = output_mask[0] && columns > 0
                          ? Rows{byte_data(grad_self) + begin * columns * saved.element_size(), columns}
                          : Rows{nullptr, 0};
      void* block_sums = output_mask[1] ? byte_data(sums) + block * columns * sums.element_size() : nullptr;
      kernel(grad_rows.from(begin), saved_rows.from(begin), add_bias ? bias_row.const_data_ptr() : nullptr, dx,
             block_sums, end - begin, columns, spec.params());
    }
  });
  if (output_mask[1]) {
    const Tensor total =
        sum_type == at::kDouble ? add_blocks<double>(sums, blocks, columns) : add_blocks<float>(sums, blocks, columns);
    grads.push_back(blocks == 1 || sum_type != saved.scalar_type() ? total.to(saved.scalar_type()) : total.clone());
  }
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

}  // namespace fastops::cpu
