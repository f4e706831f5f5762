// What every activation has, whatever its formula.
#pragma once

#include "activations/functions.h"

namespace fastops {

// The parameters of an activation, in the order of its line in table.h. Unused ones are 0.
template <class S>
struct Params {
  S first;
  S second;
};

namespace activations {

// What value_and_gradient gives, which activations have where the two have more in common than compilers find: it costs
// less than both.
template <class T>
struct ValueAndGradient {
  T value;
  T gradient;
};

// What most activations share: any parameters are valid and the derivative needs the input.
struct ActivationBase {
  // Whether there is gradient_from_output, and whether it is as exact as PyTorch's where the output is of 16 bits.
  enum { has_gradient_from_output = 0, from_rounded_output = 1 };
  // The degree of the polynomials in the input that gradient consists of, and of those in the output that
  // gradient_from_output consists of; where a formula is no polynomial, more than any derivative takes away.
  enum { degree_in_input = 1000, degree_in_output = 1000 };
  template <class S>
  FASTOPS_HOST_DEVICE static bool valid(Params<S>) {
    return true;
  }
  // Whether gradient_from_output holds for these parameters.
  template <class S>
  FASTOPS_HOST_DEVICE static bool output_suffices(Params<S>) {
    return false;
  }
};

// What activations share whose derivative follows from their output, whatever the parameters.
struct OutputActivation : ActivationBase {
  enum { has_gradient_from_output = 1 };
  template <class S>
  FASTOPS_HOST_DEVICE static bool output_suffices(Params<S>) {
    return true;
  }
};

}  // namespace activations
}  // namespace fastops
