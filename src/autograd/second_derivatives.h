// What the nodes of mlp_backward and gated_mlp_backward have in common.
//
// Their results are the gradients of <grad_output, y> for the network's output y. Differentiated with cotangents, these
// are a direction in which input and parameters move: the sum of their products is <grad_output, y'>, where y' is the
// derivative of y in that direction. So the second derivatives follow from going through the network once more with
// values and directional derivatives, and back (Pearlmutter, "Fast Exact Multiplication by the Hessian", 1994).
#pragma once

#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/matrix.h"

namespace fastops {

// In what follows an undefined tensor is zero.
inline Tensor add(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

inline Tensor multiply(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() ? a * b : Tensor(); }

// x @ weight.T
inline Tensor times(const Tensor& x, const Tensor& weight) {
  return x.defined() && weight.defined() ? at::linear(x, weight) : Tensor();
}

// grad @ weight, the gradient of x in x @ weight.T
inline Tensor input_gradient(const Tensor& grad, const Tensor& weight) {
  return grad.defined() && weight.defined() ? at::matmul(grad, weight) : Tensor();
}

// grad.T @ x, the gradient of the weight in x @ weight.T
inline Tensor weight_gradient(const Tensor& grad, const Tensor& x) {
  return grad.defined() && x.defined() ? product(as_matrix(grad).mT(), as_matrix(x)) : Tensor();
}

inline Tensor bias_gradient(const Tensor& grad) { return grad.defined() ? as_matrix(grad).sum(0) : Tensor(); }

// grad times the derivative of the activation of that order at z.
inline Tensor through(const ActivationSpec& activation, const Tensor& grad, const Tensor& z, int64_t order = 1) {
  if (!grad.defined()) return grad;
  if (activation.id == Activation::identity) return order == 1 ? grad : Tensor();
  return activation_backward(grad, z, activation, /*from_output=*/false, order);
}

// Puts what came in for the results of a backward op, in order, at the places of the mask.
template <class Mask>
std::vector<Tensor> at_places(const std::vector<Tensor>& given, const Mask& mask) {
  std::vector<Tensor> placed(mask.size());
  size_t next = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) placed[i] = given[next++];
  }
  return placed;
}

}  // namespace fastops
