// The scalar type S of a number type T: constants and parameters in the formulas have it.
#pragma once

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
