// The derivative of an activation of any order, from its gradient formula, as kernels compute it.
#pragma once

#include "activations/activations.h"
#include "activations/jet.h"

namespace fastops {

// The highest order, up to max_order, that has a derivative which is not zero everywhere.
template <class A>
constexpr int last_order() {
  return int(A::degree_in_input) < int(max_order) ? int(A::degree_in_input) + 1 : int(max_order);
}

// gradient_of_order, but zero for infinite gradients, too, where the derivative is zero everywhere.
template <class A, int order, class T, class Gradient>
FASTOPS_HOST_DEVICE T derivative_of_order(T g, T saved, bool from_output, Gradient gradient) {
  const int degree = from_output ? int(A::degree_in_output) : int(A::degree_in_input);
  if (order > degree + 1) return T(ScalarOf<T>(0));
  return gradient_of_order<order>(g, saved, gradient);
}

}  // namespace fastops
