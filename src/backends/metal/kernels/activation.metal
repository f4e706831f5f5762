// The plain activations, elementwise over tensors of any strides.
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

#define FASTOPS_ACTIVATION(name, A, T) FASTOPS_KERNEL("fastops_" #name "_" #T, activation<A, T>)
#define FASTOPS_KERNELS(name, A, T) FASTOPS_ACTIVATION(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
