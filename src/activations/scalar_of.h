// The scalar type S of a number type T: constants and parameters in the formulas have it.
#pragma once

#include "compiler.h"

// Before every function that a formula consists of. GPU compilers build it for the host and for the device. With
// vectors nothing may be left a call: compilers pass them in memory, in parts, and whoever reads one as a whole waits
// for all. Not where races are looked for: there GCC 12 crashes of it.
#if defined(__CUDACC__) || defined(__HIP__)
#define FASTOPS_HOST_DEVICE __host__ __device__
#elif (defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)) && !defined(__SANITIZE_THREAD__)
#define FASTOPS_HOST_DEVICE FASTOPS_ALWAYS_INLINE
#else
#define FASTOPS_HOST_DEVICE
#endif

namespace fastops {

// A number type with a member `scalar` names its own; `float` and `double` are their own scalars.
template <class T>
struct ScalarTraits {
  using type = typename T::scalar;
};
template <>
struct ScalarTraits<float> {
  using type = float;
};
#ifndef __METAL_VERSION__
template <>
struct ScalarTraits<double> {
  using type = double;
};
#endif

template <class T>
using ScalarOf = typename ScalarTraits<T>::type;

}  // namespace fastops
