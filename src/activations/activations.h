// The definition of every activation: its value and its gradient, as templates over a number type.
//
// One text serves every backend: the CPU kernels instantiate it with a SIMD vector, GPU kernels with `float`, the
// composite path with `at::Tensor`, and derivatives of higher order with `Jet` (jet.h). README.md says what a number
// type must offer. The language is C++14 without the standard library, so that every GPU compiler takes it.
//
// `value(x, p)` is f(x). `gradient(g, x, p)` is g * f'(x): a function of both, so that an activation whose derivative
// is a mask selects `g` rather than multiplying it, and an infinite `g` stays out of the masked places. Where f'(x)
// can be had from y = f(x), `gradient_from_output(g, y, p)` gives it, and the backward pass keeps y instead of x.
//
// Formulas are those of PyTorch's documentation (torch.nn.functional, torch.nn) unless a comment says otherwise; NaN,
// infinities and signed zeros come out as there. Where PyTorch's vector and scalar code disagree on a NaN, its scalar
// code is followed.
#pragma once

#include "activations/scalar_of.h"

namespace fastops {

// The parameters of an activation, in the order of its line in table.h. Unused ones are 0.
template <class S>
struct Params {
  S first;
  S second;
};

namespace activations {

// What most activations share: any parameters are valid and the derivative needs the input.
struct ActivationBase {
  enum { has_gradient_from_output = 0 };
  template <class S>
  static bool valid(Params<S>) {
    return true;
  }
  // Whether gradient_from_output holds for these parameters.
  template <class S>
  static bool output_suffices(Params<S>) {
    return false;
  }
};

// What activations share whose derivative follows from their output, whatever the parameters.
struct OutputActivation : ActivationBase {
  enum { has_gradient_from_output = 1 };
  template <class S>
  static bool output_suffices(Params<S>) {
    return true;
  }
};

// 1 / (1 + exp(-x)), from an exponential that cannot overflow.
template <class T>
T logistic(T x) {
  using S = ScalarOf<T>;
  const T e = exp(select(x < S(0), x, -x));
  return select(x < S(0), e, S(1)) / (e + S(1));
}

template <class T, class S>
T clamp(T x, S low, S high) {
  return select(x < low, low, select(x > high, high, x));
}

struct Identity : OutputActivation {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x;
  }
  template <class T, class G, class S>
  static T gradient(G g, T, Params<S>) {
    return g;
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T, Params<S>) {
    return g;
  }
};

struct ReLU : OutputActivation {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return select(x < S(0), S(0), x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return select(x <= S(0), S(0), g);
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S> p) {
    return gradient<T>(g, y, p);
  }
};

// min_val = first, max_val = second. The output does not suffice: a bound that the dtype cannot hold is rounded in it.
struct Hardtanh : ActivationBase {
  template <class S>
  static bool valid(Params<S> p) {
    return p.first <= p.second;
  }
  template <class T, class S>
  static T value(T x, Params<S> p) {
    return clamp(x, p.first, p.second);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return select(x <= p.first, S(0), select(x >= p.second, S(0), g));
  }
};

struct ReLU6 : OutputActivation {
  template <class S>
  static Params<S> bounds() {
    return Params<S>{S(0), S(6)};
  }
  template <class T, class S>
  static T value(T x, Params<S>) {
    return Hardtanh::value(x, bounds<S>());
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return Hardtanh::gradient<T>(g, x, bounds<S>());
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S>) {
    return Hardtanh::gradient<T>(g, y, bounds<S>());
  }
};

// negative_slope = first
struct LeakyReLU : OutputActivation {
  // A negative slope makes positive outputs of negative inputs.
  template <class S>
  static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  static T value(T x, Params<S> p) {
    return select(x > S(0), x, x * p.first);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return select(x > S(0), g, g * p.first);
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S> p) {
    return gradient<T>(g, y, p);
  }
};

// alpha = first
struct ELU : OutputActivation {
  // A negative alpha makes positive outputs of negative inputs.
  template <class S>
  static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  static T value(T x, Params<S> p) {
    return select(x < S(0), expm1(x) * p.first, x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return select(x <= S(0), g * p.first * exp(x), g);
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S> p) {
    return select(y <= S(0), g * (y + p.first), g);
  }
};

// Klambauer et al., "Self-Normalizing Neural Networks", 2017: scale * ELU(x, alpha).
struct SELU : OutputActivation {
  template <class S>
  static Params<S> alpha() {
    return Params<S>{S(1.6732632423543772848170429916717), S(0)};
  }
  template <class S>
  static S scale() {
    return S(1.0507009873554804934193349852946);
  }
  template <class T, class S>
  static T value(T x, Params<S>) {
    return ELU::value(x, alpha<S>()) * scale<S>();
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return ELU::gradient<T>(g * scale<S>(), x, alpha<S>());
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S>) {
    return select(y <= S(0), g * (y + alpha<S>().first * scale<S>()), g * scale<S>());
  }
};

// Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: x * Phi(x), Phi the normal distribution function.
struct GELU : ActivationBase {
  template <class T>
  static T cumulative(T x) {
    using S = ScalarOf<T>;
    return (erf(x * S(0.70710678118654752440)) + S(1)) * S(0.5);
  }
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x * cumulative(x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T density = exp(x * x * S(-0.5)) * S(0.39894228040143267794);
    return (cumulative(x) + x * density) * g;
  }
};

// The tanh approximation of GELU: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
struct GELUTanh : ActivationBase {
  template <class T>
  static T inner(T x) {
    using S = ScalarOf<T>;
    return (x + x * x * x * S(0.044715)) * S(0.79788456080286535588);
  }
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x * S(0.5) * (tanh(inner(x)) + S(1));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T t = tanh(inner(x));
    const T inner_derivative = (x * x * S(3 * 0.044715) + S(1)) * S(0.79788456080286535588);
    return ((t + S(1)) * S(0.5) + x * S(0.5) * ((S(1) - t * t) * inner_derivative)) * g;
  }
};

// x * sigmoid(1.702 x), the sigmoid approximation of Hendrycks and Gimpel, as CLIP uses it.
struct QuickGELU : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x * logistic(x * S(1.702));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T s = logistic(x * S(1.702));
    return (x * s * ((S(1) - s) * S(1.702)) + s) * g;
  }
};

struct SiLU : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x / (exp(-x) + S(1));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T s = logistic(x);
    return s * (x * (S(1) - s) + S(1)) * g;
  }
};

// Misra, "Mish", 2019: x * tanh(softplus(x)). With e = exp(x) and w = e (e + 2), tanh(softplus(x)) = w / (w + 2) and
// its complement 1 - tanh^2 = 4 (w + 1) / (w + 2)^2, so one exponential serves both and nothing cancels. Past x = 20
// the tanh is 1 to every dtype's last bit; the bound keeps e^4 finite.
struct Mish : ActivationBase {
  template <class T>
  static T bounded(T x) {
    using S = ScalarOf<T>;
    return select(x > S(20), S(20), x);
  }
  template <class T, class S>
  static T value(T x, Params<S>) {
    const T e = exp(bounded(x));
    const T w = e * (e + S(2));
    return x * (w / (w + S(2)));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T e = exp(bounded(x));
    const T w = e * (e + S(2));
    const T d = w + S(2);
    const T sech2 = (w + S(1)) * S(4) / (d * d);
    const T slope = select(x > S(20), S(0), sech2 * (e / (e + S(1))));
    return (w / d + x * slope) * g;
  }
};

// beta = first, threshold = second. max(z, 0) + log1p(exp(-|z|)), z = beta x, does not overflow below the threshold,
// however large that is.
struct Softplus : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S> p) {
    const T z = x * p.first;
    const T magnitude = select(z < S(0), -z, z);
    const T smooth = (select(z < S(0), S(0), z) + log1p(exp(-magnitude))) * (S(1) / p.first);
    return select(z > p.second, x, smooth);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    const T z = x * p.first;
    return select(z > p.second, g, logistic(z) * g);
  }
};

struct Sigmoid : OutputActivation {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return logistic(x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return gradient_from_output<T>(g, logistic(x), p);
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S>) {
    return (S(1) - y) * y * g;
  }
};

struct Tanh : OutputActivation {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return tanh(x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return gradient_from_output<T>(g, tanh(x), p);
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S>) {
    return (S(1) - y * y) * g;
  }
};

// lambd = first. x - clamp(x, -lambd, lambd) is the piecewise definition with +0 wherever the result is zero.
struct Softshrink : OutputActivation {
  template <class S>
  static bool valid(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  static T value(T x, Params<S> p) {
    return x - clamp(x, -p.first, p.first);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return select(x < -p.first, g, select(x <= p.first, S(0), g));
  }
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S>) {
    return select(y < S(0), g, select(y <= S(0), S(0), g));
  }
};

// lambd = first
struct Hardshrink : OutputActivation {
  // With a negative lambd nothing is shrunk, 0 included, which the output does not tell.
  template <class S>
  static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  static T value(T x, Params<S> p) {
    return select(x < -p.first, x, select(x <= p.first, S(0), x));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S> p) {
    return select(x < -p.first, g, select(x <= p.first, S(0), g));
  }
  // Where a sum was rounded into the output, that may lie on lambd itself.
  template <class T, class G, class S>
  static T gradient_from_output(G g, T y, Params<S> p) {
    return Softshrink::gradient_from_output<T>(g, y, p);
  }
};

struct Tanhshrink : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x - tanh(x);
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    const T t = tanh(x);
    return t * t * g;
  }
};

struct Hardswish : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return x * clamp(x + S(3), S(0), S(6)) * (S(1) / S(6));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return select(x <= S(-3), S(0), select(x < S(3), (x * (S(1) / S(3)) + S(0.5)) * g, g));
  }
};

struct Hardsigmoid : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    return clamp(x + S(3), S(0), S(6)) * (S(1) / S(6));
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return select(x > S(-3), select(x < S(3), g * (S(1) / S(6)), S(0)), S(0));
  }
};

// max(x, 0)^2: So et al., "Primer: Searching for Efficient Transformers", 2021.
struct ReLUSquared : ActivationBase {
  template <class T, class S>
  static T value(T x, Params<S>) {
    const T r = select(x < S(0), S(0), x);
    return r * r;
  }
  template <class T, class G, class S>
  static T gradient(G g, T x, Params<S>) {
    return select(x <= S(0), S(0), x * g * S(2));
  }
};

}  // namespace activations
}  // namespace fastops
