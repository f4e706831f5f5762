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
struct OfLinearPieces {
  enum : int { in_input = 0, in_output = 0 };
};
template <>
struct GradientDegree<activations::Identity> : OfLinearPieces {};
template <>
struct GradientDegree<activations::ReLU> : OfLinearPieces {};
template <>
struct GradientDegree<activations::Hardtanh> : OfLinearPieces {};
template <>
struct GradientDegree<activations::ReLU6> : OfLinearPieces {};
template <>
struct GradientDegree<activations::LeakyReLU> : OfLinearPieces {};
template <>
struct GradientDegree<activations::Softshrink> : OfLinearPieces {};
template <>
struct GradientDegree<activations::Hardshrink> : OfLinearPieces {};
template <>
struct GradientDegree<activations::Hardsigmoid> : OfLinearPieces {};
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

// The highest order, up to max_order, that has a derivative which is not zero everywhere.
template <class A>
constexpr int last_order() {
  return int(GradientDegree<A>::in_input) < max_order ? int(GradientDegree<A>::in_input) + 1 : int(max_order);
}

// gradient_of_order, but zero for infinite gradients, too, where the derivative is zero everywhere.
template <class A, int order, class T, class Gradient>
FASTOPS_HOST_DEVICE T derivative_of_order(T g, T saved, bool from_output, Gradient gradient) {
  const int degree = from_output ? int(GradientDegree<A>::in_output) : int(GradientDegree<A>::in_input);
  if (order > degree + 1) return T(ScalarOf<T>(0));
  return gradient_of_order<order>(g, saved, gradient);
}

}  // namespace fastops
