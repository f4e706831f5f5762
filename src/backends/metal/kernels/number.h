// The number type of these kernels: a float with what src/activations/README.md asks of a number. 16-bit elements are
// computed with in it, too.
#pragma once

#include "activations/functions.h"
#include "backends/metal/kernels/math.h"

namespace fastops {
namespace mps {

struct Number {
  using scalar = float;

  float v;

  Number() = default;
  Number(float value) : v(value) {}
};

inline Number operator-(Number a) { return Number(-a.v); }
inline Number operator+(Number a, Number b) { return Number(a.v + b.v); }
inline Number operator-(Number a, Number b) { return Number(a.v - b.v); }
inline Number operator*(Number a, Number b) { return Number(a.v * b.v); }
inline Number operator/(Number a, Number b) { return Number(a.v / b.v); }

inline bool operator<(Number a, float b) { return a.v < b; }
inline bool operator<=(Number a, float b) { return a.v <= b; }
inline bool operator>(Number a, float b) { return a.v > b; }
inline bool operator>=(Number a, float b) { return a.v >= b; }
inline Number select(bool condition, Number a, Number b) { return condition ? a : b; }

inline Number exp(Number x) { return Number(exp(x.v)); }
inline Number exp2(Number x) { return Number(exp2(x.v)); }
inline Number expm1(Number x) { return Number(expm1(x.v)); }
inline Number log1p(Number x) { return Number(log1p(x.v)); }
inline Number tanh(Number x) { return Number(tanh(x.v)); }
inline Number erf(Number x) { return Number(erf(x.v)); }
inline Number sin(Number x) { return Number(sin(x.v)); }
inline Number cos(Number x) { return Number(cos(x.v)); }

template <class B, class C>
Number multiply_add(Number a, B b, C c) {
  return Number(metal::fma(a.v, Number(b).v, Number(c).v));
}

}  // namespace mps
}  // namespace fastops
