// What the nodes of mlp_backward and gated_mlp_backward have in common.
//
// Their results are the gradients of <grad_output, y> for the network's output y. Differentiated with cotangents, these
// are a direction in which input and parameters move: the sum of their products is <grad_output, y'>, where y' is the
// derivative of y in that direction. So the second derivatives follow from going through the network once more with
// values and directional derivatives, and back (Pearlmutter, "Fast Exact Multiplication by the Hessian", 1994).
#pragma once

#include <optional>
#include <vector>

#include "autograd/products.h"
#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/matrix.h"
#include "torch_internal/functorch.h"

namespace fastops {

// In what follows an undefined tensor is zero.
inline Tensor add(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

inline Tensor multiply(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() ? a * b : Tensor(); }

// x @ weight.T
inline Tensor times(const Tensor& x, const Tensor& weight) {
  return x.defined() && weight.defined() ? with_leading_dims(differentiable_product(as_matrix(x), weight.t()), x)
                                         : Tensor();
}

// grad @ weight, the gradient of x in x @ weight.T
inline Tensor input_gradient(const Tensor& grad, const Tensor& weight) {
  return grad.defined() && weight.defined() ? with_leading_dims(differentiable_product(as_matrix(grad), weight), grad)
                                            : Tensor();
}

// grad.T @ x, the gradient of the weight in x @ weight.T
inline Tensor weight_gradient(const Tensor& grad, const Tensor& x) {
  return grad.defined() && x.defined() ? differentiable_product(as_matrix(grad).t(), as_matrix(x)) : Tensor();
}

inline Tensor bias_gradient(const Tensor& grad) { return grad.defined() ? as_matrix(grad).sum(0) : Tensor(); }

// An activation at z, and its derivatives there: from its value where they can be had from it.
struct Point {
  Point(const ActivationSpec& spec, const Tensor& z)
      : activation(spec),
        from_output(output_suffices(spec, z.scalar_type())),
        value(spec.id == Activation::identity ? z : bias_act(z, std::nullopt, spec)),
        at(from_output ? value : z) {}
  // From what a forward pass kept: the value or z. The value is computed again where it was z, unless it is not needed.
  // Nothing is kept of the identity.
  static Point kept(const ActivationSpec& spec, const Tensor& kept, bool needs_value) {
    Point point(spec);
    point.from_output = !kept.defined() || output_suffices(spec, kept.scalar_type());
    point.at = kept;
    if (point.from_output) {
      point.value = kept;
    } else if (needs_value) {
      point.value = bias_act(kept, std::nullopt, spec);
    }
    return point;
  }

  // f'(z) grad
  Tensor through(const Tensor& grad) const {
    if (!grad.defined() || activation.id == Activation::identity) return grad;
    return activation_backward(grad, at, activation, from_output);
  }
  // f''(z) dz grad, where dy = f'(z) dz. From the output, the second derivative is that of f'(y) in y.
  Tensor through_slope(const Tensor& grad, const Tensor& dz, const Tensor& dy) const {
    if (!grad.defined() || !dz.defined() || activation.id == Activation::identity) return {};
    return activation_backward(grad * (from_output ? dy : dz), at, activation, from_output, 2);
  }

  ActivationSpec activation;
  bool from_output;
  Tensor value;
  Tensor at;

 private:
  explicit Point(const ActivationSpec& spec) : activation(spec), from_output(true) {}
};

// What a node computes again, with its history, is kept for the next time: second derivatives are often taken one
// after another. Not under torch.func, where tensors live no longer than the transform that they were made in. One
// thread at a time comes to a node; a hook of what compute() saves may lead it here once more.
template <class T>
class Recomputed {
 public:
  template <class F>
  T get(F compute) {
    if (in_transform()) return compute();
    if (!kept_ && !at::GradMode::is_enabled()) return compute();
    if (!kept_) kept_ = compute();
    return *kept_;
  }
  void clear() { kept_.reset(); }

 private:
  std::optional<T> kept_;
};

}  // namespace fastops
