#include "backends/metal/activation.h"

#include <ATen/ops/empty_like.h>

#include "backends/metal/elementwise.h"
#include "ops/activation.h"
#include "ops/checks.h"

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

struct MpsLayer {
  static Tensor functional(const PlainOp&, const ActivationSpec& spec, const Tensor& self) {
    check_tensor(info(spec.id).name, "self", self);
    return plain_activation(spec, self);
  }
  static Tensor& out(const PlainOp&, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_tensor(info(spec.id).name, "self", self);
    prepare_out(info(spec.id).name, out, self);
    return plain_activation_out(spec, self, out);
  }
  static Tensor& in_place(const PlainOp&, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    return plain_activation_out(spec, self, self);
  }
};

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
  impl_activations<MpsLayer>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace fastops::mps
