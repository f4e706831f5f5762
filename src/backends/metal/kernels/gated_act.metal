// activation(gate) * up over rows, forward and backward.
#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

// With has_saved, the sums with the biases go to saved_gate and saved_up, which may be gate and up themselves.
template <class A, class T>
[[kernel]] void gated_act(
    device const T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    device T* result [[buffer(2)]],
    device T* saved_gate [[buffer(3)]],
    device T* saved_up [[buffer(4)]],
    device const T* gate_bias [[buffer(5)]],
    device const T* up_bias [[buffer(6)]],
    constant RowArguments& to [[buffer(7)]],
    uint2 index [[thread_position_in_grid]]) {
  const uint column = index.x * quad;
  const uint count = metal::min(uint(quad), to.columns - column);
  const Params<float> params = {to.params[0], to.params[1]};
  Quad g = load(gate + long(index.y) * to.strides[0] + column, count, to.vectors);
  Quad u = load(up + long(index.y) * to.strides[1] + column, count, to.vectors);
  if (to.flags & has_gate_bias) {
    const Quad b = load(gate_bias + column, count, to.vectors);
    for (int i = 0; i < quad; ++i) g.v[i] = g.v[i] + b.v[i];
  }
  if (to.flags & has_up_bias) {
    const Quad b = load(up_bias + column, count, to.vectors);
    for (int i = 0; i < quad; ++i) u.v[i] = u.v[i] + b.v[i];
  }
  if (to.flags & has_saved) {
    store(g, saved_gate + long(index.y) * to.strides[3] + column, count, to.vectors);
    store(u, saved_up + long(index.y) * to.strides[4] + column, count, to.vectors);
  }
  for (int i = 0; i < quad; ++i) g.v[i] = A::value(g.v[i], params) * u.v[i];
  store(g, result + long(index.y) * to.strides[2] + column, count, to.vectors);
}

// grad_gate = grad_output * up * f'(gate), grad_up = grad_output * f(gate), as far as they are wanted.
template <class A, class T>
[[kernel]] void gated_act_backward(
    device const T* grad_output [[buffer(0)]],
    device const T* gate [[buffer(1)]],
    device const T* up [[buffer(2)]],
    device T* grad_gate [[buffer(3)]],
    device T* grad_up [[buffer(4)]],
    constant RowArguments& to [[buffer(5)]],
    uint2 index [[thread_position_in_grid]]) {
  const uint column = index.x * quad;
  const uint count = metal::min(uint(quad), to.columns - column);
  const Params<float> params = {to.params[0], to.params[1]};
  const Quad d = load(grad_output + long(index.y) * to.strides[0] + column, count, to.vectors);
  const Quad g = load(gate + long(index.y) * to.strides[1] + column, count, to.vectors);
  if (to.flags & has_grad_gate) {
    Quad u = load(up + long(index.y) * to.strides[2] + column, count, to.vectors);
    for (int i = 0; i < quad; ++i) u.v[i] = A::template gradient<Number>(d.v[i] * u.v[i], g.v[i], params);
    store(u, grad_gate + long(index.y) * to.strides[3] + column, count, to.vectors);
  }
  if (to.flags & has_grad_up) {
    Quad result;
    for (int i = 0; i < quad; ++i) result.v[i] = A::value(g.v[i], params) * d.v[i];
    store(result, grad_up + long(index.y) * to.strides[4] + column, count, to.vectors);
  }
}

#define FASTOPS_GATED_ACT(name, A, T) FASTOPS_KERNEL("fastops_gated_" #name "_" #T, gated_act<A, T>)
#define FASTOPS_GATED_ACT_BACKWARD(name, A, T) \
  FASTOPS_KERNEL("fastops_gated_" #name "_backward_" #T, gated_act_backward<A, T>)
#define FASTOPS_KERNELS(name, A, T) FASTOPS_GATED_ACT(name, A, T) FASTOPS_GATED_ACT_BACKWARD(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
