// The ops on tensors of Apple's GPUs: from tensors to the kernels' arguments.
//
// The products are of matrices, never PyTorch's linear, which has been wrong with a bias on some Macs, for some shapes.
#include "ops/device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "backends/metal/elementwise.h"
#include "backends/metal/row_steps.h"
#include "backends/metal/rows.h"
#include "ops/environment.h"

namespace fastops::mps {
namespace {

Tensor rows_if_defined(const Tensor& tensor) { return tensor.defined() ? rows_of(tensor) : tensor; }

// result = f(self + bias), and pre = self + bias. The matrices have contiguous rows and may be the same; bias and pre
// may be undefined.
void add_bias_and_activate(const ActivationSpec& spec, const Tensor& self, const Tensor& bias, const Tensor& pre,
                           const Tensor& result) {
  if (result.numel() == 0) return;
  own_memory(result);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  const uint32_t flags = flag_if(has_bias, bias) | flag_if(has_pre, pre);
  const RowArguments to = row_arguments(spec, flags, {self, {}, pre, result}, {bias_row});
  launch({KernelKind::bias_act, spec.id, self}, row_grid(to), {self, bias_row, pre, result}, to);
}

// Blocks of rows are summed by threadgroups. Their number depends on the shape alone, so the bias gradient has the same
// bits in every run.
constexpr int64_t least_block_rows = block_lanes * 8;
constexpr int64_t most_blocks = 64;

LayerSteps::Backward bias_act_gradients(const ActivationSpec& spec, const Tensor& grad, const Tensor& saved,
                                        const Tensor& bias, bool in_terms_of_output, LayerSteps::Wanted wanted) {
  const int64_t columns = saved.size(-1);
  LayerSteps::Backward results;
  if (wanted.grad) results.grad = at::empty(saved.sizes(), saved.options());
  if (saved.numel() == 0) {
    if (wanted.bias_grad) results.bias_grad = at::zeros({columns}, saved.options());
    return results;
  }
  if (wanted.bias_grad) results.bias_grad = at::empty({columns}, saved.options());

  const Tensor grad_rows = rows_of(grad);
  const Tensor saved_rows = rows_of(saved);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  const Tensor result_rows = rows_if_defined(results.grad);
  const uint32_t flags = (in_terms_of_output ? from_output : 0) | flag_if(has_bias, bias_row) |
                         flag_if(has_grad_self, results.grad) | flag_if(has_grad_bias, results.bias_grad);
  RowArguments to = row_arguments(spec, flags, {grad_rows, saved_rows, {}, result_rows}, {bias_row});
  const int64_t rows = saved_rows.size(0);
  const int64_t block_rows = std::max(least_block_rows, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  to.block_rows = static_cast<uint32_t>(block_rows);
  Tensor sums;
  if (results.bias_grad.defined() && blocks > 1) sums = at::empty({blocks, columns}, saved.options().dtype(at::kFloat));
  const uint64_t across = (static_cast<uint64_t>(columns) + block_columns - 1) / block_columns;
  const Grid grid{{across * block_quads, static_cast<uint64_t>(blocks) * block_lanes, 1},
                  {block_quads, block_lanes, 1}};
  launch({KernelKind::bias_act_backward, spec.id, saved}, grid,
         {grad_rows, saved_rows, bias_row, result_rows, sums, results.bias_grad}, to);
  if (sums.defined()) {
    sum_columns(sums, results.bias_grad);
  }
  return results;
}

// result = f(gate + gate_bias) * (up + up_bias). The matrices have contiguous rows and may be the same; the biases may
// be undefined. With `saves`, gate and up become the sums.
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

// ---- linear_act, with a matrix product of its own ----

// For small layers, if FASTOPS_METAL_LINEAR is 1. PyTorch's products are several times faster for large ones; where the
// two meet has not been measured.
constexpr int64_t most_features = 256;

bool is_wanted() {
  static const bool wanted = environment_choice("FASTOPS_METAL_LINEAR", {"0", "1"}) == "1";
  return wanted;
}
const ReadAtImport wanted_at_import([] { is_wanted(); });

bool use_linear_act(const Tensor& weight) {
  // An empty tensor has no buffer.
  return is_wanted() && weight.numel() > 0 && weight.size(0) <= most_features && weight.size(1) <= most_features;
}

// result = f(input @ weight.T + bias), and pre = input @ weight.T + bias. pre and result have contiguous rows; bias and
// pre may be undefined.
void linear_and_activate(const ActivationSpec& spec, const Tensor& input, const Tensor& weight, const Tensor& bias,
                         const Tensor& pre, const Tensor& result) {
  if (result.numel() == 0) return;
  const Tensor input_rows = rows_of(input);
  const Tensor weight_rows = rows_of(weight);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  RowArguments to = row_arguments(spec, flag_if(has_bias, bias_row) | flag_if(has_pre, pre),
                                  {input_rows, weight_rows, {}, pre, result});
  to.columns = static_cast<uint32_t>(result.size(1));
  to.depth = static_cast<uint32_t>(input.size(1));
  const auto tiles = [](uint32_t size) { return (uint64_t{size} + product_tile - 1) / product_tile; };
  launch({KernelKind::linear_act, spec.id, input},
         {{tiles(to.columns) * product_threads, tiles(to.rows), 1}, {product_threads, 1, 1}},
         {input_rows, weight_rows, bias_row, pre, result}, to);
}

// ---- the device ----

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }
  static Tensor empty_like(const Tensor& like) { return at::empty_like(like); }

  static bool try_activation(const ActivationSpec& f, const Tensor& x, const Tensor& y) {
    return try_elementwise({KernelKind::activation, f.id, x}, f, /*from_output=*/false, {x}, y);
  }

  static bool try_activation_backward(const ActivationBackwardArguments& backward, const Tensor& result) {
    static_assert(max_order == 3);
    constexpr KernelKind kinds[] = {KernelKind::backward1, KernelKind::backward2, KernelKind::backward3};
    const ActivationSpec& f = backward.activation;
    return try_elementwise({kinds[backward.order - 1], f.id, backward.saved}, f, backward.from_output,
                           {backward.grad_output, backward.saved}, result);
  }

  static void bias_act(const ActivationSpec& f, const Tensor& x, const Tensor& bias, const Tensor& z, const Tensor& y) {
    add_bias_and_activate(f, rows_of(x), bias, rows_if_defined(z), rows_of(y));
  }

  static LayerSteps::Backward bias_act_backward(const Tensor& grad, const Tensor& saved, const Tensor& bias,
                                                const ActivationSpec& f, bool from_output, LayerSteps::Wanted wanted,
                                                bool /*disposable*/) {
    return bias_act_gradients(f, grad, saved, bias, from_output, wanted);
  }

  static void act_mul(const ActivationSpec& f, const Tensor& gate, const Tensor& up, const Tensor& y) {
    activate_and_multiply(f, rows_of(gate), rows_of(up), {}, {}, /*saves=*/false, rows_of(y));
  }

  static void act_mul_backward(const ActivationSpec& f, const Tensor& grad, const Tensor& gate, const Tensor& up,
                               const GatedGradients& results) {
    if (gate.numel() == 0) return;
    if (results.product.defined()) act_mul(f, gate, up, results.product);
    if (!results.gate.defined() && !results.up.defined()) return;
    const Tensor tensors[] = {rows_of(grad), rows_of(gate), rows_of(up), rows_if_defined(results.gate),
                              rows_if_defined(results.up)};
    const uint32_t flags = flag_if(has_grad_gate, results.gate) | flag_if(has_grad_up, results.up);
    const RowArguments to = row_arguments(f, flags, tensors);
    launch({KernelKind::gated_act_backward, f.id, gate}, row_grid(to), tensors, to);
  }

  static Tensor product(const Tensor& a, const Tensor& b) { return at::mm(a, b); }

  static constexpr auto rows = steps_on_rows;
  static constexpr auto rows_backward = steps_on_rows_backward;

  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const auto [z, rest] = project(x, weight, bias);
    if (rest.defined()) add_bias_and_activate({Activation::identity, {}}, z, rest, {}, z);
    return z;
  }

  static std::optional<LayerSteps::Forward> try_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      const ActivationSpec& f, bool keeps_z) {
    if (!use_linear_act(weight)) return std::nullopt;
    const Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
    const Tensor z = keeps_z ? at::empty_like(y) : Tensor();
    linear_and_activate(f, x, weight, bias, z, y);
    return LayerSteps::Forward{z, y};
  }

  // Both biases are added by the kernel that stands behind the projections.
  static std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves) {
    const Tensor input = as_matrix(mlp.input);
    const auto [gate, gate_bias] = project(input, mlp.gate_weight, mlp.gate_bias);
    const auto [up, up_bias] = project(input, mlp.up_weight, mlp.up_bias);
    const Tensor hidden = saves ? at::empty_like(gate) : gate;
    activate_and_multiply(mlp.activation, gate, up, gate_bias, up_bias,
                          saves && (gate_bias.defined() || up_bias.defined()), hidden);
    const Tensor output = linear(hidden, mlp.down_weight, mlp.down_bias);
    return GatedMlpForward::Result(with_leading_dims(output, mlp.input), with_leading_dims(gate, mlp.input),
                                   with_leading_dims(up, mlp.input));
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) { impl_ops<Device>(m); }

}  // namespace fastops::mps
