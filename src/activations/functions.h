// Functions that the formulas of several activations share, beyond what every number type offers (README.md).
//
// Each has a definition here that serves any number type. A number type that knows a faster or more exact way overloads
// the function in its own namespace, as backends/cpu/kernels/vec.h does.
#pragma once

#include "activations/scalar_of.h"

namespace fastops {
namespace activations {

// a * b + c, rounded once where that is as fast.
template <class T, class B, class C>
FASTOPS_HOST_DEVICE T multiply_add(T a, B b, C c) {
  return a * b + c;
}

template <class T, class S>
FASTOPS_HOST_DEVICE T clamp(T x, S low, S high) {
  return select(x < low, low, select(x > high, high, x));
}

template <class T, class S>
FASTOPS_HOST_DEVICE T at_most(T x, S high) {
  return select(x > high, high, x);
}

template <class T, class S>
FASTOPS_HOST_DEVICE T at_least(T x, S low) {
  return select(x < low, low, x);
}

// a / b for b >= 1, which may be infinite.
template <class T>
FASTOPS_HOST_DEVICE T quotient(T a, T b) {
  return a / b;
}

// a / b for a number b and an a that is not infinite.
template <class T, class S>
FASTOPS_HOST_DEVICE T quotient_by_number(T a, S b) {
  return a / T(b);
}

// a / (a + b) for positive a and b whose sum is from 1 to 1e30.
template <class T, class S>
FASTOPS_HOST_DEVICE T quotient_by_sum(T a, S b) {
  return a / (a + b);
}

// 1 / b for b from 1 to 1e30.
template <class T>
FASTOPS_HOST_DEVICE T reciprocal(T b) {
  using S = ScalarOf<T>;
  return S(1) / b;
}

// 2^x
template <class T>
FASTOPS_HOST_DEVICE T exp2(T x) {
  using S = ScalarOf<T>;
  return exp(x * S(0.69314718055994530942));
}

// a / (exp(b) + 1) and a / (2^b + 1)
template <class T>
FASTOPS_HOST_DEVICE T quotient_by_exp(T a, T b) {
  using S = ScalarOf<T>;
  return quotient(a, exp(b) + S(1));
}
template <class T>
FASTOPS_HOST_DEVICE T quotient_by_exp2(T a, T b) {
  using S = ScalarOf<T>;
  return quotient(a, exp2(b) + S(1));
}

// exp(-|x|), which does not overflow. As a choice between x and -x it has derivatives at 0 that fit those of its users.
template <class T>
FASTOPS_HOST_DEVICE T decay(T x) {
  using S = ScalarOf<T>;
  return exp(select(x < S(0), x, -x));
}

// log(1 + exp(x)), which does not overflow.
template <class T>
FASTOPS_HOST_DEVICE T log1p_exp(T x) {
  using S = ScalarOf<T>;
  return at_least(x, S(0)) + log1p(decay(x));
}

// x - tanh(x). Where the two are close, the eighth convergent of tanh's continued fraction, which is
// x / (1 + x^2 / (3 + x^2 / (5 + ...))): all terms of its difference to x have one sign; relative error 2.3e-16 at 0.7.
// A zero is +0, as x - x is.
template <class T>
FASTOPS_HOST_DEVICE T tanh_remainder(T x) {
  using S = ScalarOf<T>;
  const T s = x * x;
  const T above = multiply_add(multiply_add(s + S(594), s, S(45045)), s, S(675675));
  const T below = multiply_add(multiply_add(multiply_add(s + S(630), s, S(51975)), s, S(945945)), s, S(2027025));
  const T near = multiply_add(x * s, above / below, x - x);
  const T far = x - tanh(x);
  return select(x < S(-0.7), far, select(x > S(0.7), far, near));
}

// The logistic function 1 / (1 + exp(-x)) and what it lacks to 1, 1 / (1 + exp(x)); its derivative is their product.
// Nothing overflows or cancels, here and in derivatives.
template <class T>
struct Logistic {
  T value;
  T complement;
};

template <class T>
FASTOPS_HOST_DEVICE Logistic<T> logistic(T x) {
  using S = ScalarOf<T>;
  const T e = decay(x);
  const T large = reciprocal(e + S(1));
  const T small = e * large;
  return {select(x < S(0), small, large), select(x < S(0), large, small)};
}

// The distribution function of the standard normal distribution and its derivative.
template <class T>
struct Normal {
  T cumulative;
  T density;
};

template <class T>
FASTOPS_HOST_DEVICE Normal<T> normal(T x) {
  using S = ScalarOf<T>;
  return {(erf(x * S(0.70710678118654752440)) + S(1)) * S(0.5), exp(x * x * S(-0.5)) * S(0.39894228040143267794)};
}

}  // namespace activations
}  // namespace fastops
