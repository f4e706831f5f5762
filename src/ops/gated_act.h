// act_mul: activation(gate) * up; gated_act: the same on the two halves of one tensor's last dimension.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <utility>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"

namespace fastops {

using at::Tensor;

// act_mul(Tensor gate, Tensor up, str activation, float[] params=[]) -> Tensor
using ActMul = Tensor(const Tensor&, const Tensor&, std::string_view, c10::ArrayRef<double>);
FASTOPS_API const c10::TypedOperatorHandle<ActMul>& act_mul_op();

// act_mul_backward(Tensor grad_output, Tensor gate, Tensor up, str activation, float[] params, bool[2] output_mask)
//   -> Tensor[]: the gradients of gate and up, as far as output_mask asks for them
using ActMulBackward = std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&, std::string_view,
                                           c10::ArrayRef<double>, std::array<bool, 2>);
FASTOPS_API const c10::TypedOperatorHandle<ActMulBackward>& act_mul_backward_op();

// gated_act(Tensor self, str activation, float[] params=[], bool gate_last=False) -> Tensor
using GatedAct = Tensor(const Tensor&, std::string_view, c10::ArrayRef<double>, bool);
FASTOPS_API const c10::TypedOperatorHandle<GatedAct>& gated_act_op();

// gated_act_backward(Tensor grad_output, Tensor self, str activation, float[] params, bool gate_last) -> Tensor
using GatedActBackward = Tensor(const Tensor&, const Tensor&, std::string_view, c10::ArrayRef<double>, bool);
FASTOPS_API const c10::TypedOperatorHandle<GatedActBackward>& gated_act_backward_op();

inline Tensor act_mul(const Tensor& gate, const Tensor& up, const ActivationSpec& spec) {
  return act_mul_op().call(gate, up, info(spec.id).name, parameters(spec));
}
inline std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                            const ActivationSpec& spec, std::array<bool, 2> output_mask) {
  return act_mul_backward_op().call(grad_output, gate, up, info(spec.id).name, parameters(spec), output_mask);
}

// Check the arguments and resolve the activation.
FASTOPS_API ActivationSpec check_act_mul(const Tensor& gate, const Tensor& up, std::string_view activation,
                                         c10::ArrayRef<double> params);
FASTOPS_API ActivationSpec check_act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                                  std::string_view activation, c10::ArrayRef<double> params);
FASTOPS_API ActivationSpec check_gated_act(const Tensor& self, std::string_view activation,
                                           c10::ArrayRef<double> params);
FASTOPS_API ActivationSpec check_gated_act_backward(const Tensor& grad_output, const Tensor& self,
                                                    std::string_view activation, c10::ArrayRef<double> params);

// The sizes of gated_act's result: half of the last one.
FASTOPS_API std::vector<c10::SymInt> gated_sizes(const Tensor& self);

// The gate and the up half.
FASTOPS_API std::pair<Tensor, Tensor> split_gate(const Tensor& self, bool gate_last);

// In terms of differentiable ops.
FASTOPS_API Tensor composite_act_mul(const Tensor& gate, const Tensor& up, std::string_view activation,
                                     c10::ArrayRef<double> params);
FASTOPS_API std::vector<Tensor> composite_act_mul_backward(const Tensor& grad_output, const Tensor& gate,
                                                           const Tensor& up, std::string_view activation,
                                                           c10::ArrayRef<double> params,
                                                           std::array<bool, 2> output_mask);
FASTOPS_API Tensor composite_gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params,
                                       bool gate_last);
FASTOPS_API Tensor composite_gated_act_backward(const Tensor& grad_output, const Tensor& self,
                                                std::string_view activation, c10::ArrayRef<double> params,
                                                bool gate_last);

}  // namespace fastops
