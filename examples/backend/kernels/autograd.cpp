// PyTorch's own activations through those of fastops, so that a model with torch.nn.SiLU has them unchanged.
//
// fastops' ops bring their derivatives for every device: nothing is registered for them here. A kernel under
// AutogradPrivateUse1 is for an op whose derivative shall be another than PyTorch's on this device alone, as here that
// of the op which is called; under PrivateUse1 it serves where autograd is off.
#include <torch/library.h>

#include "launch.h"

namespace hostmem {
namespace {

using fastops::Activation;

Tensor silu(const Tensor& self) { return fastops::bias_act(self, std::nullopt, {Activation::silu, {}}); }

Tensor softshrink(const Tensor& self, const at::Scalar& lambd) {
  return fastops::bias_act(self, std::nullopt, {Activation::softshrink, {lambd.toDouble()}});
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("silu", TORCH_FN(silu));
  m.impl("softshrink", TORCH_FN(softshrink));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("silu", TORCH_FN(silu));
  m.impl("softshrink", TORCH_FN(softshrink));
}

}  // namespace hostmem
