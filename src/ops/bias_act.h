// bias_act: activation(self + bias), the bias over the last dimension, and its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;

// bias_act(Tensor self, Tensor? bias, str activation, float[] params=[]) -> Tensor
struct BiasActArguments {
  const Tensor& self;
  const Tensor& bias;  // undefined where there is none
  ActivationSpec activation;
};
struct BiasAct {
  static constexpr auto name = "bias_act";
  using Result = Tensor;
  In<Tensor> self;
  In<std::optional<Tensor>> bias;
  std::string_view activation;
  c10::ArrayRef<double> params;
  auto values() const { return std::make_tuple(self, bias, activation, params); }
  FASTOPS_API BiasActArguments checked() const;
};

// bias_act.out(Tensor self, Tensor? bias, str activation, float[] params=[], *, Tensor(a!) out) -> Tensor(a!)
struct BiasActOutArguments : BiasActArguments {
  Tensor& out;  // ready: it has the result's sizes
};
struct BiasActOut : BiasAct {
  static constexpr auto name = "bias_act.out";
  using Result = Tensor&;
  Out<Tensor> out;
  auto values() const { return std::make_tuple(self, bias, activation, params, out); }
  FASTOPS_API BiasActOutArguments checked() const;
};

// bias_act_backward(Tensor grad_output, Tensor saved, Tensor? bias, str activation, float[] params, bool from_output,
//                   bool[2] output_mask) -> Tensor[]
//
// `saved` is `self`, or the output with from_output (`bias` is then not used). Returns the gradients of self and of the
// bias, as far as output_mask asks for them.
struct BiasActBackwardArguments {
  const Tensor& grad_output;
  const Tensor& saved;
  const Tensor& bias;  // undefined where there is none, and with from_output
  ActivationSpec activation;
  bool from_output;
  std::array<bool, 2> output_mask;
};
struct BiasActBackward {
  static constexpr auto name = "bias_act_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, saved;
  In<std::optional<Tensor>> bias;
  std::string_view activation;
  c10::ArrayRef<double> params;
  bool from_output;
  std::array<bool, 2> output_mask;
  auto values() const {
    return std::make_tuple(grad_output, saved, bias, activation, params, from_output, output_mask);
  }
  FASTOPS_API BiasActBackwardArguments checked() const;
};

inline Tensor bias_act(const Tensor& self, const std::optional<Tensor>& bias, const ActivationSpec& spec) {
  return call_op(BiasAct{self, bias, info(spec.id).name, parameters(spec)});
}
inline Tensor& bias_act_out(const Tensor& self, const std::optional<Tensor>& bias, const ActivationSpec& spec,
                            Tensor& out) {
  return call_op(BiasActOut{{self, bias, info(spec.id).name, parameters(spec)}, out});
}
inline std::vector<Tensor> bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                             const std::optional<Tensor>& bias, const ActivationSpec& spec,
                                             bool from_output, std::array<bool, 2> output_mask) {
  return call_op(
      BiasActBackward{grad_output, saved, bias, info(spec.id).name, parameters(spec), from_output, output_mask});
}

// The backward in terms of differentiable ops.
FASTOPS_API std::vector<Tensor> composite_bias_act_backward(const BiasActBackwardArguments& backward);

}  // namespace fastops
