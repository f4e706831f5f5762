// The derivatives of the plain activations.
#include "activations/derivative.h"
#include "backends/hip/kernels/transform.h"

namespace fastops::hip {
namespace {

template <class A, int order, bool from_output, class S>
struct Backward {
  Gradient<A, from_output, S> gradient;
  template <class N>
  __device__ void operator()(const N (&x)[2], N (&y)[1]) const {
    y[0] = derivative_of_order<A, order>(x[0], x[1], from_output, gradient);
  }
};

template <class A, class Storage, int order, bool from_output>
Error run(const Call& call, Matrix grad, Matrix saved, Matrix dx) {
  const Backward<A, order, from_output, Compute<Storage>> formula{{compute_params<Storage>(call.params)}};
  return launch_transform<Storage>(call, formula, {grad, saved}, {dx});
}

template <class A, class Storage, bool from_output>
Error of_order(const Call& call, int order, Matrix grad, Matrix saved, Matrix dx) {
  static_assert(max_order == 3, "");
  switch (order) {
    case 1:
      return run<A, Storage, 1, from_output>(call, grad, saved, dx);
    case 2:
      return run<A, Storage, 2, from_output>(call, grad, saved, dx);
    default:
      return run<A, Storage, 3, from_output>(call, grad, saved, dx);
  }
}

}  // namespace

Error activation_backward(const Call& call, int order, bool from_output, Matrix grad, Matrix saved, Matrix dx) {
  return dispatch(call, [&]<class A, class Storage>() {
    if constexpr (A::has_gradient_from_output) {
      if (from_output) return of_order<A, Storage, true>(call, order, grad, saved, dx);
    }
    return of_order<A, Storage, false>(call, order, grad, saved, dx);
  });
}

}  // namespace fastops::hip
