// The plain activations and their derivatives, elementwise over tensors of any strides.
#include "activations/derivative.h"
#include "activations/table.h"
#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

template <class A, class T>
[[kernel]] void activation(
    device const T* self [[buffer(0)]],
    device T* result [[buffer(1)]],
    constant ElementwiseArguments& to [[buffer(2)]],
    uint3 index [[thread_position_in_grid]]) {
  const QuadPlace<2> place = place_of<2>(to, index);
  const Params<float> params = {to.params[0], to.params[1]};
  Quad x = load(self, to, 0, place);
  for (int i = 0; i < quad; ++i) x.v[i] = A::value(x.v[i], params);
  store(x, result, to, 1, place);
}

// grad_output times the derivative of some order at `saved`.
template <class A, class T, int order>
[[kernel]] void activation_backward(
    device const T* grad_output [[buffer(0)]],
    device const T* saved [[buffer(1)]],
    device T* result [[buffer(2)]],
    constant ElementwiseArguments& to [[buffer(3)]],
    uint3 index [[thread_position_in_grid]]) {
  const QuadPlace<3> place = place_of<3>(to, index);
  const Gradient<A> gradient = {{to.params[0], to.params[1]}, to.from_output != 0};
  Quad g = load(grad_output, to, 0, place);
  const Quad s = load(saved, to, 1, place);
  for (int i = 0; i < quad; ++i) g.v[i] = derivative_of_order<A, order>(g.v[i], s.v[i], gradient.from_output, gradient);
  store(g, result, to, 2, place);
}

#define FASTOPS_KERNELS(name, A, T)                                                   \
  FASTOPS_KERNEL("fastops_" #name "_" #T, activation<A, T>)                           \
  FASTOPS_KERNEL("fastops_" #name "_backward1_" #T, activation_backward<A, T, 1>)     \
  FASTOPS_KERNEL("fastops_" #name "_backward2_" #T, activation_backward<A, T, 2>)     \
  FASTOPS_KERNEL("fastops_" #name "_backward3_" #T, activation_backward<A, T, 3>)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
