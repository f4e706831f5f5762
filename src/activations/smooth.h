// The activations that are made of exponentials.
#pragma once

#include "activations/base.h"

namespace fastops {
namespace activations {

// alpha = first. The tail of the derivative, y + alpha, is less than the rounding of a 16-bit y. What is not selected
// must be finite, for the derivatives that autograd makes of it.
struct ELU : OutputActivation {
  enum { from_rounded_output = 0, degree_in_output = 1 };
  // A negative alpha makes positive outputs of negative inputs.
  template <class S>
  FASTOPS_HOST_DEVICE static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return select(x < S(0), expm1(x) * p.first, x);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return select(x > S(0), g, g * p.first * exp(at_most(x, S(0))));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S> p) {
    return select(y > S(0), g, g * (y + p.first));
  }
};

// Klambauer et al., "Self-Normalizing Neural Networks", 2017: scale * ELU(x, alpha).
struct SELU : OutputActivation {
  enum { from_rounded_output = 0, degree_in_output = 1 };
  template <class S>
  FASTOPS_HOST_DEVICE static S scale() {
    return S(1.0507009873554804934193349852946);
  }
  template <class S>
  FASTOPS_HOST_DEVICE static S alpha_scale() {
    return S(1.6732632423543772848170429916717 * 1.0507009873554804934193349852946);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return select(x < S(0), expm1(x) * alpha_scale<S>(), x * scale<S>());
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return select(x > S(0), g * scale<S>(), g * alpha_scale<S>() * exp(at_most(x, S(0))));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S>) {
    return select(y > S(0), g * scale<S>(), g * (y + alpha_scale<S>()));
  }
};

// Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: x * Phi(x), Phi the normal distribution function.
struct GELU : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return x * normal(x).cumulative;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return slope(x, normal(x)) * g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const Normal<T> phi = normal(x);
    return {x * phi.cumulative, slope(x, phi) * g};
  }

 private:
  template <class T>
  FASTOPS_HOST_DEVICE static T slope(T x, Normal<T> phi) {
    return multiply_add(x, phi.density, phi.cumulative);
  }
};

// The tanh approximation of GELU, x/2 * (1 + tanh(u)) with u = sqrt(2/pi) * (x + 0.044715 x^3). As (1 + tanh(u)) / 2 is
// the logistic function of 2u, it takes one exponential, and nothing cancels for negative x.
struct GELUTanh : ActivationBase {
  template <class S>
  FASTOPS_HOST_DEVICE static S linear() {
    return S(1.59576912160573071176);  // 2 sqrt(2/pi)
  }
  template <class S>
  FASTOPS_HOST_DEVICE static S cubic() {
    return linear<S>() * S(0.044715);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    const S minus_log2_e = S(-1.44269504088896340736);
    const T exponent = multiply_add(x * x, cubic<S>() * minus_log2_e, linear<S>() * minus_log2_e) * x;
    return quotient_by_exp2(x, exponent);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    const T square = bounded_square<S>(x);
    return slope<S>(x, square, gate<S>(x, square)) * g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const T square = bounded_square<S>(x);
    const Logistic<T> s = gate<S>(x, square);
    return {x * s.value, slope<S>(x, square, s) * g};
  }

 private:
  // It may overflow; from there on the derivative is 0 or 1.
  template <class S, class T>
  FASTOPS_HOST_DEVICE static T bounded_square(T x) {
    return at_most(x * x, S(1e4));
  }
  // (1 + tanh(u)) / 2
  template <class S, class T>
  FASTOPS_HOST_DEVICE static Logistic<T> gate(T x, T square) {
    return logistic(multiply_add(square, cubic<S>(), linear<S>()) * x);
  }
  template <class S, class T>
  FASTOPS_HOST_DEVICE static T slope(T x, T square, Logistic<T> s) {
    const T twice_u_slope = multiply_add(square, cubic<S>() * S(3), linear<S>());
    return multiply_add(x * s.value, s.complement * twice_u_slope, s.value);
  }
};

// x * sigmoid(1.702 x), the sigmoid approximation of Hendrycks and Gimpel, as CLIP uses it.
struct QuickGELU : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return quotient_by_exp2(x, x * S(-1.702 * 1.44269504088896340736));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return slope<S>(x, logistic(x * S(1.702))) * g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const Logistic<T> s = logistic(x * S(1.702));
    return {x * s.value, slope<S>(x, s) * g};
  }

 private:
  template <class S, class T>
  FASTOPS_HOST_DEVICE static T slope(T x, Logistic<T> s) {
    return multiply_add(x * s.value, s.complement * S(1.702), s.value);
  }
};

struct SiLU : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return quotient_by_exp(x, -x);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return slope<S>(x, logistic(x)) * g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const Logistic<T> s = logistic(x);
    return {x * s.value, slope<S>(x, s) * g};
  }

 private:
  template <class S, class T>
  FASTOPS_HOST_DEVICE static T slope(T x, Logistic<T> s) {
    return multiply_add(s.complement, x, S(1)) * s.value;
  }
};

// Misra, "Mish", 2019: x * tanh(softplus(x)). With e = exp(x) and w = e (e + 2), tanh(softplus(x)) = w / (w + 2), whose
// derivative is 4 e (e + 1) / (w + 2)^2: one exponential and one division serve both. Past x = 25 the tanh is 1 to
// every dtype's last bit and its derivative negligible; the bound keeps e^3 finite.
struct Mish : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    const T e = exp(at_most(x, S(25)));
    return x * quotient_by_sum(multiply_add(e, e, e * S(2)), S(2));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return value_and_gradient<T>(g, x, p).gradient;
  }
  // With q = e / (w + 2): the derivative is q (e + 2) + x q * 4 (e + 1) / (w + 2)
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const T bounded = at_most(x, S(25));
    const T e = exp(bounded);
    const T r = reciprocal(multiply_add(e + S(2), e, S(2)));
    const T q = e * r;
    const T gate = (e + S(2)) * q;
    return {x * gate, multiply_add(bounded * q, multiply_add(e, S(4), S(4)) * r, gate) * g};
  }
};

// beta = first, threshold = second. Below the threshold, however large that is, nothing overflows.
struct Softplus : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    const T z = x * p.first;
    return select(z > p.second, x, log1p_exp(z) * (S(1) / p.first));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    const T z = x * p.first;
    return select(z > p.second, g, logistic(z).value * g);
  }
};

struct Sigmoid : OutputActivation {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return quotient_by_exp(T(S(1)), -x);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    const Logistic<T> s = logistic(x);
    return s.complement * s.value * g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S>) {
    const Logistic<T> s = logistic(x);
    return {s.value, s.complement * s.value * g};
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S>) {
    return (S(1) - y) * y * g;
  }
};

struct Tanh : OutputActivation {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return tanh(x);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return gradient_from_output<T>(g, tanh(x), p);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static ValueAndGradient<T> value_and_gradient(G g, T x, Params<S> p) {
    const T y = tanh(x);
    return {y, gradient_from_output<T>(g, y, p)};
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S>) {
    return (S(1) - y * y) * g;
  }
};

struct Tanhshrink : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return tanh_remainder(x);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    const T t = tanh(x);
    return t * t * g;
  }
};

// omega = first
struct Sin : ActivationBase {
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return sin(x * p.first);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return cos(x * p.first) * p.first * g;
  }
};

}  // namespace activations
}  // namespace fastops
