// The ops on CPU tensors: from tensors to the kernels, the work shared among PyTorch's threads.
#include "ops/device.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <initializer_list>

#include "backends/cpu/launch.h"
#include "backends/cpu/networks.h"

namespace fastops::cpu {
namespace {

// ---- elementwise ----

// y = f(x) for tensors of the same layout.
void activate_in_layout(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  const auto kernel = kernels_for(spec, x).forward;
  const int64_t size = x.element_size();
  char* y_data = byte_data(y);  // first: where x is y and a lazy clone, its data moves
  const char* x_data = const_byte_data(x);
  const bool stream = worth_streaming(y) && x_data != y_data;
  share_elements(x.numel(), [&](int64_t begin, int64_t end) {
    kernel(x_data + begin * size, y_data + begin * size, end - begin, spec.params(), stream);
  });
}

// y = f(x) for any strides: where the layouts differ, x is brought into y's and changed there.
void activate(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  if (same_layout(x, y)) {
    activate_in_layout(spec, x, y);
  } else if (y.is_non_overlapping_and_dense()) {
    y.copy_(x);
    activate_in_layout(spec, y, y);
  } else {
    const Tensor dense = empty_result_like(x);
    activate(spec, x, dense);
    y.copy_(dense);
  }
}

// grad_output * a derivative at `saved`, in the layout of the result.
void activate_backward(const ActivationBackwardArguments& backward, const Tensor& result) {
  const auto& [grad_output, saved, activation, from_output, order] = backward;
  const ActivationSpec& spec = activation;
  const Kernels& table = kernels_for(spec, saved);
  const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
  const auto in_layout = [&](const Tensor& tensor) {
    return same_layout(tensor, result) ? tensor : at::empty_like(result).copy_(tensor);
  };
  const Tensor grad = in_layout(grad_output);
  const Tensor at_point = in_layout(saved);
  const int64_t size = result.element_size();
  const char* grad_data = const_byte_data(grad);
  const char* saved_data = const_byte_data(at_point);
  char* result_data = byte_data(result);
  const bool stream = worth_streaming(result);
  share_elements(result.numel(), [&](int64_t begin, int64_t end) {
    kernel(grad_data + begin * size, saved_data + begin * size, result_data + begin * size, end - begin, spec.params(),
           stream);
  });
}

// ---- over rows ----

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
void add_bias_and_activate(const ActivationSpec& spec, const Tensor& x, const Tensor& bias, const Tensor& z,
                           const Tensor& y) {
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

// The gradients of x and of the bias through f, at saved + bias where there is one, and y, as far as they are wanted.
LayerSteps::Backward backward_of_rows(const Tensor& grad, const Tensor& saved, const Tensor& bias,
                                      const ActivationSpec& spec, bool from_output, LayerSteps::Wanted wanted,
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
  const Tensor bias_row = !bias.defined() ? Tensor() : at_once > 1 ? bias.repeat({at_once}) : bias.contiguous();
  const void* const bias_data = bias.defined() ? bias_row.const_data_ptr() : nullptr;
  const int64_t least_rows = std::max<int64_t>(1, grain_size / std::max<int64_t>(1, columns));
  const int64_t block_rows = std::max(least_rows, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  const at::ScalarType sum_type = compute_type(saved);
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

// A 0-d tensor is a row of one element.
Tensor at_least_1d(const Tensor& tensor) { return tensor.defined() && tensor.dim() == 0 ? tensor.view({1}) : tensor; }

// The gradients of gate and up, and f(gate) * up, into those tensors that are defined.
void gate_backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const GatedGradients& results) {
  const auto kernel = kernels_for(spec, gate).gated_backward;
  const ResultRows grad_gate(at_least_1d(results.gate));
  const ResultRows grad_up(at_least_1d(results.up));
  const ResultRows product(at_least_1d(results.product));
  const RowView grad_rows(at_least_1d(grad_output));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(grad_rows.from(begin), gate_rows.from(begin), up_rows.from(begin), grad_gate.from(begin),
           grad_up.from(begin), product.from(begin), end - begin, gate_rows.columns(), spec.params());
  });
}

// result = f(gate) * up; it may be one of the two.
void gate_forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  const auto kernel = kernels_for(spec, gate).gated_forward;
  const ResultRows result_rows(at_least_1d(result));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(gate_rows.from(begin), up_rows.from(begin), result_rows.from(begin), end - begin, gate_rows.columns(),
           spec.params());
  });
}

// ---- the device ----

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return empty_result(sizes, like); }
  static Tensor empty_like(const Tensor& like) { return empty_result_like(like); }

  static constexpr auto activation = activate;
  static constexpr auto activation_backward = activate_backward;
  static constexpr auto bias_act = add_bias_and_activate;
  static constexpr auto bias_act_backward = backward_of_rows;
  static constexpr auto act_mul = gate_forward;
  static constexpr auto act_mul_backward = gate_backward;

  static Tensor product(const Tensor& a, const Tensor& b) {
    Tensor result = empty({a.size(0), b.size(1)}, a);
    return at::mm_out(result, a, b);
  }
  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    if (!bias.defined()) return product(x, weight.t());
    Tensor z = empty({x.size(0), weight.size(0)}, x);
    return at::addmm_out(z, bias, x, weight.t());
  }

  static constexpr auto try_mlp = cpu::try_mlp;
  static constexpr auto try_mlp_backward = cpu::try_mlp_backward;
  static constexpr auto try_gated_mlp = cpu::try_gated_mlp;
  static constexpr auto try_gated_mlp_backward = cpu::try_gated_mlp_backward;
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) { impl_ops<Device>(m); }

}  // namespace fastops::cpu
