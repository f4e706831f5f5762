#include "backends/cpu/bias_act.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <initializer_list>

#include "backends/cpu/activation.h"
#include "backends/cpu/launch.h"
#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/matrix.h"

namespace fastops::cpu {
namespace {

// Rows of few columns, of which there are many side by side, are taken so many at a time as one: alone, each would take
// a vector for itself. `strides` are those of all matrices.
int64_t rows_at_once(int64_t rows, int64_t columns, std::initializer_list<int64_t> strides) {
  constexpr int64_t wide = 64;
  if (columns == 0 || columns > wide / 4 || rows * columns < 64 * wide) return 1;
  for (const int64_t stride : strides) {
    if (stride != columns) return 1;
  }
  return wide / columns;
}

template <class AnyRows>
AnyRows joined(AnyRows rows, int64_t count) {
  return {rows.data, rows.stride * count};
}

// z = x + bias and y = f(z); z may be undefined, and each of them may be x. Their rows must be contiguous.
void forward_into(const ActivationSpec& spec, const Tensor& x, const Tensor& bias, const Tensor& z, const Tensor& y) {
  const auto kernel = kernels_for(spec, x).bias_forward;
  const ResultRows y_rows(y);
  const ResultRows z_rows(z);
  const RowView x_rows(x);
  const int64_t rows = x_rows.rows();
  const int64_t columns = x_rows.columns();
  const int64_t at_once = rows_at_once(
      rows, columns, {x_rows.from(0).stride, y_rows.from(0).stride, z.defined() ? z_rows.from(0).stride : columns});
  const Tensor bias_row = at_once > 1 ? bias.repeat({at_once}) : bias.contiguous();
  const void* const bias_data = bias_row.const_data_ptr();
  const auto run = [&](int64_t begin, int64_t end, int64_t count) {
    kernel(joined(x_rows.from(begin), count), bias_data, joined(z_rows.from(begin), count),
           joined(y_rows.from(begin), count), (end - begin) / count, columns * count, spec.params());
  };
  const int64_t whole = rows / at_once;
  share_rows(whole, columns * at_once,
             [&](int64_t begin, int64_t end) { run(begin * at_once, end * at_once, at_once); });
  if (whole * at_once < rows) run(whole * at_once, rows, 1);
}

Tensor forward(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  const auto spec = check_bias_act(self, bias, activation, params);
  if (!bias || !bias->defined()) return plain_activation(spec, self);
  Tensor result = empty_result(self.sizes(), self);
  forward_into(spec, self, *bias, {}, result);
  return result;
}

Tensor& forward_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                    c10::ArrayRef<double> params, Tensor& out) {
  const auto spec = check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  if (!bias || !bias->defined()) return plain_activation_out(spec, self, out);
  if (out.is_contiguous()) {
    forward_into(spec, self, *bias, {}, out);
  } else {
    const Tensor result = empty_result(self.sizes(), self);
    forward_into(spec, self, *bias, {}, result);
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

// As LayerSteps::backward; f at saved + bias where there is one.
LayerSteps::Backward backward_of(const ActivationSpec& spec, const Tensor& grad, const Tensor& saved,
                                 const std::optional<Tensor>& bias, bool from_output, LayerSteps::Wanted wanted,
                                 bool disposable) {
  const Kernels& table = kernels_for(spec, saved);
  const auto kernel = from_output ? table.bias_backward_from_output : table.bias_backward;
  const auto empty = [&] { return empty_result(saved.sizes(), saved); };
  LayerSteps::Backward results;
  if (wanted.grad) results.grad = disposable && grad.is_contiguous() ? grad : empty();
  if (wanted.y) results.y = from_output ? saved : empty();
  const ResultRows dx_rows(results.grad);
  const ResultRows y_rows(from_output ? Tensor() : results.y);
  const RowView grad_rows(grad);
  const RowView saved_rows(saved);
  const int64_t all_rows = saved_rows.rows();
  const int64_t at_once =
      rows_at_once(all_rows, saved_rows.columns(), {grad_rows.from(0).stride, saved_rows.from(0).stride});
  const int64_t rows = all_rows / at_once;
  const int64_t columns = saved_rows.columns() * at_once;
  const bool has_rest = rows * at_once < all_rows;
  const bool add_bias = !from_output && bias && bias->defined();
  const Tensor bias_row = !add_bias ? Tensor() : at_once > 1 ? bias->repeat({at_once}) : bias->contiguous();
  const void* const bias_data = add_bias ? bias_row.const_data_ptr() : nullptr;
  const int64_t least_rows = std::max<int64_t>(1, grain_size / std::max<int64_t>(1, columns));
  const int64_t block_rows = std::max(least_rows, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  const auto sum_type = saved.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor sums;
  if (wanted.bias_grad) sums = at::empty({blocks + has_rest, columns}, saved.options().dtype(sum_type));
  if (wanted.bias_grad && has_rest) sums.select(0, blocks).zero_();
  char* const sums_data = wanted.bias_grad ? byte_data(sums) : nullptr;
  const int64_t sums_bytes = columns * c10::elementSize(sum_type);

  // Rows from `begin` to `end`, `count` of them at a time, with their sums in a place of their own.
  const auto run = [&](int64_t begin, int64_t end, int64_t count, int64_t place) {
    void* const place_sums = sums_data ? sums_data + place * sums_bytes : nullptr;
    kernel(joined(grad_rows.from(begin), count), joined(saved_rows.from(begin), count), bias_data,
           joined(dx_rows.from(begin), count), place_sums, joined(y_rows.from(begin), count), (end - begin) / count,
           columns / at_once * count, spec.params());
  };
  share(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t end = std::min(rows, (block + 1) * block_rows);
      run(block * block_rows * at_once, end * at_once, at_once, block);
    }
  });
  if (has_rest) run(rows * at_once, all_rows, 1, blocks);
  if (wanted.bias_grad) {
    const int64_t places = blocks + has_rest;
    Tensor total =
        sum_type == at::kDouble ? add_blocks<double>(sums, places, columns) : add_blocks<float>(sums, places, columns);
    if (at_once > 1) total = total.view({at_once, columns / at_once}).sum(0);
    results.bias_grad = blocks == 1 || sum_type != saved.scalar_type() ? total.to(saved.scalar_type()) : total.clone();
  }
  return results;
}

std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                             std::string_view activation, c10::ArrayRef<double> params, bool from_output,
                             std::array<bool, 2> output_mask) {
  const auto spec = check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  auto results = backward_of(spec, grad_output, saved, bias, from_output, {output_mask[0], output_mask[1], false},
                             /*disposable=*/false);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(std::move(results.grad));
  if (output_mask[1]) grads.push_back(std::move(results.bias_grad));
  return grads;
}

// bias + x @ weight.T; `bias` may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!bias.defined()) return matrix_product(x, weight.t());
  Tensor z = empty_result({x.size(0), weight.size(0)}, x);
  return at::addmm_out(z, bias, x, weight.t());
}

LayerSteps::Forward forward_step(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f,
                                 bool keeps_z) {
  if (f.id == Activation::identity) {
    const Tensor z = linear(x, weight, bias);
    return {z, z};
  }
  if (!bias.defined() || adds_bias_in_product(x)) {
    const Tensor z = linear(x, weight, bias);
    Tensor y = keeps_z ? empty_result_like(z) : z;
    return {z, plain_activation_out(f, z, y)};
  }
  const Tensor z = matrix_product(x, weight.t());
  const Tensor y = keeps_z ? empty_result_like(z) : z;
  forward_into(f, z, bias, keeps_z ? z : Tensor(), y);
  return {z, y};
}

LayerSteps::Backward backward_step(const Tensor& grad, const Tensor& saved, const ActivationSpec& f, bool from_output,
                                   LayerSteps::Wanted wanted, bool disposable) {
  if (!wanted.grad && !wanted.bias_grad) return {{}, {}, from_output ? saved : plain_activation(f, saved)};
  return backward_of(f, grad, saved, std::nullopt, from_output, wanted, disposable);
}

}  // namespace

Tensor matrix_product(const Tensor& a, const Tensor& b) {
  Tensor result = empty_result({a.size(0), b.size(1)}, a);
  return at::mm_out(result, a, b);
}

const LayerSteps layer_steps{forward_step, backward_step, matrix_product};

TORCH_LIBRARY_IMPL(fastops, CPU, m) {
  m.impl("bias_act", TORCH_FN(forward));
  m.impl("bias_act.out", TORCH_FN(forward_out));
  m.impl("bias_act_backward", TORCH_FN(backward));
}

}  // namespace fastops::cpu
