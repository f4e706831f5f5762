// Truncated Taylor series: a number type that turns a gradient formula into its higher derivatives.
//
// A Jet<T, N> holds the coefficients c[0] + c[1] t + ... + c[N] t^N of a function of t. A formula applied to the jet
// x + t yields the Taylor coefficients of that formula at x: its k-th derivative is k! c[k]. Products are
// convolutions; for y = h(x) the recurrences follow from y' = h'(x) x', coefficient by coefficient (Griewank and
// Walther, "Evaluating Derivatives", 2nd ed., chapter 13). Comparisons look at c[0]: a formula's branches are chosen at
// the point, its derivatives are those of the chosen branch.
#pragma once

#include "activations/functions.h"

namespace fastops {

// Backends have kernels for derivatives up to this order: the third is what training on a second derivative takes.
enum : int { max_order = 3 };

template <class T, int N>
struct Jet {
  using scalar = ScalarOf<T>;

  T c[N + 1];

  Jet() = default;
  // A constant: a scalar or a number of the base type. Implicit, as formulas mix them freely.
  template <class C>
  FASTOPS_HOST_DEVICE Jet(C value) {
    c[0] = T(value);
    for (int k = 1; k <= N; ++k) c[k] = T(scalar(0));
  }
  FASTOPS_HOST_DEVICE static Jet variable(T value) {
    Jet x(value);
    if (N > 0) x.c[N > 0 ? 1 : 0] = T(scalar(1));
    return x;
  }
};

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator-(Jet<T, N> a) {
  for (int k = 0; k <= N; ++k) a.c[k] = -a.c[k];
  return a;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator+(Jet<T, N> a, Jet<T, N> b) {
  for (int k = 0; k <= N; ++k) a.c[k] = a.c[k] + b.c[k];
  return a;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator-(Jet<T, N> a, Jet<T, N> b) {
  for (int k = 0; k <= N; ++k) a.c[k] = a.c[k] - b.c[k];
  return a;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator*(Jet<T, N> a, Jet<T, N> b) {
  Jet<T, N> product;
  for (int k = 0; k <= N; ++k) {
    product.c[k] = a.c[0] * b.c[k];
    for (int i = 1; i <= k; ++i) product.c[k] = product.c[k] + a.c[i] * b.c[k - i];
  }
  return product;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator/(Jet<T, N> a, Jet<T, N> b) {
  Jet<T, N> quotient;
  for (int k = 0; k <= N; ++k) {
    T rest = a.c[k];
    for (int i = 0; i < k; ++i) rest = rest - quotient.c[i] * b.c[k - i];
    quotient.c[k] = rest / b.c[0];
  }
  return quotient;
}

// A scalar or a constant of the base type scales or shifts; C is either.
template <class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> operator+(Jet<T, N> a, C b) {
  a.c[0] = a.c[0] + b;
  return a;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> operator-(Jet<T, N> a, C b) {
  a.c[0] = a.c[0] - b;
  return a;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> operator*(Jet<T, N> a, C b) {
  for (int k = 0; k <= N; ++k) a.c[k] = a.c[k] * b;
  return a;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> operator/(Jet<T, N> a, C b) {
  for (int k = 0; k <= N; ++k) a.c[k] = a.c[k] / b;
  return a;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator-(ScalarOf<T> a, Jet<T, N> b) {
  return -b + a;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator/(ScalarOf<T> a, Jet<T, N> b) {
  return Jet<T, N>(a) / b;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> operator*(T a, Jet<T, N> b) {
  return b * a;
}

// Coefficient k of y, where y' = slope x'. It takes the slope's coefficients up to k - 1, for which y's up to k - 1 are
// enough: a slope may depend on y itself.
template <class T, int N>
FASTOPS_HOST_DEVICE T integral_coefficient(int k, Jet<T, N> slope, Jet<T, N> x) {
  using S = ScalarOf<T>;
  T sum = slope.c[0] * x.c[k] * S(k);
  for (int i = 1; i < k; ++i) sum = sum + slope.c[i] * x.c[k - i] * S(k - i);
  return sum / S(k);
}

// e' = e x'
template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> exp(Jet<T, N> x) {
  Jet<T, N> e(exp(x.c[0]));
  for (int k = 1; k <= N; ++k) e.c[k] = integral_coefficient(k, e, x);
  return e;
}

// Integrates y' = slope x' from y(0) = first.
template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> integrate(T first, Jet<T, N> slope, Jet<T, N> x) {
  Jet<T, N> y(first);
  for (int k = 1; k <= N; ++k) y.c[k] = integral_coefficient(k, slope, x);
  return y;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> expm1(Jet<T, N> x) {
  return integrate(expm1(x.c[0]), exp(x), x);
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> log1p(Jet<T, N> x) {
  using S = ScalarOf<T>;
  return integrate(log1p(x.c[0]), S(1) / (x + S(1)), x);
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> erf(Jet<T, N> x) {
  using S = ScalarOf<T>;
  return integrate(erf(x.c[0]), exp(-(x * x)) * S(1.12837916709551257390), x);
}

// The slope is 1 - y^2.
template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> tanh(Jet<T, N> x) {
  using S = ScalarOf<T>;
  Jet<T, N> y(tanh(x.c[0])), slope(S(1) - y.c[0] * y.c[0]);
  for (int k = 1; k <= N; ++k) {
    y.c[k] = integral_coefficient(k, slope, x);
    if (k == N) break;
    slope.c[k] = -(y.c[0] * y.c[k]);
    for (int i = 1; i <= k; ++i) slope.c[k] = slope.c[k] - y.c[i] * y.c[k - i];
  }
  return y;
}

// y' = slope x' where slope' = -y x', from their values at the point.
template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> oscillation(T y_at, T slope_at, Jet<T, N> x) {
  Jet<T, N> y(y_at), slope(slope_at);
  for (int k = 1; k <= N; ++k) {
    y.c[k] = integral_coefficient(k, slope, x);
    if (k < N) slope.c[k] = -integral_coefficient(k, y, x);
  }
  return y;
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> sin(Jet<T, N> x) {
  return oscillation(sin(x.c[0]), cos(x.c[0]), x);
}

template <class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> cos(Jet<T, N> x) {
  return oscillation(cos(x.c[0]), -sin(x.c[0]), x);
}

// What it lacks to 1 changes as much the other way; the slope is the product of the two.
template <class T, int N>
FASTOPS_HOST_DEVICE activations::Logistic<Jet<T, N>> logistic(Jet<T, N> x) {
  using S = ScalarOf<T>;
  using activations::logistic;  // or the one of a number type that has its own
  const activations::Logistic<T> at = logistic(x.c[0]);
  Jet<T, N> value(at.value), complement(at.complement), slope(S(0));
  for (int k = 1; k <= N; ++k) {
    slope.c[k - 1] = value.c[0] * complement.c[k - 1];
    for (int i = 1; i < k; ++i) slope.c[k - 1] = slope.c[k - 1] + value.c[i] * complement.c[k - 1 - i];
    value.c[k] = integral_coefficient(k, slope, x);
    complement.c[k] = -value.c[k];
  }
  return {value, complement};
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE auto operator<(Jet<T, N> a, C b) {
  return a.c[0] < b;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE auto operator<=(Jet<T, N> a, C b) {
  return a.c[0] <= b;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE auto operator>(Jet<T, N> a, C b) {
  return a.c[0] > b;
}

template <class T, int N, class C>
FASTOPS_HOST_DEVICE auto operator>=(Jet<T, N> a, C b) {
  return a.c[0] >= b;
}

template <class Mask, class T, int N>
FASTOPS_HOST_DEVICE Jet<T, N> select(Mask mask, Jet<T, N> a, Jet<T, N> b) {
  for (int k = 0; k <= N; ++k) a.c[k] = select(mask, a.c[k], b.c[k]);
  return a;
}

template <class Mask, class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> select(Mask mask, C a, Jet<T, N> b) {
  return select(mask, Jet<T, N>(a), b);
}

template <class Mask, class T, int N, class C>
FASTOPS_HOST_DEVICE Jet<T, N> select(Mask mask, Jet<T, N> a, C b) {
  return select(mask, a, Jet<T, N>(b));
}

template <int order>
struct GradientOfOrder {
  template <class T, class Gradient>
  FASTOPS_HOST_DEVICE static T of(T g, T x, Gradient gradient) {
    using S = ScalarOf<T>;
    const Jet<T, order - 1> series = gradient(g, Jet<T, order - 1>::variable(x));
    S factorial = S(1);
    for (int k = 2; k < order; ++k) factorial = factorial * S(k);
    return series.c[order - 1] * factorial;
  }
};

// The formula itself, in T: a number type may have faster functions than those that Jet uses.
template <>
struct GradientOfOrder<1> {
  template <class T, class Gradient>
  FASTOPS_HOST_DEVICE static T of(T g, T x, Gradient gradient) {
    return gradient(g, x);
  }
};

// The (order - 1)-th derivative of g * f'(x) in x, that is g times the derivative of f of that order.
// `gradient(g, x)` is an activation's gradient formula for any number type of x.
template <int order, class T, class Gradient>
FASTOPS_HOST_DEVICE T gradient_of_order(T g, T x, Gradient gradient) {
  return GradientOfOrder<order>::of(g, x, gradient);
}

}  // namespace fastops
