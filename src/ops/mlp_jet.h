// mlp_jet: a multi-layer perceptron with the derivatives of its outputs along directions of its input, in one pass.
//
// The input has for each point its 1 + D + S rows: the point, D tangents, and S second derivatives. They are the Taylor
// coefficients (but for factors) of a surface through the point, and the output has those of its image:
//   y = f(z),  y_d = f'(z) z_d,  and for an activation
//   S = D:             y_dd = f'(z) z_dd + f''(z) z_d^2 for each d,
//   S = D (D + 1) / 2: y_de = f'(z) z_de + f''(z) z_d z_e for each pair d <= e, in the order of d and then e,
//   S = 1:             the sum with weights w_d of the former alone, y_s = f'(z) z_s + f''(z) sum_d w_d z_d^2,
//   S = 0:             none,
// and the same matrix product for all rows of a linear layer, whose bias the first row alone has.
// With the identity as tangents, y_d are the gradient and y_s the Laplacian: Li et al., "A computational framework for
// neural network-based variational Monte Carlo with Forward Laplacian", Nature Machine Intelligence, 2024.
#pragma once

#include "ops/mlp.h"

namespace fastops {

struct JetForm {
  int64_t directions;                 // D
  int64_t seconds;                    // S
  std::vector<double> trace_weights;  // empty where all are 1

  int64_t rows() const { return 1 + directions + seconds; }
  // Whether each direction has its second derivative, or each pair of them; else there is the sum of the former.
  bool each() const { return seconds == directions && trace_weights.empty(); }
  bool pairs() const { return seconds > directions; }
};

struct MlpJetArguments : MlpArguments {
  JetForm form;

  // z of a layer is saved, of all but a last one without an activation.
  bool saves_output(size_t) const { return false; }
  bool needs_output() const { return false; }
  bool saves(size_t layer) const { return activation_of(layer).id != Activation::identity || layer + 1 < layers(); }
};

// mlp_jet_forward(Tensor input, int directions, Tensor[] weights, Tensor?[] biases, str activation,
//                 str output_activation="identity", float[] params=[], float[] output_params=[],
//                 float[] trace_weights=[]) -> (Tensor output, Tensor[] saved)
//
// For training. `saved` has z of each layer with an activation.
struct MlpJetForward {
  static constexpr auto name = "mlp_jet_forward";
  using Result = std::tuple<Tensor, std::vector<Tensor>>;
  In<Tensor> input;  // [..., 1 + D + S, in_features]
  int64_t directions;
  at::TensorList weights;
  In<OptionalTensors> biases;
  std::string_view activation, output_activation;
  c10::ArrayRef<double> params, output_params, trace_weights;
  auto values() const {
    return std::make_tuple(input, directions, weights, biases, activation, output_activation, params, output_params,
                           trace_weights);
  }
  FASTOPS_API MlpJetArguments checked() const;
};

// mlp_jet: the same arguments -> Tensor [..., 1 + D + S, out_features]
struct MlpJet : MlpJetForward {
  static constexpr auto name = "mlp_jet";
  using Result = Tensor;
};

// mlp_jet_backward(Tensor grad_output, Tensor input, int directions, Tensor[] weights, Tensor?[] biases,
//                  Tensor[] saved, str activation, str output_activation, float[] params, float[] output_params,
//                  float[] trace_weights, bool[] output_mask) -> Tensor[]
//
// The mask and the gradients are those of mlp_backward.
struct MlpJetBackwardArguments : MlpJetArguments, MlpGradientArguments {};
struct MlpJetBackward {
  static constexpr auto name = "mlp_jet_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, input;
  int64_t directions;
  at::TensorList weights;
  In<OptionalTensors> biases;
  at::TensorList saved;
  std::string_view activation, output_activation;
  c10::ArrayRef<double> params, output_params, trace_weights;
  In<c10::List<bool>> output_mask;
  auto values() const {
    return std::make_tuple(grad_output, input, directions, weights, biases, saved, activation, output_activation,
                           params, output_params, trace_weights, output_mask);
  }
  FASTOPS_API MlpJetBackwardArguments checked() const;
};

// On CPUs, second derivatives of a network in a direction of its input are a pass of mlp_jet (autograd/mlp.h) where its
// weights, all together, are at most so many; of more the formulas of the nodes take less time. A static object has
// what the kernels in use say.
FASTOPS_API bool are_few_for_jet(at::TensorList weights);
FASTOPS_API int64_t most_weights_by_jet();
struct FASTOPS_API RegisterMostWeightsByJet {
  explicit RegisterMostWeightsByJet(int64_t (*most)());
};

// What mlp_jet returns, which nothing else has, in parts that may be written to: the values, the first and the second
// derivatives.
FASTOPS_API std::vector<at::Tensor> parts_of_jets(const at::Tensor& jets, int64_t directions, int64_t seconds);

// In terms of differentiable ops; fills `saved` where given.
FASTOPS_API Tensor composite_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved);
// Likewise, from what was saved, or with `again` from the arguments alone, so that derivatives run through it.
FASTOPS_API std::vector<Tensor> composite_mlp_jet_backward(const MlpJetBackwardArguments& mlp, bool again);

}  // namespace fastops
