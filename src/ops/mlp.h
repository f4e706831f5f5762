// mlp: a multi-layer perceptron of any depth in one op, its backward in another; linear_act: one layer of it.
//
// With h_0 = input, layer i computes z_i = h_i @ weights[i].T + biases[i] and h_{i+1} = activation(z_i), the last one
// with output_activation. For the backward pass each hidden layer keeps one tensor: its output where the activation's
// derivative can be had from it, else z_i, from which the output is computed again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"
#include "ops/checks.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;
using OptionalTensors = c10::List<std::optional<Tensor>>;

// The arguments of an mlp.
struct MlpArguments {
  Tensor input;
  at::TensorList weights;
  std::vector<Tensor> biases;  // undefined where a layer has none
  ActivationSpec activation;
  ActivationSpec output_activation;
  // Several networks at once: every tensor has their dimension in front. In the formulas in terms of PyTorch's ops,
  // weights and biases may lack it, which they share then.
  bool ensemble = false;

  size_t layers() const { return weights.size(); }
  const ActivationSpec& activation_of(size_t layer) const {
    return layer + 1 < layers() ? activation : output_activation;
  }
  // Whether the derivative of a layer's activation is had from its output, which is then what is saved.
  bool saves_output(size_t layer) const { return output_suffices(activation_of(layer), input.scalar_type()); }
  // Whether mlp_forward saves a tensor for this layer. All but the last do.
  bool saves(size_t layer) const { return layer + 1 < layers() || !saves_output(layer); }
  // Whether the derivative of the last layer takes the output itself.
  bool needs_output() const { return output_activation.id != Activation::identity && saves_output(layers() - 1); }
};

// mlp_forward(Tensor input, Tensor[] weights, Tensor?[] biases, str activation, str output_activation="identity",
//             float[] params=[], float[] output_params=[]) -> (Tensor output, Tensor[] saved)
//
// For training. `saved` has one tensor for each hidden layer, and z of the last layer where the derivative of
// output_activation needs it. Weights [members, out_features, in_features] are an ensemble: biases have the shape
// [members, out_features], and the input, like all results, [members, ..., features].
struct MlpForward {
  static constexpr auto name = "mlp_forward";
  using Result = std::tuple<Tensor, std::vector<Tensor>>;
  In<Tensor> input;
  at::TensorList weights;
  In<OptionalTensors> biases;
  std::string_view activation, output_activation;
  c10::ArrayRef<double> params, output_params;
  auto values() const {
    return std::make_tuple(input, weights, biases, activation, output_activation, params, output_params);
  }
  FASTOPS_API MlpArguments checked() const;
  // The same of arguments that have been checked.
  FASTOPS_API MlpArguments resolved() const;
};

// The same for an op that takes these arguments among others.
FASTOPS_API MlpArguments check_mlp(std::string_view op, const MlpForward& mlp);

// mlp: the same arguments and bool checkpoint=False -> Tensor
//
// With `checkpoint`, autograd keeps the arguments alone, and the backward pass computes the hidden layers again. It
// means nothing below autograd.
struct Mlp : MlpForward {
  static constexpr auto name = "mlp";
  using Result = Tensor;
  bool checkpoint;
  auto values() const { return std::tuple_cat(MlpForward::values(), std::make_tuple(checkpoint)); }
};

// mlp_backward(Tensor grad_output, Tensor input, Tensor[] weights, Tensor?[] biases, Tensor? output, Tensor[] saved,
//              str activation, str output_activation, float[] params, float[] output_params, bool[] output_mask)
//   -> Tensor[]
//
// `output` is given where the derivative of output_activation is had from it. output_mask has an entry for input,
// weights[0], biases[0], weights[1], ...; the gradients it asks for are returned in that order, contiguous, but for
// those of weights that are transposed matrices, which are transposed, too.
struct MlpGradientArguments {
  Tensor grad_output;
  at::TensorList saved;
  c10::SmallVector<bool, 9> output_mask;

  bool wants_input() const { return output_mask[0]; }
  bool wants_weight(size_t layer) const { return output_mask[1 + 2 * layer]; }
  bool wants_bias(size_t layer) const { return output_mask[2 + 2 * layer]; }
  bool wants_parameters() const {
    return std::find(output_mask.begin() + 1, output_mask.end(), true) != output_mask.end();
  }
  // The lowest place of the mask that a gradient is wanted for: nothing below it is computed.
  size_t lowest_wanted() const { return std::find(output_mask.begin(), output_mask.end(), true) - output_mask.begin(); }
};
struct MlpBackwardArguments : MlpArguments, MlpGradientArguments {
  Tensor output;  // undefined where it is not given

  // What a layer kept for the derivative of its activation.
  const Tensor& kept(size_t layer) const { return layer < saved.size() ? saved[layer] : output; }
};
struct MlpBackward {
  static constexpr auto name = "mlp_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, input;
  at::TensorList weights;
  In<OptionalTensors> biases;
  In<std::optional<Tensor>> output;
  at::TensorList saved;
  std::string_view activation, output_activation;
  c10::ArrayRef<double> params, output_params;
  In<c10::List<bool>> output_mask;
  auto values() const {
    return std::make_tuple(grad_output, input, weights, biases, output, saved, activation, output_activation, params,
                           output_params, output_mask);
  }
  FASTOPS_API MlpBackwardArguments checked() const;
};

// The same for an op whose forward pass saves so many tensors.
FASTOPS_API MlpGradientArguments check_gradients(std::string_view op, const MlpArguments& mlp,
                                                 const Tensor& grad_output, at::TensorList saved, size_t expected_saved,
                                                 const c10::List<bool>& output_mask);
// A tensor that has the shape and the dtype of a layer's output.
FASTOPS_API void check_layer_tensor(std::string_view op, Argument argument, const Tensor& tensor,
                                    const MlpArguments& mlp, size_t layer);

// Whether an mlp's weights are those of an ensemble.
inline bool is_ensemble(at::TensorList weights) { return !weights.empty() && weights[0].dim() == 3; }

// linear_act(Tensor input, Tensor weight, Tensor? bias, str activation, float[] params=[]) -> Tensor: an mlp of one
// layer
struct LinearAct {
  static constexpr auto name = "linear_act";
  using Result = Tensor;
  In<Tensor> input, weight;
  In<std::optional<Tensor>> bias;
  std::string_view activation;
  c10::ArrayRef<double> params;
  auto values() const { return std::make_tuple(input, weight, bias, activation, params); }
  FASTOPS_API MlpArguments checked() const;
};

// The layers one after another, in terms of differentiable ops; fills `saved` where given.
FASTOPS_API Tensor composite_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);

// What layered_mlp and layered_mlp_backward are made of: PyTorch's matrix products and, by default, bias_act and its
// derivative; a device may have functions that take fewer passes over memory.
struct LayerSteps {
  // y = f(z), z = x @ weight.T + bias, for matrices; `bias` may be undefined. z is not needed unless `keeps_z`.
  struct Forward {
    Tensor z, y;
  };
  Forward (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f, bool keeps_z);

  // The gradients of z and of the bias, given that of y, and y, as far as they are wanted; `saved` is y with
  // from_output, else z. `grad` is only read for gradients; that of z may take its memory if it is `disposable`.
  struct Backward {
    Tensor grad, bias_grad, y;
  };
  struct Wanted {
    bool grad, bias_grad, y;
  };
  Backward (*backward)(const Tensor& grad, const Tensor& saved, const ActivationSpec& f, bool from_output,
                       Wanted wanted, bool disposable);

  // a @ b, of matrices or of those of an ensemble
  Tensor (*product)(const Tensor& a, const Tensor& b);
};
FASTOPS_API extern const LayerSteps layer_steps;

// As composite_mlp, for real tensors and without autograd: what is not saved is computed in place. For devices without
// kernels of their own.
FASTOPS_API Tensor layered_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved,
                               const LayerSteps& steps = layer_steps);

// mlp_backward with PyTorch's matrix products; `output` and `saved` as the functions above return and fill them.
FASTOPS_API std::vector<Tensor> layered_mlp_backward(const MlpBackwardArguments& mlp,
                                                     const LayerSteps& steps = layer_steps);

// The backward in terms of differentiable ops. It computes the layers again: what the forward pass saved has no
// history, and derivatives of the backward pass run through it.
FASTOPS_API std::vector<Tensor> composite_mlp_backward(MlpBackwardArguments mlp);

}  // namespace fastops
