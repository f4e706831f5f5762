// gated_mlp: (activation(input @ gate_weight.T) * (input @ up_weight.T)) @ down_weight.T, the feed-forward block of
// LLaMA (Shazeer, "GLU Variants Improve Transformer", 2020), with optional biases, in one op; its backward in another.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;

// The arguments of a gated_mlp.
struct GatedMlpArguments {
  Tensor input, gate_weight, up_weight, down_weight;
  Tensor gate_bias, up_bias, down_bias;  // undefined where there is none
  ActivationSpec activation;
  bool ensemble = false;  // as of MlpArguments
};

// gated_mlp_forward(Tensor input, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor? gate_bias=None,
//                   Tensor? up_bias=None, Tensor? down_bias=None, str activation="silu", float[] params=[])
//   -> (Tensor output, Tensor gate, Tensor up)
//
// For training; gate and up are the projections with their biases.
struct GatedMlpForward {
  static constexpr auto name = "gated_mlp_forward";
  using Result = std::tuple<Tensor, Tensor, Tensor>;
  In<Tensor> input, gate_weight, up_weight, down_weight;
  In<std::optional<Tensor>> gate_bias, up_bias, down_bias;
  std::string_view activation;
  c10::ArrayRef<double> params;
  auto values() const {
    return std::make_tuple(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation,
                           params);
  }
  FASTOPS_API GatedMlpArguments checked() const;
  // The same of arguments that have been checked.
  FASTOPS_API GatedMlpArguments resolved() const;
};

// gated_mlp: the same arguments and bool checkpoint=False -> Tensor
//
// `checkpoint` as for mlp.
struct GatedMlp : GatedMlpForward {
  static constexpr auto name = "gated_mlp";
  using Result = Tensor;
  bool checkpoint;
  auto values() const { return std::tuple_cat(GatedMlpForward::values(), std::make_tuple(checkpoint)); }
};

// gated_mlp_backward(Tensor grad_output, Tensor input, Tensor gate_weight, Tensor up_weight, Tensor down_weight,
//                    Tensor? gate_bias, Tensor? up_bias, Tensor gate, Tensor up, str activation, float[] params,
//                    bool[7] output_mask) -> Tensor[]
//
// The gradients of the seven tensor arguments of gated_mlp, in their order, as far as output_mask asks for them; in the
// layouts of mlp_backward's.
struct GatedMlpBackwardArguments : GatedMlpArguments {
  Tensor grad_output, gate, up;
  std::array<bool, 7> output_mask;
};
struct GatedMlpBackward {
  static constexpr auto name = "gated_mlp_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, input, gate_weight, up_weight, down_weight;
  In<std::optional<Tensor>> gate_bias, up_bias;
  In<Tensor> gate, up;
  std::string_view activation;
  c10::ArrayRef<double> params;
  std::array<bool, 7> output_mask;
  auto values() const {
    return std::make_tuple(grad_output, input, gate_weight, up_weight, down_weight, gate_bias, up_bias, gate, up,
                           activation, params, output_mask);
  }
  FASTOPS_API GatedMlpBackwardArguments checked() const;
};

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
  Tensor (*sum_of_rows)(const Tensor& matrix);
};
FASTOPS_API extern const GatedSteps gated_steps;  // with act_mul and its derivative

// gated_mlp_backward with PyTorch's matrix products; `gate` and `up` as composite_gated_mlp returns them.
FASTOPS_API std::vector<Tensor> layered_gated_mlp_backward(const GatedMlpBackwardArguments& mlp,
                                                           const GatedSteps& steps = gated_steps);

// The backward in terms of differentiable ops. It computes the projections again: what the forward pass saved has no
// history, and derivatives of the backward pass run through it.
FASTOPS_API std::vector<Tensor> composite_gated_mlp_backward(GatedMlpBackwardArguments mlp);

}  // namespace fastops
