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

template <class S>
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

template <class S, class B, class C>
FASTOPS_HOST_DEVICE Number<S> multiply_add(Number<S> a, B b, C c) {
  return library::fma(a.v, Number<S>(b).v, Number<S>(c).v);
}

// The tail for negative x does not cancel. (In float64, erfc takes many more registers than erf.)
FASTOPS_HOST_DEVICE inline activations::Normal<Number<float>> normal(Number<float> x) {
  return {::erfcf(x.v * -0.70710678118654752440f) * 0.5f, ::expf(x.v * x.v * -0.5f) * 0.39894228040143267794f};
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
