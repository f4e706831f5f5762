// What the ops of a device (device.h) are made of: activations of any tensor, and the parts of networks.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "ops/activation.h"
#include "ops/axes.h"
#include "ops/gated_mlp.h"
#include "ops/matrix.h"
#include "ops/mlp.h"
#include "ops/sequential.h"

namespace fastops {

// ---- activations of tensors with any strides ----

// y = f(x). What no kernel takes is brought into y's layout first, or into another that is dense.
template <class Device>
void activate(const ActivationSpec& f, const Tensor& x, const Tensor& y) {
  if (Device::try_activation(f, x, y)) return;
  const bool is_dense = y.is_non_overlapping_and_dense();
  const Tensor dense = is_dense ? y : Device::empty_like(x);
  if (is_dense) dense.copy_(x);
  activate<Device>(f, is_dense ? dense : x, dense);
  if (!is_dense) y.copy_(dense);
}

template <class Device>
void activate_backward(const ActivationBackwardArguments& backward, const Tensor& result) {
  if (Device::try_activation_backward(backward, result)) return;
  const auto in_layout = [&](const Tensor& tensor) {
    return same_layout(tensor, result) ? tensor : Device::empty_like(result).copy_(tensor);
  };
  const Tensor grad_output = in_layout(backward.grad_output);
  const Tensor saved = in_layout(backward.saved);
  activate_backward<Device>({grad_output, saved, backward.activation, backward.from_output, backward.order}, result);
}

// ---- between the products of a network ----

template <class Device>
LayerSteps::Forward forward_step(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f,
                                 bool keeps_z) {
  if constexpr (requires { &Device::try_layer; }) {
    if (auto layer = Device::try_layer(x, weight, bias, f, keeps_z)) return *std::move(layer);
  }
  const bool identity = f.id == Activation::identity;
  const bool whole = identity || !bias.defined() || adds_bias_in_product(x);
  const Tensor z = Device::linear(x, weight, whole ? bias : Tensor());
  if (identity) return {z, z};
  const Tensor y = keeps_z ? Device::empty_like(z) : z;
  if (whole) {
    activate<Device>(f, z, y);
  } else {
    Device::bias_act(f, z, bias, keeps_z ? z : Tensor(), y);
  }
  return {z, y};
}

template <class Device>
LayerSteps::Backward backward_step(const Tensor& grad, const Tensor& saved, const ActivationSpec& f, bool from_output,
                                   LayerSteps::Wanted wanted, bool disposable) {
  LayerSteps::Backward results;
  if (wanted.grad || wanted.bias_grad) {
    results = Device::bias_act_backward(grad, saved, {}, f, from_output, wanted, disposable);
  }
  if (wanted.y && !results.y.defined()) {
    results.y = from_output ? saved : Device::empty_like(saved);
    if (!from_output) activate<Device>(f, saved, results.y);
  }
  return results;
}

template <class Device>
inline constexpr LayerSteps layer_steps_of{forward_step<Device>, backward_step<Device>, Device::product};

template <class Device>
GatedGradients gated_backward_step(const Tensor& grad, const Tensor& gate, const Tensor& up, const ActivationSpec& f,
                                   std::array<bool, 3> wanted) {
  const auto empty = [&] { return Device::empty(gate.sizes(), gate); };
  GatedGradients results;
  if (wanted[0]) results.gate = grad.is_contiguous() ? grad : empty();
  if (wanted[1]) results.up = wanted[0] || !grad.is_contiguous() ? empty() : grad;
  if (wanted[2]) results.product = empty();
  Device::act_mul_backward(f, grad, gate, up, results);
  return results;
}

template <class Device>
Tensor sum_of_rows(const Tensor& matrix) {
  const ActivationSpec identity{Activation::identity, {}};
  return Device::bias_act_backward(matrix, matrix, {}, identity, /*from_output=*/true, {false, true, false}, false)
      .bias_grad;
}

template <class Device>
inline constexpr GatedSteps gated_steps_of{gated_backward_step<Device>, Device::product, sum_of_rows<Device>};

template <class Device>
GatedMlpForward::Result layered_gated_mlp(const GatedMlpArguments& mlp, bool saves) {
  const Tensor x = as_matrix(mlp.input);
  const Tensor gate = Device::linear(x, mlp.gate_weight, mlp.gate_bias);
  const Tensor up = Device::linear(x, mlp.up_weight, mlp.up_bias);
  const Tensor hidden = saves ? Device::empty_like(gate) : gate;
  Device::act_mul(mlp.activation, gate, up, hidden);
  const Tensor output = Device::linear(hidden, mlp.down_weight, mlp.down_bias);
  return {with_leading_dims(output, mlp.input), with_leading_dims(gate, mlp.input), with_leading_dims(up, mlp.input)};
}

// ---- networks of plain layers ----

template <class Device>
bool takes(const MlpArguments& mlp) {
  return !mlp.ensemble || requires { requires Device::takes_ensembles; };
}

// The output; fills `saved` where given.
template <class Device>
Tensor device_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  if constexpr (requires { &Device::try_mlp; }) {
    if (auto output = takes<Device>(mlp) ? Device::try_mlp(mlp, saved) : std::nullopt) return *std::move(output);
  }
  return layered_mlp(mlp, saved, layer_steps_of<Device>);
}

template <class Device>
std::vector<Tensor> device_mlp_backward(const MlpBackwardArguments& mlp) {
  if constexpr (requires { &Device::try_mlp_backward; }) {
    if (auto grads = takes<Device>(mlp) ? Device::try_mlp_backward(mlp) : std::nullopt) return *std::move(grads);
  }
  return layered_mlp_backward(mlp, layer_steps_of<Device>);
}

// ---- the parts of a sequential ----

// One product, as a network of one layer, for which a device may have kernels.
template <class Device>
struct Products {
  static constexpr ActivationSpec identity{Activation::identity, {}};

  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return device_mlp<Device>({x, weight, {bias}, identity, identity}, nullptr);
  }
  static Tensor input_gradient(const Tensor& grad, const Tensor& weight) {
    return gradients(grad, input_of_shape(grad, weight), weight, {}, {true, false, false})[0];
  }
  static SequentialSteps::ParameterGradients parameter_gradients(const Tensor& grad, const Tensor& x,
                                                                 const Tensor& weight, const Tensor& bias,
                                                                 std::pair<bool, bool> wanted) {
    const auto [wants_weight, wants_bias] = wanted;
    const Tensor input = wants_weight ? x : input_of_shape(grad, weight);
    std::vector<Tensor> grads = gradients(grad, input, weight, bias, {false, wants_weight, wants_bias});
    return {wants_weight ? grads.front() : Tensor(), wants_bias ? grads.back() : Tensor()};
  }

 private:
  // For gradients that do not depend on its values.
  static Tensor input_of_shape(const Tensor& grad, const Tensor& weight) {
    auto sizes = grad.sizes().vec();
    sizes.back() = weight.size(1);
    return Device::empty(sizes, grad);
  }
  static std::vector<Tensor> gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                       c10::SmallVector<bool, 9> mask) {
    return device_mlp_backward<Device>({{x, weight, {bias}, identity, identity}, {grad, {}, std::move(mask)}, {}});
  }
};

template <class Device>
SequentialSteps sequential_steps_of() {
  SequentialSteps steps = sequential_steps;
  steps.linear = Products<Device>::linear;
  steps.linear_input_gradient = Products<Device>::input_gradient;
  steps.linear_parameter_gradients = Products<Device>::parameter_gradients;
  if constexpr (requires { Device::rows; }) {
    steps.rows = Device::rows;
    steps.rows_backward = Device::rows_backward;
  }
  return steps;
}

}  // namespace fastops
