// The GPU's number type, with what src/activations/README.md asks of a number, and the types that are kept in memory.
//
// exp, tanh, erf, ... are those of the GPU's mathematical library, good to 1 or 2 units in the last place; sin and cos
// are our own (sine.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "activations/functions.h"
#include "backends/hip/kernels/device.h"
#include "backends/hip/kernels/sine.h"

#if defined(__CUDACC__) && !defined(__HIP__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace fastops::hip {

// One name for the library's function of either type.
namespace library {
#define FASTOPS_LIBRARY_FUNCTION(name)                                    \
  FASTOPS_HOST_DEVICE inline float name(float x) { return ::name##f(x); } \
  FASTOPS_HOST_DEVICE inline double name(double x) { return ::name(x); }
FASTOPS_LIBRARY_FUNCTION(exp)
FASTOPS_LIBRARY_FUNCTION(expm1)
FASTOPS_LIBRARY_FUNCTION(log1p)
FASTOPS_LIBRARY_FUNCTION(tanh)
FASTOPS_LIBRARY_FUNCTION(erf)
FASTOPS_LIBRARY_FUNCTION(sqrt)
#undef FASTOPS_LIBRARY_FUNCTION
using sines::cos;
using sines::sin;
FASTOPS_HOST_DEVICE inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
FASTOPS_HOST_DEVICE inline double fma(double a, double b, double c) { return ::fma(a, b, c); }
}  // namespace library

// Numbers that are `stored_in_16_bits` have functions of their own where those of the library are more exact than such
// results can be.
template <class S, bool stored_in_16_bits = false>
struct Number {
  using scalar = S;

  S v;

  Number() = default;
  FASTOPS_HOST_DEVICE Number(S value) : v(value) {}

  FASTOPS_HOST_DEVICE friend Number operator-(Number a) { return -a.v; }
  FASTOPS_HOST_DEVICE friend Number operator+(Number a, Number b) { return a.v + b.v; }
  FASTOPS_HOST_DEVICE friend Number operator-(Number a, Number b) { return a.v - b.v; }
  FASTOPS_HOST_DEVICE friend Number operator*(Number a, Number b) { return a.v * b.v; }
  FASTOPS_HOST_DEVICE friend Number operator/(Number a, Number b) { return a.v / b.v; }

  FASTOPS_HOST_DEVICE friend bool operator<(Number a, Number b) { return a.v < b.v; }
  FASTOPS_HOST_DEVICE friend bool operator<=(Number a, Number b) { return a.v <= b.v; }
  FASTOPS_HOST_DEVICE friend bool operator>(Number a, Number b) { return a.v > b.v; }
  FASTOPS_HOST_DEVICE friend bool operator>=(Number a, Number b) { return a.v >= b.v; }
  FASTOPS_HOST_DEVICE friend Number select(bool mask, Number a, Number b) { return mask ? a : b; }
};

#define FASTOPS_NUMBER_FUNCTION(name)                                       \
  template <class S, bool in_16_bits>                                       \
  FASTOPS_HOST_DEVICE Number<S, in_16_bits> name(Number<S, in_16_bits> a) { \
    return library::name(a.v);                                              \
  }
FASTOPS_NUMBER_FUNCTION(exp)
FASTOPS_NUMBER_FUNCTION(expm1)
FASTOPS_NUMBER_FUNCTION(log1p)
FASTOPS_NUMBER_FUNCTION(tanh)
FASTOPS_NUMBER_FUNCTION(erf)
FASTOPS_NUMBER_FUNCTION(sin)
FASTOPS_NUMBER_FUNCTION(cos)
#undef FASTOPS_NUMBER_FUNCTION

// ---- what is more exact or faster here than the definitions in activations/functions.h ----

template <class S, bool in_16_bits, class B, class C>
FASTOPS_HOST_DEVICE Number<S, in_16_bits> multiply_add(Number<S, in_16_bits> a, B b, C c) {
  using N = Number<S, in_16_bits>;
  return library::fma(a.v, N(b).v, N(c).v);
}

// The tail for negative x does not cancel. (In float64, erfc takes many more registers than erf.)
FASTOPS_HOST_DEVICE inline activations::Normal<Number<float>> normal(Number<float> x) {
  return {::erfcf(x.v * -0.70710678118654752440f) * 0.5f, ::expf(x.v * x.v * -0.5f) * 0.39894228040143267794f};
}

using Number16 = Number<float, true>;

template <class... Coefficients>
FASTOPS_HOST_DEVICE inline float polynomial(float x, float first, Coefficients... others) {
  if constexpr (sizeof...(others) == 0) {
    return first;
  } else {
    return library::fma(x, polynomial(x, others...), first);
  }
}

// For those below, half a unit in the last place of float16 is 2.4e-4 of a result or more, and of bfloat16 2e-3.

// sqrt(exp(x)), which is neither too large nor too small for the GPU's instruction where its square is a float. The
// rounding of the exponent is magnified by it: relative error of the square below 6e-7 + 8e-8 |x|.
FASTOPS_HOST_DEVICE inline float root_of_exp(float x) { return fast_exp2(x * 0.72134752044448170368f); }

FASTOPS_HOST_DEVICE inline Number16 exp(Number16 x) {
  const float root = root_of_exp(x.v);
  return root * root;
}

// Near 0 x q(x), with a relative error of 2e-6; elsewhere the difference has one of 4e-6 at most
// (tools/fit_polynomials.py, expm1_ratio).
FASTOPS_HOST_DEVICE inline Number16 expm1(Number16 x) {
  const float root = root_of_exp(x.v);
  const float near = polynomial(x.v, 9.999983311e-01f, 5.000013709e-01f, 1.670001894e-01f, 4.166721180e-02f) * x.v;
  return ::fabsf(x.v) < 0.2f ? near : library::fma(root, root, -1.0f);
}

// What tanh(a) lacks to 1: 2 / (exp(2 a) + 1).
FASTOPS_HOST_DEVICE inline float tanh_complement(float a) {
  return 2.0f * fast_reciprocal(fast_exp2(a * 2.88539008177792681472f) + 1.0f);
}

// Near 0 x q(x^2), with a relative error of 2e-6, as elsewhere (tools/fit_polynomials.py, tanh_ratio).
FASTOPS_HOST_DEVICE inline Number16 tanh(Number16 x) {
  const float a = ::fabsf(x.v);
  const float near = polynomial(a * a, 9.999988675e-01f, -3.331014812e-01f, 1.263506711e-01f) * a;
  return ::copysignf(a < 0.3f ? near : 1.0f - tanh_complement(a), x.v);
}

// Near 0 x^3 q(x^2), with a relative error of 3e-6; elsewhere one of 5e-6 at most (tools/fit_polynomials.py,
// tanh_remainder). A zero is +0.
FASTOPS_HOST_DEVICE inline Number16 tanh_remainder(Number16 x) {
  const float a = ::fabsf(x.v);
  const float s = a * a;
  const float q = polynomial(s, 3.333324492e-01f, -1.332545727e-01f, 5.284778401e-02f, -1.657783799e-02f);
  return ::copysignf(a < 0.6f ? a * s * q : (a - 1.0f) + tanh_complement(a), x.v) + 0.0f;
}

FASTOPS_HOST_DEVICE inline Number16 reciprocal(Number16 b) { return fast_reciprocal(b.v); }
FASTOPS_HOST_DEVICE inline Number16 quotient_by_sum(Number16 a, float b) { return a.v * fast_reciprocal(a.v + b); }
FASTOPS_HOST_DEVICE inline Number16 quotient_by_number(Number16 a, float b) { return a.v * (1.0f / b); }

// a / (2^(e + 64) + 1): both sides of the quotient are scaled down, so that the reciprocal is a float that the GPU's
// instruction gives until the quotient is none.
FASTOPS_HOST_DEVICE inline Number16 quotient_by_scaled_exp2(float a, float e) {
  constexpr float scale = 0x1p-64f;
  return fast_reciprocal(fast_exp2(e) + scale) * scale * a;
}

FASTOPS_HOST_DEVICE inline Number16 quotient_by_exp2(Number16 a, Number16 b) {
  return quotient_by_scaled_exp2(a.v, b.v - 64.0f);
}
FASTOPS_HOST_DEVICE inline Number16 quotient_by_exp(Number16 a, Number16 b) {
  return quotient_by_scaled_exp2(a.v, library::fma(b.v, 1.44269504088896340736f, -64.0f));
}

// For a = |x|, Phi(-a) = 2^(-2 b^2) R(b) with b = a sqrt(log2(e)) / 2, where R, the Mills ratio over sqrt(2 pi), is a
// rational function (tools/fit_polynomials.py, normal). The rounding of b and of its square is magnified by 3 b^2:
// relative error below 3e-6 up to a = 5.4, where float16 ends, and 2e-5 up to 13, where bfloat16 ends.
FASTOPS_HOST_DEVICE inline activations::Normal<Number16> normal(Number16 x) {
  const float b = ::fminf(::fabsf(x.v) * 0.60056120439f, 8.7f);  // both are 0 from there on
  const float root = fast_exp2(-b * b);
  const float power = root * root;
  const float p =
      polynomial(b, 5.000000000e-01f, 7.285978794e-01f, 5.064350367e-01f, 1.866402626e-01f, 3.138323873e-02f);
  const float q =
      polynomial(b, 1.0f, 2.785761118e+00f, 3.327630043e+00f, 2.160306692e+00f, 7.790511250e-01f, 1.309861243e-01f);
  const float tail = power * (p * fast_reciprocal(q));
  return {x.v > 0.0f ? 1.0f - tail : tail, power * 0.39894228040143267794f};
}

// max(x, 0) + log1p(e), e = exp(-|x|), with log1p(e) = e q(e): q has a relative error of 2e-6, and the whole, which
// does not cancel, of 3e-6 up to |x| = 10 (tools/fit_polynomials.py, log1p_ratio).
FASTOPS_HOST_DEVICE inline Number16 log1p_exp(Number16 x) {
  const float root = root_of_exp(-::fabsf(x.v));
  const float e = root * root;
  const float q = polynomial(e, 9.999987483e-01f, -4.998701215e-01f, 3.310981691e-01f, -2.350510955e-01f,
                             1.492445171e-01f, -6.641819328e-02f, 1.414603647e-02f);
  return library::fma(e, q, x.v < 0.0f ? 0.0f : x.v);
}

// ---- storage ----

// The 16-bit types, in the layout of at::BFloat16 and at::Half.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

template <class To, class From>
FASTOPS_HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <class Storage>
inline constexpr bool is_float16 = std::is_same_v<Storage, float16>;

// The type that a storage type is computed with.
template <class Storage>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <class Storage>
using Compute = typename ComputeType<Storage>::type;

// The number type of its elements.
template <class Storage>
using NumberOf = Number<Compute<Storage>, sizeof(Storage) == 2>;

FASTOPS_HOST_DEVICE inline float widen(float x) { return x; }
FASTOPS_HOST_DEVICE inline double widen(double x) { return x; }
FASTOPS_HOST_DEVICE inline float widen(bfloat16 x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to the nearest number of the storage type, to the even one of two.
template <class Storage>
FASTOPS_HOST_DEVICE Storage narrow(Compute<Storage> x) {
  return x;
}

#if defined(__CUDACC__) && !defined(__HIP__)

FASTOPS_HOST_DEVICE inline float widen(float16 x) { return __half2float(__half_raw{x.bits}); }
template <>
FASTOPS_HOST_DEVICE inline float16 narrow<float16>(float x) {
  return bit_cast<float16>(__float2half_rn(x));
}
template <>
FASTOPS_HOST_DEVICE inline bfloat16 narrow<bfloat16>(float x) {
  return bit_cast<bfloat16>(__float2bfloat16_rn(x));
}

#else

FASTOPS_HOST_DEVICE inline float widen(float16 x) { return bit_cast<_Float16>(x); }
template <>
FASTOPS_HOST_DEVICE inline float16 narrow<float16>(float x) {
  return bit_cast<float16>(static_cast<_Float16>(x));
}
template <>
FASTOPS_HOST_DEVICE inline bfloat16 narrow<bfloat16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16)};
}

#endif

// Numbers that are read and written in one access.
template <class Storage, int count>
struct alignas(sizeof(Storage) * count) Packet {
  static constexpr int width = count;
  Storage element[count];
};

}  // namespace fastops::hip
