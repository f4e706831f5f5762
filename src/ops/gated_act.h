// act_mul: activation(gate) * up; gated_act: the same on the two halves of one tensor's last dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;

// act_mul(Tensor gate, Tensor up, str activation, float[] params=[]) -> Tensor
struct ActMulArguments {
  const Tensor& gate;
  const Tensor& up;
  ActivationSpec activation;
};
struct ActMul {
  static constexpr auto name = "act_mul";
  using Result = Tensor;
  In<Tensor> gate, up;
  std::string_view activation;
  c10::ArrayRef<double> params;
  auto values() const { return std::make_tuple(gate, up, activation, params); }
  FASTOPS_API ActMulArguments checked() const;
};

// act_mul_backward(Tensor grad_output, Tensor gate, Tensor up, str activation, float[] params, bool[2] output_mask)
//   -> Tensor[]: the gradients of gate and up, as far as output_mask asks for them
struct ActMulBackwardArguments {
  const Tensor& grad_output;
  const Tensor& gate;
  const Tensor& up;
  ActivationSpec activation;
  std::array<bool, 2> output_mask;
};
struct ActMulBackward {
  static constexpr auto name = "act_mul_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, gate, up;
  std::string_view activation;
  c10::ArrayRef<double> params;
  std::array<bool, 2> output_mask;
  auto values() const { return std::make_tuple(grad_output, gate, up, activation, params, output_mask); }
  FASTOPS_API ActMulBackwardArguments checked() const;
};

// gated_act(Tensor self, str activation, float[] params=[], bool gate_last=False) -> Tensor
struct GatedActArguments {
  const Tensor& self;
  ActivationSpec activation;
  bool gate_last;
};
struct GatedAct {
  static constexpr auto name = "gated_act";
  using Result = Tensor;
  In<Tensor> self;
  std::string_view activation;
  c10::ArrayRef<double> params;
  bool gate_last;
  auto values() const { return std::make_tuple(self, activation, params, gate_last); }
  FASTOPS_API GatedActArguments checked() const;
};

// gated_act_backward(Tensor grad_output, Tensor self, str activation, float[] params, bool gate_last) -> Tensor
struct GatedActBackwardArguments : GatedActArguments {
  const Tensor& grad_output;
};
struct GatedActBackward {
  static constexpr auto name = "gated_act_backward";
  using Result = Tensor;
  In<Tensor> grad_output, self;
  std::string_view activation;
  c10::ArrayRef<double> params;
  bool gate_last;
  auto values() const { return std::make_tuple(grad_output, self, activation, params, gate_last); }
  FASTOPS_API GatedActBackwardArguments checked() const;
};

inline Tensor act_mul(const Tensor& gate, const Tensor& up, const ActivationSpec& spec) {
  return call_op(ActMul{gate, up, info(spec.id).name, parameters(spec)});
}
inline std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                            const ActivationSpec& spec, std::array<bool, 2> output_mask) {
  return call_op(ActMulBackward{grad_output, gate, up, info(spec.id).name, parameters(spec), output_mask});
}

// The sizes of gated_act's result: half of the last one.
FASTOPS_API std::vector<c10::SymInt> gated_sizes(const Tensor& self);

// The gate and the up half.
FASTOPS_API std::pair<Tensor, Tensor> split_gate(const Tensor& self, bool gate_last);

// In terms of differentiable ops.
FASTOPS_API Tensor composite_act_mul(const ActMulArguments& arguments);
FASTOPS_API std::vector<Tensor> composite_act_mul_backward(const ActMulBackwardArguments& backward);
FASTOPS_API Tensor composite_gated_act(const GatedActArguments& arguments);
FASTOPS_API Tensor composite_gated_act_backward(const GatedActBackwardArguments& backward);

}  // namespace fastops
