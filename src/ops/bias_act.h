// bias_act: activation(self + bias), the bias over the last dimension, and its backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <optional>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"

namespace fastops {

using at::Tensor;

// bias_act(Tensor self, Tensor? bias, str activation, float[] params=[]) -> Tensor, and out=
using BiasAct = Tensor(const Tensor&, const std::optional<Tensor>&, std::string_view, c10::ArrayRef<double>);
FASTOPS_API const c10::TypedOperatorHandle<BiasAct>& bias_act_op();
using BiasActOut = Tensor&(const Tensor&, const std::optional<Tensor>&, std::string_view, c10::ArrayRef<double>,
                           Tensor&);
FASTOPS_API const c10::TypedOperatorHandle<BiasActOut>& bias_act_out_op();

// bias_act_backward(Tensor grad_output, Tensor saved, Tensor? bias, str activation, float[] params, bool from_output,
//                   bool[2] output_mask) -> Tensor[]
//
// `saved` is `self`, or the output with from_output (`bias` is then not used). Returns the gradients of self and of the
// bias, as far as output_mask asks for them.
using BiasActBackward = std::vector<Tensor>(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                            std::string_view, c10::ArrayRef<double>, bool, std::array<bool, 2>);
FASTOPS_API const c10::TypedOperatorHandle<BiasActBackward>& bias_act_backward_op();

inline Tensor bias_act(const Tensor& self, const std::optional<Tensor>& bias, const ActivationSpec& spec) {
  return bias_act_op().call(self, bias, info(spec.id).name, parameters(spec));
}
inline Tensor& bias_act_out(const Tensor& self, const std::optional<Tensor>& bias, const ActivationSpec& spec,
                            Tensor& out) {
  return bias_act_out_op().call(self, bias, info(spec.id).name, parameters(spec), out);
}
inline std::vector<Tensor> bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                             const std::optional<Tensor>& bias, const ActivationSpec& spec,
                                             bool from_output, std::array<bool, 2> output_mask) {
  return bias_act_backward_op().call(grad_output, saved, bias, info(spec.id).name, parameters(spec), from_output,
                                     output_mask);
}

// Check the arguments and resolve the activation.
FASTOPS_API ActivationSpec check_bias_act(const Tensor& self, const std::optional<Tensor>& bias,
                                          std::string_view activation, c10::ArrayRef<double> params);
FASTOPS_API ActivationSpec check_bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                                   const std::optional<Tensor>& bias, std::string_view activation,
                                                   c10::ArrayRef<double> params, bool from_output);

// The backward in terms of differentiable ops.
FASTOPS_API std::vector<Tensor> composite_bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                                            const std::optional<Tensor>& bias,
                                                            std::string_view activation, c10::ArrayRef<double> params,
                                                            bool from_output, std::array<bool, 2> output_mask);

}  // namespace fastops
