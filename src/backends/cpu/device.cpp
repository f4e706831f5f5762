// The ops on CPU tensors.
#include "ops/device.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "backends/cpu/choice.h"
#include "backends/cpu/launch.h"
#include "backends/cpu/networks.h"
#include "backends/cpu/rows.h"
#include "ops/product.h"

namespace fastops::cpu {
namespace {

// ---- elementwise ----

// The elements in the order of the first tensor's memory. None where another one has many elements and each in another
// cache line than the next, while they lie closer along another axis: a pass that copies it in tiles is faster.
template <class... More>
auto in_order_of(const Tensor& first, const More&... more) {
  auto elements = strided<1 + sizeof...(more)>({first, more...}, dims_by_stride(first));
  constexpr int64_t few = 16384;
  if (!elements || first.numel() <= few) return elements;
  const auto is_crossed = [&](const auto& strides) {
    const auto is_closer = [&](int64_t stride) { return 0 < stride && stride < strides[0]; };
    return strides[0] * first.element_size() >= 64 && std::any_of(strides.begin() + 1, strides.end(), is_closer);
  };
  if (std::any_of(elements->strides.begin(), elements->strides.end(), is_crossed)) elements.reset();
  return elements;
}

bool activate_any(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  TorchCaller caller;
  if (same_layout(x, y)) {
    void* const y_data = y.mutable_data_ptr();  // first: where x is y and a lazy clone, its data moves
    activation_forward(caller, call_for(spec, x), x.const_data_ptr(), y_data, x.numel());
    return true;
  }
  // A result that overlaps the argument elsewhere than in place is written when all of that has been read.
  if (x.is_alias_of(y) && !x.is_same(y)) return false;
  const auto elements = in_order_of(y, x);
  if (!elements) return false;
  const Strided to = elements->writes(0, y);
  activation_forward(caller, call_for(spec, x), elements->walk, elements->reads(1, x), to);
  return true;
}

bool activate_backward_any(const ActivationBackwardArguments& backward, const Tensor& result) {
  const auto& [grad_output, saved, activation, from_output, order] = backward;
  TorchCaller caller;
  const Call call = call_for(activation, saved);
  if (same_layout(grad_output, result) && same_layout(saved, result)) {
    activation_backward(caller, call, order, from_output, grad_output.const_data_ptr(), saved.const_data_ptr(),
                        result.mutable_data_ptr(), result.numel());
    return true;
  }
  const auto elements = in_order_of(result, grad_output, saved);
  if (!elements) return false;
  activation_backward(caller, call, order, from_output, elements->walk, elements->reads(1, grad_output),
                      elements->reads(2, saved), elements->writes(0, result));
  return true;
}

// ---- over rows ----

// z = x + bias and y = f(z); z may be undefined, and each of them may be x. Their rows must be contiguous.
void add_bias_and_activate(const ActivationSpec& spec, const Tensor& x, const Tensor& bias, const Tensor& z,
                           const Tensor& y) {
  const Rows y_rows = result_rows(y);
  const Rows z_rows = result_rows(z);
  const RowView x_rows(x);
  const Tensor bias_row = bias.contiguous();
  TorchCaller caller;
  bias_forward(caller, call_for(spec, x), x_rows, bias_row.const_data_ptr(), z_rows, y_rows, x_rows.rows(),
               x_rows.columns());
}

// The gradients of x and of the bias through f, at saved + bias where there is one, and y, as far as they are wanted.
LayerSteps::Backward backward_of_rows(const Tensor& grad, const Tensor& saved, const Tensor& bias,
                                      const ActivationSpec& spec, bool from_output, LayerSteps::Wanted wanted,
                                      bool disposable) {
  const auto empty = [&] { return empty_result(saved.sizes(), saved); };
  LayerSteps::Backward results;
  if (wanted.grad) results.grad = disposable && grad.is_contiguous() ? grad : empty();
  if (wanted.y) results.y = from_output ? saved : empty();
  if (wanted.bias_grad) results.bias_grad = at::empty({saved.size(-1)}, saved.options().dtype(compute_type(saved)));
  const Rows dx_rows = result_rows(results.grad);
  const Rows y_rows = result_rows(from_output ? Tensor() : results.y);
  const RowView grad_rows(grad);
  const RowView saved_rows(saved);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  TorchCaller caller;
  bias_backward(caller, call_for(spec, saved), from_output, grad_rows, saved_rows,
                bias.defined() ? bias_row.const_data_ptr() : nullptr, dx_rows,
                wanted.bias_grad ? results.bias_grad.mutable_data_ptr() : nullptr, y_rows, saved_rows.rows(),
                saved_rows.columns());
  if (wanted.bias_grad) results.bias_grad = results.bias_grad.to(saved.scalar_type());
  return results;
}

// A 0-d tensor is a row of one element.
Tensor at_least_1d(const Tensor& tensor) { return tensor.defined() && tensor.dim() == 0 ? tensor.view({1}) : tensor; }

// The gradients of gate and up, and f(gate) * up, into those tensors that are defined.
void gate_backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const GatedGradients& results) {
  const Rows grad_gate = result_rows(at_least_1d(results.gate));
  const Rows grad_up = result_rows(at_least_1d(results.up));
  const Rows product = result_rows(at_least_1d(results.product));
  const RowView grad_rows(at_least_1d(grad_output));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  TorchCaller caller;
  gated_backward(caller, call_for(spec, gate), grad_rows, gate_rows, up_rows, grad_gate, grad_up, product,
                 gate_rows.rows(), gate_rows.columns());
}

// result = f(gate) * up; it may be one of the two.
void gate_forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  const Rows rows = result_rows(at_least_1d(result));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  TorchCaller caller;
  gated_forward(caller, call_for(spec, gate), gate_rows, up_rows, rows, gate_rows.rows(), gate_rows.columns());
}

// ---- the device ----

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return empty_result(sizes, like); }
  static Tensor empty_like(const Tensor& like) { return empty_result_like(like); }

  static constexpr auto try_activation = activate_any;
  static constexpr auto try_activation_backward = activate_backward_any;
  static constexpr auto bias_act = add_bias_and_activate;
  static constexpr auto bias_act_backward = backward_of_rows;
  static constexpr auto act_mul = gate_forward;
  static constexpr auto act_mul_backward = gate_backward;

  static Tensor product(const Tensor& a, const Tensor& b) {
    if (a.stride(1) == 1 && b.stride(0) == 1 && b.stride(1) != 1) return linear(a, b.t(), {});
    if (Tensor result = unpacked_product(a, b); result.defined()) return result;
    Tensor result = empty({a.size(0), b.size(1)}, a);
    return at::mm_out(result, a, b);
  }
  // Undefined where the matrices are not for that.
  static Tensor unpacked_product(const Tensor& a, const Tensor& b) {
    if (!goes_unpacked(a, b)) return {};
    Tensor result = empty({a.size(0), b.size(1)}, a);
    TorchCaller caller;
    multiply(caller, dtype_of(a),
             {a.const_data_ptr(),
              a.stride(0),
              a.stride(1),
              a.size(1),
              {b.const_data_ptr(), b.stride(0)},
              result_rows(result)},
             a.size(0), b.size(1));
    return result;
  }
  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const std::array weights = {weight};
    if (goes_unpacked(x, weights, Pass::forward)) {
      constexpr ActivationSpec identity{Activation::identity, {}};
      return *try_mlp({x, weights, {bias}, identity, identity}, nullptr);
    }
    Tensor z = empty({x.size(0), weight.size(0)}, x);
    if (!bias.defined()) return at::mm_out(z, x, weight.t());
    return at::addmm_out(z, bias, x, weight.t());
  }

  static constexpr bool takes_ensembles = true;
  static constexpr auto try_mlp = cpu::try_mlp;
  static constexpr auto try_mlp_backward = cpu::try_mlp_backward;
  static constexpr auto try_mlp_jet = cpu::try_mlp_jet;
  static constexpr auto try_mlp_jet_backward = cpu::try_mlp_jet_backward;
  static constexpr auto try_gated_mlp = cpu::try_gated_mlp;
  static constexpr auto try_gated_mlp_backward = cpu::try_gated_mlp_backward;

  static constexpr auto rows = steps_on_rows;
  static constexpr auto rows_backward = steps_on_rows_backward;
  static constexpr auto try_sequential = cpu::try_sequential;
  static constexpr auto try_sequential_backward = cpu::try_sequential_backward;
};

// a @ b by the kernels here, where they are the faster ones, or PyTorch's would read past the ends of rows.
Tensor product_here(const Tensor& a, const Tensor& b) {
  const bool fit = a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.scalar_type() == b.scalar_type();
  if (!fit) return {};
  constexpr ActivationSpec identity{Activation::identity, {}};
  const Tensor weight = b.t();
  if (!reads_past_rows(a, a.size(1))) {
    if (a.scalar_type() != at::kFloat && a.scalar_type() != at::kDouble) return {};
    if (Tensor result = Device::unpacked_product(a, b); result.defined()) return result;
    if (a.stride(1) != 1 || !weight.is_contiguous()) return {};
  }
  return try_mlp({a, std::array{weight}, {Tensor()}, identity, identity}, nullptr).value_or(Tensor());
}
const RegisterProduct registered_product(product_here);

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) { impl_ops<Device>(m); }

}  // namespace fastops::cpu
