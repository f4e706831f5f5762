#include "backends/metal/activation.h"

#include <ATen/ops/empty_like.h>

#include "backends/metal/elementwise.h"
#include "ops/activation.h"

namespace fastops::mps {

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self) {
  Tensor result = at::empty_like(self);
  return plain_activation_out(spec, self, result);
}

Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out) {
  elementwise({KernelKind::activation, spec.id, self}, spec, /*from_output=*/false, {self}, out);
  return out;
}

namespace {

Tensor backward(const Tensor& grad_output, const Tensor& saved, std::string_view activation,
                c10::ArrayRef<double> params, bool from_output, int64_t order) {
  const auto spec = check_activation_backward(grad_output, saved, activation, params, from_output, order);
  static_assert(max_order == 3);
  constexpr KernelKind kinds[] = {KernelKind::backward1, KernelKind::backward2, KernelKind::backward3};
  Tensor result = at::empty_like(saved);
  elementwise({kinds[order - 1], spec.id, saved}, spec, from_output, {grad_output, saved}, result);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, MPS, m) {
  impl_activations<DeviceLayer<plain_activation, plain_activation_out>>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace fastops::mps
