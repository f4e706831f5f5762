// gated_mlp: (activation(input @ gate_weight.T) * (input @ up_weight.T)) @ down_weight.T, the feed-forward block of
// LLaMA (Shazeer, "GLU Variants Improve Transformer", 2020), with optional biases, in one op; its backward in another.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"

namespace fastops {

using at::Tensor;

// gated_mlp(Tensor input, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor? gate_bias=None,
//           Tensor? up_bias=None, Tensor? down_bias=None, str activation="silu", float[] params=[],
//           bool checkpoint=False) -> Tensor
//
// `checkpoint` as for mlp.
using GatedMlp = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, const std::optional<Tensor>&, std::string_view,
                        c10::ArrayRef<double>, bool);
FASTOPS_API const c10::TypedOperatorHandle<GatedMlp>& gated_mlp_op();

// gated_mlp_forward: the same arguments but checkpoint -> (Tensor output, Tensor gate, Tensor up), for training; gate
// and up are the projections with their biases.
using GatedMlpForward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                           const std::optional<Tensor>&, const std::optional<Tensor>&,
                                                           const std::optional<Tensor>&, std::string_view,
                                                           c10::ArrayRef<double>);
FASTOPS_API const c10::TypedOperatorHandle<GatedMlpForward>& gated_mlp_forward_op();

// gated_mlp_backward(Tensor grad_output, Tensor input, Tensor gate_weight, Tensor up_weight, Tensor down_weight,
//                    Tensor? gate_bias, Tensor? up_bias, Tensor gate, Tensor up, str activation, float[] params,
//                    bool[7] output_mask) -> Tensor[]
//
// The gradients of the seven tensor arguments of gated_mlp, in their order, as far as output_mask asks for them.
using GatedMlpBackward = std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                             const std::optional<Tensor>&, const std::optional<Tensor>&, const Tensor&,
                                             const Tensor&, std::string_view, c10::ArrayRef<double>,
                                             std::array<bool, 7>);
FASTOPS_API const c10::TypedOperatorHandle<GatedMlpBackward>& gated_mlp_backward_op();

// The parameters of gated_mlp_forward, and of gated_mlp before checkpoint; their names.
#define FASTOPS_GATED_MLP_PARAMETERS                                                                  \
  const Tensor &input, const Tensor &gate_weight, const Tensor &up_weight, const Tensor &down_weight, \
      const std::optional<Tensor>&gate_bias, const std::optional<Tensor>&up_bias,                     \
      const std::optional<Tensor>&down_bias, std::string_view activation, c10::ArrayRef<double> params
#define FASTOPS_GATED_MLP_ARGUMENTS \
  input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation, params

// The parameters of gated_mlp_backward before output_mask, and their names.
#define FASTOPS_GATED_MLP_BACKWARD_PARAMETERS                                                                \
  const Tensor &grad_output, const Tensor &input, const Tensor &gate_weight, const Tensor &up_weight,        \
      const Tensor &down_weight, const std::optional<Tensor>&gate_bias, const std::optional<Tensor>&up_bias, \
      const Tensor &gate, const Tensor &up, std::string_view activation, c10::ArrayRef<double> params
#define FASTOPS_GATED_MLP_BACKWARD_ARGUMENTS \
  grad_output, input, gate_weight, up_weight, down_weight, gate_bias, up_bias, gate, up, activation, params

// The arguments of a gated_mlp, checked.
struct GatedMlpArguments {
  Tensor input, gate_weight, up_weight, down_weight;
  std::optional<Tensor> gate_bias, up_bias, down_bias;
  ActivationSpec activation;
  bool ensemble = false;  // as of MlpArguments
};
FASTOPS_API GatedMlpArguments check_gated_mlp(const Tensor& input, const Tensor& gate_weight, const Tensor& up_weight,
                                              const Tensor& down_weight, const std::optional<Tensor>& gate_bias,
                                              const std::optional<Tensor>& up_bias,
                                              const std::optional<Tensor>& down_bias, std::string_view activation,
                                              c10::ArrayRef<double> params);

// The arguments of gated_mlp_backward.
FASTOPS_API GatedMlpArguments check_gated_mlp_backward(FASTOPS_GATED_MLP_BACKWARD_PARAMETERS);

// In terms of differentiable ops: (output, gate, up).
FASTOPS_API std::tuple<Tensor, Tensor, Tensor> composite_gated_mlp(const GatedMlpArguments& mlp);

// What layered_gated_mlp_backward is made of, as LayerSteps. Back through activation(gate) * up: the gradients of gate
// and up, given its own, and itself, as far as they are wanted. A gradient may take the memory of `grad`.
struct GatedGradients {
  Tensor gate, up, product;
};
struct GatedSteps {
  GatedGradients (*backward)(const Tensor& grad, const Tensor& gate, const Tensor& up, const ActivationSpec& f,
                             std::array<bool, 3> wanted);
  Tensor (*product)(const Tensor& a, const Tensor& b);  // as of LayerSteps
};
FASTOPS_API extern const GatedSteps gated_steps;  // with act_mul and its derivative

// gated_mlp_backward with PyTorch's matrix products; `gate` and `up` as composite_gated_mlp returns them.
FASTOPS_API std::vector<Tensor> layered_gated_mlp_backward(const GatedMlpArguments& mlp, const Tensor& grad_output,
                                                           const Tensor& gate, const Tensor& up,
                                                           std::array<bool, 7> output_mask,
                                                           const GatedSteps& steps = gated_steps);

// The backward in terms of differentiable ops. It computes the projections again: what the forward pass saved has no
// history, and derivatives of the backward pass run through it.
FASTOPS_API std::vector<Tensor> composite_gated_mlp_backward(const GatedMlpArguments& mlp, const Tensor& grad_output,
                                                             std::array<bool, 7> output_mask);

}  // namespace fastops
