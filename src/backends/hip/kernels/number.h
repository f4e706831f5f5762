// The GPU's number type, with what src/activations/README.md asks of a number, and the types that are kept in memory.
//
// exp, tanh, erf, ... are those of the GPU's mathematical library, good to 1 or 2 units in the last place.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "activations/functions.h"
#include "backends/hip/kernels/device.h"

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

  FASTOPS_HOST_DEVICE friend Number exp(Number a) { return library::exp(a.v); }
  FASTOPS_HOST_DEVICE friend Number expm1(Number a) { return library::expm1(a.v); }
  FASTOPS_HOST_DEVICE friend Number log1p(Number a) { return library::log1p(a.v); }
  FASTOPS_HOST_DEVICE friend Number tanh(Number a) { return library::tanh(a.v); }
  FASTOPS_HOST_DEVICE friend Number erf(Number a) { return library::erf(a.v); }
};

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

// For a = |x|, Phi(-a) = 2^(-b^2) R(b) with b = a sqrt(log2(e) / 2), where R, the Mills ratio over sqrt(2 pi), is a
// rational function (tools/fit_polynomials.py, normal). The rounding of b and of its square is magnified by 3 b^2:
// relative error below 5e-7 up to a = 2, 3e-6 up to 5.4, where float16 ends, half of whose unit in the last place is
// 2.4e-4, and 2e-5 up to 13, where bfloat16 ends, half of whose unit is 2e-3.
FASTOPS_HOST_DEVICE inline activations::Normal<Number16> normal(Number16 x) {
  const float b = ::fminf(::fabsf(x.v) * 0.8493218003f, 12.3f);  // both are 0 from there on
  const float power = ::exp2f(-b * b);
  const float p =
      polynomial(b, 5.000000000e-01f, 5.151862502e-01f, 2.532447278e-01f, 6.601040065e-02f, 7.853914052e-03f);
  const float q =
      polynomial(b, 1.0f, 1.969810128e+00f, 1.663849711e+00f, 7.638787031e-01f, 1.948311925e-01f, 2.317920513e-02f);
  const float tail = fast_quotient(power * p, q);
  return {x.v > 0.0f ? 1.0f - tail : tail, power * 0.39894228040143267794f};
}

// max(x, 0) + log1p(e), e = exp(-|x|), with log1p(e) = e q(e): q has a relative error of 6e-8, and the whole, which
// does not cancel, below 4e-7 (tools/fit_polynomials.py, log1p_ratio).
FASTOPS_HOST_DEVICE inline Number16 log1p_exp(Number16 x) {
  const float e = ::expf(-::fabsf(x.v));
  const float q =
      polynomial(e, 9.999999404e-01f, -4.999910295e-01f, 3.331052363e-01f, -2.477151453e-01f, 1.881482601e-01f,
                 -1.302175522e-01f, 7.042551786e-02f, -2.458160557e-02f, 3.973518033e-03f);
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
