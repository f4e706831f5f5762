// The derivative of an activation of any order, from its gradient formula, as kernels compute it.
#pragma once

#include "activations/activations.h"
#include "activations/jet.h"

namespace fastops {

// The degree of the polynomials that a gradient formula consists of, where it consists of polynomials.
template <class A>
struct GradientDegree {
  enum : int { in_input = max_order, in_output = max_order };
};
template <>
struct GradientDegree<activations::Hardswish> {
  enum : int { in_input = 1, in_output = max_order };
};
template <>
struct GradientDegree<activations::ReLUSquared> {
  enum : int { in_input = 1, in_output = max_order };
};
template <>
struct GradientDegree<activations::ELU> {
  enum : int { in_input = max_order, in_output = 1 };
};
template <>
struct GradientDegree<activations::SELU> {
  enum : int { in_input = max_order, in_output = 1 };
};

// gradient_of_order, but zero for infinite gradients, too, where the derivative is zero everywhere. (Formulas that
// select the gradient and do not multiply it give that by themselves.)
template <class A, int order, class T, class Gradient>
FASTOPS_HOST_DEVICE T derivative_of_order(T g, T saved, bool from_output, Gradient gradient) {
  const int degree = from_output ? int(GradientDegree<A>::in_output) : int(GradientDegree<A>::in_input);
  if (order > degree + 1) return T(ScalarOf<T>(0));
  return gradient_of_order<order>(g, saved, gradient);
}

}  // namespace fastops
