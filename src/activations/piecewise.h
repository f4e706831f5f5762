// The activations that are made of straight lines and parabolas.
#pragma once

#include "activations/base.h"

namespace fastops {
namespace activations {

struct Identity : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return x;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T, Params<S>) {
    return g;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T, Params<S>) {
    return g;
  }
};

struct ReLU : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return at_least(x, S(0));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return select(x <= S(0), S(0), g);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S> p) {
    return gradient<T>(g, y, p);
  }
};

// min_val = first, max_val = second. The output does not suffice: a bound that the dtype cannot hold is rounded in it.
struct Hardtanh : ActivationBase {
  enum { degree_in_input = 0 };
  template <class S>
  FASTOPS_HOST_DEVICE static bool valid(Params<S> p) {
    return p.first <= p.second;
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return clamp(x, p.first, p.second);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return select(x > p.first, select(x < p.second, g, S(0)), S(0));
  }
};

struct ReLU6 : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  template <class S>
  FASTOPS_HOST_DEVICE static Params<S> bounds() {
    return Params<S>{S(0), S(6)};
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return Hardtanh::value(x, bounds<S>());
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return Hardtanh::gradient<T>(g, x, bounds<S>());
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S>) {
    return Hardtanh::gradient<T>(g, y, bounds<S>());
  }
};

// negative_slope = first
struct LeakyReLU : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  // A negative slope makes positive outputs of negative inputs.
  template <class S>
  FASTOPS_HOST_DEVICE static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return select(x > S(0), x, x * p.first);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return select(x > S(0), g, g * p.first);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S> p) {
    return gradient<T>(g, y, p);
  }
};

// lambd = first. x - clamp(x, -lambd, lambd) is the piecewise definition with +0 wherever the result is zero.
struct Softshrink : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  template <class S>
  FASTOPS_HOST_DEVICE static bool valid(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return x - clamp(x, -p.first, p.first);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return select(x < -p.first, g, select(x > p.first, g, S(0)));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S>) {
    return select(y < S(0), g, select(y > S(0), g, S(0)));
  }
};

// lambd = first
struct Hardshrink : OutputActivation {
  enum { degree_in_input = 0, degree_in_output = 0 };
  // With a negative lambd nothing is shrunk, 0 included, which the output does not tell.
  template <class S>
  FASTOPS_HOST_DEVICE static bool output_suffices(Params<S> p) {
    return p.first >= S(0);
  }
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return select(x < -p.first, x, select(x <= p.first, S(0), x));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S> p) {
    return select(x < -p.first, g, select(x > p.first, g, S(0)));
  }
  // Where a sum was rounded into the output, that may lie on lambd itself.
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient_from_output(G g, T y, Params<S> p) {
    return Softshrink::gradient_from_output<T>(g, y, p);
  }
};

struct Hardsigmoid : ActivationBase {
  enum { degree_in_input = 0 };
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    return quotient_by_number(clamp(x + S(3), S(0), S(6)), S(6));
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return select(x > S(-3), select(x < S(3), g * (S(1) / S(6)), S(0)), S(0));
  }
};

struct Hardswish : ActivationBase {
  enum { degree_in_input = 1 };
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S> p) {
    return x * Hardsigmoid::value(x, p);
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return select(x <= S(-3), S(0), select(x >= S(3), g, (x + S(1.5)) * (S(1) / S(3)) * g));
  }
};

// max(x, 0)^2: So et al., "Primer: Searching for Efficient Transformers", 2021.
struct ReLUSquared : ActivationBase {
  enum { degree_in_input = 1 };
  template <class T, class S>
  FASTOPS_HOST_DEVICE static T value(T x, Params<S>) {
    const T r = at_least(x, S(0));
    return r * r;
  }
  template <class T, class G, class S>
  FASTOPS_HOST_DEVICE static T gradient(G g, T x, Params<S>) {
    return select(x <= S(0), S(0), x * g * S(2));
  }
};

}  // namespace activations
}  // namespace fastops
