// activation(gate) * up, forward and backward.
#include "backends/hip/kernels/transform.h"

namespace fastops::hip {
namespace {

template <class A, class S>
struct Forward {
  Params<S> params;
  template <class N>
  __device__ void operator()(const N (&x)[2], N (&y)[1]) const {
    y[0] = A::value(x[0], params) * x[1];
  }
};

template <class A, class S>
struct Backward {
  Params<S> params;
  template <class N>
  __device__ void operator()(const N (&x)[3], N (&y)[3]) const {
    const N grad = x[0], gate = x[1], up = x[2];
    const N value = A::value(gate, params);
    y[0] = A::template gradient<N>(grad * up, gate, params);
    y[1] = value * grad;
    y[2] = value * up;
  }
};

}  // namespace

Error gated_forward(const Call& call, Matrix gate, Matrix up, Matrix y) {
  return dispatch(call, [&]<class A, class Storage>() {
    const Forward<A, Compute<Storage>> formula{compute_params<Storage>(call.params)};
    return launch_transform<Storage>(call, formula, {gate, up}, {y});
  });
}

Error gated_backward(const Call& call, Matrix grad, Matrix gate, Matrix up, Matrix dgate, Matrix dup, Matrix y) {
  return dispatch(call, [&]<class A, class Storage>() {
    const Backward<A, Compute<Storage>> formula{compute_params<Storage>(call.params)};
    return launch_transform<Storage>(call, formula, {grad, gate, up}, {dgate, dup, y});
  });
}

}  // namespace fastops::hip
