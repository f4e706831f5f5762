// The derivatives of the plain activations, elementwise over tensors of any strides.
#include "activations/derivative.h"
#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

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

#define FASTOPS_BACKWARD(name, A, T, order) \
  FASTOPS_KERNEL("fastops_" #name "_backward" #order "_" #T, activation_backward<A, T, order>)
#define FASTOPS_BACKWARD1(name, A, T) FASTOPS_BACKWARD(name, A, T, 1)
#define FASTOPS_BACKWARD2(name, A, T) FASTOPS_BACKWARD(name, A, T, 2)
#define FASTOPS_BACKWARD3(name, A, T) FASTOPS_BACKWARD(name, A, T, 3)
#define FASTOPS_KERNELS(name, A, T) \
  FASTOPS_BACKWARD1(name, A, T)     \
  FASTOPS_BACKWARD2(name, A, T)     \
  FASTOPS_BACKWARD3(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
