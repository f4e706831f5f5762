// The plain activations, their in-place and out= forms, and their derivatives.
#include "activation.h"

#include <torch/library.h>

namespace hostmem {
namespace {

// y = f(x) for a dense y; x may be y.
void run(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  void* const result = data(y);  // first: where x is y and a lazy clone, its data moves
  const Tensor source = in_layout_of(y, x);
  kernels_for(spec, x).forward(const_data(source), result, y.numel(), spec.params(), /*stream=*/false);
}

}  // namespace

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self) {
  Tensor result = at::empty_like(self);
  run(spec, self, result);
  return result;
}

Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out) {
  if (out.is_non_overlapping_and_dense()) {
    run(spec, self, out);
  } else {
    out.copy_(plain_activation(spec, self));
  }
  return out;
}

namespace {

Tensor backward(const Tensor& grad_output, const Tensor& saved, std::string_view activation,
                c10::ArrayRef<double> params, bool from_output, int64_t order) {
  const auto spec = fastops::check_activation_backward(grad_output, saved, activation, params, from_output, order);
  const auto& table = kernels_for(spec, saved);
  const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
  Tensor result = at::empty_like(saved);
  const Tensor grad = in_layout_of(result, grad_output);
  const Tensor point = in_layout_of(result, saved);
  kernel(const_data(grad), const_data(point), data(result), result.numel(), spec.params(), /*stream=*/false);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) {
  fastops::impl_activations<fastops::DeviceLayer<plain_activation, plain_activation_out>>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace hostmem
