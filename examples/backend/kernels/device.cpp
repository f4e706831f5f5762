// fastops' ops on this device: the functions of <fastops/ops/device.h>.
#include <fastops/ops/device.h>

#include "launch.h"

namespace hostmem {
namespace {

using fastops::GatedGradients;
using fastops::LayerSteps;
using fastops::same_layout;

struct Device {
  using Guard = c10::DeviceGuard;

  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }
  static Tensor empty_like(const Tensor& like) { return at::empty_like(like); }

  // ---- elementwise: of tensors that have their elements in one order ----

  static bool try_activation(const ActivationSpec& f, const Tensor& x, const Tensor& y) {
    if (!same_layout(x, y)) return false;
    void* const result = data(y);  // first: where x is y and a lazy clone, its data moves
    kernels_for(f, x).forward(const_data(x), result, y.numel(), f.params(), /*stream=*/false);
    return true;
  }

  static bool try_activation_backward(const fastops::ActivationBackwardArguments& backward, const Tensor& result) {
    const auto& [grad_output, saved, f, from_output, order] = backward;
    if (!same_layout(grad_output, result) || !same_layout(saved, result)) return false;
    const auto& table = kernels_for(f, result);
    const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
    kernel(const_data(grad_output), const_data(saved), data(result), result.numel(), f.params(), /*stream=*/false);
    return true;
  }

  // ---- over rows, which are contiguous ----

  static void bias_act(const ActivationSpec& f, const Tensor& x, const Tensor& bias, const Tensor& z, const Tensor& y) {
    const auto sums = rows_of(z);  // the results first, as above
    const auto results = rows_of(y);
    const Tensor source = x.contiguous();
    const Tensor row = bias.contiguous();
    kernels_for(f, x).bias_forward(const_rows_of(source), const_data(row), sums, results, rows(x), columns(x),
                                   f.params());
  }

  static LayerSteps::Backward bias_act_backward(const Tensor& grad, const Tensor& saved, const Tensor& bias,
                                                const ActivationSpec& f, bool from_output, LayerSteps::Wanted wanted,
                                                bool /*disposable*/) {
    const auto& table = kernels_for(f, saved);
    const Tensor source = grad.contiguous();
    const Tensor point = saved.contiguous();
    const Tensor row = bias.defined() ? bias.contiguous() : bias;
    LayerSteps::Backward results;
    if (wanted.grad) results.grad = empty(saved.sizes(), saved);
    if (wanted.y) results.y = from_output ? saved : empty(saved.sizes(), saved);
    Tensor sums;
    if (wanted.bias_grad) sums = at::empty({columns(saved)}, saved.options().dtype(fastops::compute_type(saved)));
    (from_output ? table.bias_backward_from_output : table.bias_backward)(
        const_rows_of(source), const_rows_of(point), const_data(row), rows_of(results.grad), data(sums),
        rows_of(from_output ? Tensor() : results.y), rows(saved), columns(saved), f.params());
    if (wanted.bias_grad) results.bias_grad = sums.to(saved.scalar_type());
    return results;
  }

  static void act_mul(const ActivationSpec& f, const Tensor& gate, const Tensor& up, const Tensor& y) {
    const auto results = rows_of(y);
    const Tensor gate_rows = gate.contiguous();
    const Tensor up_rows = up.contiguous();
    kernels_for(f, gate).gated_forward(const_rows_of(gate_rows), const_rows_of(up_rows), results, rows(gate),
                                       columns(gate), f.params());
  }

  static void act_mul_backward(const ActivationSpec& f, const Tensor& grad, const Tensor& gate, const Tensor& up,
                               const GatedGradients& results) {
    const Tensor grad_rows = grad.contiguous();
    const Tensor gate_rows = gate.contiguous();
    const Tensor up_rows = up.contiguous();
    kernels_for(f, gate).gated_backward(const_rows_of(grad_rows), const_rows_of(gate_rows), const_rows_of(up_rows),
                                        rows_of(results.gate), rows_of(results.up), rows_of(results.product),
                                        rows(gate), columns(gate), f.params());
  }

  // ---- matrix products: a vendor's library; here PyTorch's, which sees the memory of the device ----

  static Tensor product(const Tensor& a, const Tensor& b) {
    const Tensor result = empty({a.size(0), b.size(1)}, a);
    Tensor view = on_host(result);
    at::mm_out(view, on_host(a), on_host(b));
    return result;
  }

  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    if (!bias.defined()) return product(x, weight.t());
    const Tensor result = empty({x.size(0), weight.size(0)}, x);
    Tensor view = on_host(result);
    at::addmm_out(view, on_host(bias), on_host(x), on_host(weight).t());
    return result;
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) { fastops::impl_ops<Device>(m); }

}  // namespace hostmem
