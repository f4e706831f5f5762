// at::Tensor as a number type (src/activations/README.md): the activation formulas as differentiable ATen calls.
//
// A number is a tensor or, for the constants of a formula, a scalar, which takes part in an operation without being
// materialised. Scalar zeros come from the constant terms of a Jet: they are dropped rather than computed with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace fastops {

struct TensorNumber {
  using scalar = double;

  at::Tensor tensor;  // undefined: the number is `constant`
  double constant = 0;

  TensorNumber() = default;
  TensorNumber(double value) : constant(value) {}
  TensorNumber(at::Tensor value) : tensor(std::move(value)) {}

  bool is_constant() const { return !tensor.defined(); }
  bool is_zero() const { return is_constant() && constant == 0; }
};

inline TensorNumber operator-(const TensorNumber& a) {
  if (a.is_constant()) return -a.constant;
  return at::neg(a.tensor);
}

inline TensorNumber operator+(const TensorNumber& a, const TensorNumber& b) {
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  if (a.is_constant() && b.is_constant()) return a.constant + b.constant;
  if (a.is_constant()) return at::add(b.tensor, a.constant);
  if (b.is_constant()) return at::add(a.tensor, b.constant);
  return at::add(a.tensor, b.tensor);
}

inline TensorNumber operator-(const TensorNumber& a, const TensorNumber& b) {
  if (b.is_constant()) return a + TensorNumber(-b.constant);
  if (a.is_constant()) return -b + a;
  return at::sub(a.tensor, b.tensor);
}

inline TensorNumber operator*(const TensorNumber& a, const TensorNumber& b) {
  if (a.is_zero() || b.is_zero()) return 0.0;
  if (a.is_constant() && b.is_constant()) return a.constant * b.constant;
  if (a.is_constant()) return at::mul(b.tensor, a.constant);
  if (b.is_constant()) return at::mul(a.tensor, b.constant);
  return at::mul(a.tensor, b.tensor);
}

// A parameter of the formula is computed with though it be zero: zero times NaN is NaN.
inline TensorNumber operator*(double a, const TensorNumber& b) {
  if (b.is_constant()) return a * b.constant;
  return at::mul(b.tensor, a);
}
inline TensorNumber operator*(const TensorNumber& a, double b) { return b * a; }

inline TensorNumber operator/(const TensorNumber& a, const TensorNumber& b) {
  if (a.is_zero()) return 0.0;
  if (a.is_constant() && b.is_constant()) return a.constant / b.constant;
  if (a.is_constant()) return TensorNumber(at::reciprocal(b.tensor)) * a;
  if (b.is_constant()) return at::div(a.tensor, b.constant);
  return at::div(a.tensor, b.tensor);
}

// What a comparison gives; `dtype` is that of the numbers.
struct TensorMask {
  at::Tensor bits;
  at::ScalarType dtype;
};
inline TensorMask operator<(const TensorNumber& a, double b) { return {at::lt(a.tensor, b), a.tensor.scalar_type()}; }
inline TensorMask operator<=(const TensorNumber& a, double b) { return {at::le(a.tensor, b), a.tensor.scalar_type()}; }
inline TensorMask operator>(const TensorNumber& a, double b) { return {at::gt(a.tensor, b), a.tensor.scalar_type()}; }
inline TensorMask operator>=(const TensorNumber& a, double b) { return {at::ge(a.tensor, b), a.tensor.scalar_type()}; }

inline TensorNumber select(const TensorMask& mask, const TensorNumber& a, const TensorNumber& b) {
  if (a.is_constant() && b.is_constant()) {
    if (a.constant == b.constant) return a;
    // Of two scalars, at::where would choose the dtype itself.
    return at::where(mask.bits, at::full_like(mask.bits, a.constant, mask.bits.options().dtype(mask.dtype)),
                     at::Scalar(b.constant));
  }
  if (a.is_constant()) return at::where(mask.bits, at::Scalar(a.constant), b.tensor);
  if (b.is_constant()) return at::where(mask.bits, a.tensor, at::Scalar(b.constant));
  return at::where(mask.bits, a.tensor, b.tensor);
}

#define FASTOPS_UNARY(function)                            \
  inline TensorNumber function(const TensorNumber& a) {    \
    if (a.is_constant()) return std::function(a.constant); \
    return at::function(a.tensor);                         \
  }
FASTOPS_UNARY(exp)
FASTOPS_UNARY(expm1)
FASTOPS_UNARY(log1p)
FASTOPS_UNARY(tanh)
FASTOPS_UNARY(erf)
FASTOPS_UNARY(sin)
FASTOPS_UNARY(cos)
#undef FASTOPS_UNARY

}  // namespace fastops
