// sequential: the layers of a network one after another in one op, its backward in another. Between matrix products
// stand steps that compute each row by itself: normalization, activations, dropout, scales, residual connections.
//
// The network is a list of steps, separated by spaces, which take their tensors from `parameters` and their numbers
// from `params`, in order:
//
//   step              tensors         numbers
//   linear            weight, bias?                   h @ weight.T + bias
//   gated_linear      weight, bias?,                  f(h @ weight.T + bias) * (h @ up_weight.T + up_bias), f being
//                     up_weight, up_bias?             the activation that must be the next step
//   layer_norm        weight?, bias?  eps             (h - mean(h)) / sqrt(var(h) + eps) * weight + bias
//   rms_norm          weight?         eps             h / sqrt(mean(h^2) + eps) * weight
//   scale             weight                          h * weight (LayerScale)
//   dropout                           p               h / (1 - p) or 0
//   an activation                     all of its own
//   residual                                          keeps h for
//   add                                               h + what the last `residual` kept that has not been added yet
//
// "residual layer_norm linear gelu dropout linear dropout add" is the feed-forward half of a transformer's block.
//
// Steps on rows between two products are computed in float32 (float64 stays), and rounded once. A product takes place
// in its weight's dtype, and `add` gives the wider of its two; all others keep the dtype that they get.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "export.h"
#include "ops/activation_spec.h"
#include "ops/mlp.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;

struct Step {
  enum class Kind { linear, gated_linear, layer_norm, rms_norm, scale, dropout, residual, add, activation };
  Kind kind;
  size_t parameter = 0;         // the place of the weight among the parameters; the bias comes next
  Tensor weight = {};           // undefined where there is none
  Tensor bias = {};             // likewise
  double number = 0;            // eps or p
  int64_t stream = 0;           // of a dropout: which of the random streams is its own
  ActivationSpec activation{};  // of an activation, and of a gated_linear
  Tensor up_weight = {};        // of a gated_linear: the parameter after the next one
  Tensor up_bias = {};

  bool is_norm() const { return kind == Kind::layer_norm || kind == Kind::rms_norm; }
  bool is_product() const { return kind == Kind::linear || kind == Kind::gated_linear; }
};

// Steps on rows, from one tensor of the network to the next.
struct Segment {
  std::span<const Step> rows;
  const Step* end;  // the product, residual or add that follows; null at the end of the network
  // What it starts from: the input is 0. After a `residual` without steps before it, it is that of the segment before.
  size_t value;
  c10::SymInt features;        // of that
  at::ScalarType dtype;        // of that
  at::ScalarType rows_type;    // of what the steps on rows make of it
  const Step* gate = nullptr;  // the gated_linear that makes it: then its two factors are saved, gate and up
  int saved = -1;              // its place in what the forward pass saves, if that has it

  bool ends_with(Step::Kind kind) const { return end && end->kind == kind; }
  bool ends_with_product() const { return end && end->is_product(); }
};

// The arguments of a sequential.
struct SequentialArguments {
  Tensor input;
  size_t parameters;  // how many there are
  std::vector<Step> steps;
  Tensor seed;  // int64, without dimensions; undefined where nothing is dropped

  // They refer to the steps.
  FASTOPS_API std::vector<Segment> segments() const;
};

// sequential_forward(Tensor input, Tensor?[] parameters, str steps, float[] params=[], Tensor? seed=None)
//   -> (Tensor output, Tensor[] saved)
//
// For training. `saved` has the tensors that segments start from, but for the input and those whose backward pass does
// not look at them; of gated_linear the two that are multiplied.
//
// The numbers that decide what is dropped are those of Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", 2011) with the key `seed`, and depend on nothing else but the place in the tensor and the step: see
// dropout_factors. So the backward pass needs no mask, and all devices drop the same elements.
struct SequentialForward {
  static constexpr auto name = "sequential_forward";
  using Result = std::tuple<Tensor, std::vector<Tensor>>;
  In<Tensor> input;
  In<OptionalTensors> parameters;
  std::string_view steps;
  c10::ArrayRef<double> params;
  In<std::optional<Tensor>> seed;
  auto values() const { return std::make_tuple(input, parameters, steps, params, seed); }
  FASTOPS_API SequentialArguments checked() const;
  // The same of arguments that have been checked.
  FASTOPS_API SequentialArguments resolved() const;
};

// sequential: the same arguments -> Tensor
struct Sequential : SequentialForward {
  static constexpr auto name = "sequential";
  using Result = Tensor;
};

// sequential_backward(Tensor grad_output, Tensor input, Tensor?[] parameters, Tensor[] saved, str steps,
//                     float[] params, Tensor? seed, bool[] output_mask) -> Tensor[]
//
// The gradients of the input and of each of the parameters, as far as output_mask asks for them.
struct SequentialBackwardArguments : SequentialArguments {
  Tensor grad_output;
  at::TensorList saved;
  std::vector<bool> output_mask;

  bool wants_input() const { return output_mask[0]; }
  bool wants_parameter(size_t place) const { return output_mask[1 + place]; }
};
struct SequentialBackward {
  static constexpr auto name = "sequential_backward";
  using Result = std::vector<Tensor>;
  In<Tensor> grad_output, input;
  In<OptionalTensors> parameters;
  at::TensorList saved;
  std::string_view steps;
  c10::ArrayRef<double> params;
  In<std::optional<Tensor>> seed;
  In<c10::List<bool>> output_mask;
  auto values() const {
    return std::make_tuple(grad_output, input, parameters, saved, steps, params, seed, output_mask);
  }
  FASTOPS_API SequentialBackwardArguments checked() const;
};

// What a sequential is made of. `rows` are steps on rows, x and added [..., features], and so are the results.
struct SequentialSteps {
  Tensor (*linear)(const Tensor& x, const Tensor& weight, const Tensor& bias);
  // The gradients that are wanted of x; of the weight and of the bias.
  Tensor (*linear_input_gradient)(const Tensor& grad, const Tensor& weight);
  struct ParameterGradients {
    Tensor weight, bias;
  };
  ParameterGradients (*linear_parameter_gradients)(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                   const Tensor& bias, std::pair<bool, bool> wanted);

  // The steps, and + added where it is defined, in a dtype.
  Tensor (*rows)(std::span<const Step> rows, const Tensor& seed, const Tensor& x, const Tensor& added,
                 at::ScalarType dtype);
  // The gradients of x, + added where it is defined, and of the parameters, given that of what the steps make of x, and
  // that value in a dtype, as far as they are wanted. Where the steps do not look at it, x is undefined.
  struct RowGradients {
    Tensor x, value;
    std::vector<ParameterGradients> parameters;  // of each step
  };
  struct Wanted {
    bool x, value;
    std::vector<std::pair<bool, bool>> parameters;  // of each step: its weight's, its bias's
    at::ScalarType x_type, value_type;

    FASTOPS_API int64_t parameter_count() const;  // how many gradients of parameters
  };
  RowGradients (*rows_backward)(std::span<const Step> rows, const Tensor& seed, const Tensor& x, const Tensor& grad,
                                const Tensor& added, const Wanted& wanted);
};
// In terms of differentiable ops.
FASTOPS_API extern const SequentialSteps sequential_steps;

// For devices whose kernels take steps on rows.
FASTOPS_API Tensor empty_of_type(const Tensor& like, at::ScalarType dtype);
// The gradients of each step's parameters in their dtypes, given the wanted ones, one after another: [..., features].
FASTOPS_API std::vector<SequentialSteps::ParameterGradients> gradients_of_steps(std::span<const Step> steps,
                                                                                const SequentialSteps::Wanted& wanted,
                                                                                const Tensor& vectors);

// The output; fills `saved` where given.
FASTOPS_API Tensor layered_sequential(const SequentialArguments& network, std::vector<Tensor>* saved,
                                      const SequentialSteps& steps = sequential_steps);
FASTOPS_API std::vector<Tensor> layered_sequential_backward(const SequentialBackwardArguments& network,
                                                            const SequentialSteps& steps = sequential_steps);

// The backward in terms of differentiable ops. It computes the values again: what the forward pass saved has no
// history, and derivatives of the backward pass run through it.
FASTOPS_API std::vector<Tensor> composite_sequential_backward(const SequentialBackwardArguments& network);

// What dropout multiplies the elements of a tensor like `like` [..., features] with: 0 or 1 / (1 - p).
//
// Of the elements of a row, 64 neighbours share 16 calls of Philox: that of element c has the counter (c / 64 * 16 + c
// % 16, row, row >> 32, stream), and the element the (c % 64 / 16)-th of its four numbers, which keeps it unless it is
// below p * 2^32.
FASTOPS_API Tensor dropout_factors(const Tensor& like, const Tensor& seed, int64_t stream, double p);

// Numbers below this one drop an element.
inline uint32_t dropout_threshold(double p) {
  constexpr double numbers = 4294967296.0;
  return p * numbers < numbers - 1 ? static_cast<uint32_t>(p * numbers + 0.5) : static_cast<uint32_t>(numbers - 1);
}
inline double dropout_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

}  // namespace fastops
