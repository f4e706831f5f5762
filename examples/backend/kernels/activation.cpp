// The plain activations, their in-place and out= forms, and their derivatives.
#include "activation.h"

#include <torch/library.h>

namespace hostmem {
namespace {

using fastops::PlainOp;

// y = f(x) for a dense y; x may be y.
void run(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  const Tensor source = in_layout_of(y, x);
  kernels_for(spec, x).forward(const_data(source), data(y), y.numel(), spec.params(), /*stream=*/false);
}

}  // namespace

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self) {
  Tensor result = at::empty_like(self);
  run(spec, self, result);
  return result;
}

void plain_activation_out(const ActivationSpec& spec, const Tensor& self, const Tensor& out) {
  if (out.is_non_overlapping_and_dense()) {
    run(spec, self, out);
  } else {
    out.copy_(plain_activation(spec, self));
  }
}

namespace {

struct Layer {
  static Tensor functional(const PlainOp&, const ActivationSpec& spec, const Tensor& self) {
    fastops::check_tensor(info(spec.id).name, "self", self);
    return plain_activation(spec, self);
  }
  static Tensor& out(const PlainOp&, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    fastops::check_tensor(info(spec.id).name, "self", self);
    fastops::prepare_out(info(spec.id).name, out, self);
    plain_activation_out(spec, self, out);
    return out;
  }
  static Tensor& in_place(const PlainOp&, const ActivationSpec& spec, Tensor& self) {
    fastops::check_in_place(info(spec.id).name, self);
    plain_activation_out(spec, self, self);
    return self;
  }
};

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
  fastops::impl_activations<Layer>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace hostmem
