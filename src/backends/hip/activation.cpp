#include "backends/hip/activation.h"

#include <ATen/ops/empty_like.h>

#include "backends/hip/launch.h"
#include "ops/activation.h"

namespace fastops::hip {
namespace {

// y = f(x) for any strides. Where they do not make a grid, x is brought into y's layout and changed there.
void forward_into(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  if (const auto grid = find_grid({y}, {x})) {
    check(activation_forward(call_for(spec, y, *grid), grid->matrices[1], grid->matrices[0]));
  } else if (y.is_non_overlapping_and_dense()) {
    y.copy_(x);
    forward_into(spec, y, y);
  } else {
    const Tensor dense = at::empty_like(x);
    forward_into(spec, x, dense);
    y.copy_(dense);
  }
}

}  // namespace

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  Tensor result = at::empty_like(self);
  forward_into(spec, self, result);
  return result;
}

Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out) {
  const c10::DeviceGuard guard(self.device());
  forward_into(spec, self, out);
  return out;
}

namespace {

Tensor backward(const Tensor& grad_output, const Tensor& saved, std::string_view activation,
                c10::ArrayRef<double> params, bool from_output, int64_t order) {
  const auto spec = check_activation_backward(grad_output, saved, activation, params, from_output, order);
  const c10::DeviceGuard guard(saved.device());
  const Tensor result = at::empty_like(saved);
  std::array<Tensor, 2> inputs = {grad_output, saved};
  auto grid = find_grid({result}, inputs);
  if (!grid) {
    // They make one once all are in the result's layout.
    for (Tensor& input : inputs) input = at::empty_like(result).copy_(input);
    grid = find_grid({result}, inputs);
  }
  const auto& m = grid->matrices;
  check(
      hip::activation_backward(call_for(spec, result, *grid), static_cast<int>(order), from_output, m[1], m[2], m[0]));
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) {
  impl_activations<DeviceLayer<plain_activation, plain_activation_out>>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace fastops::hip
