// The ops of a device with kernels. What a device brings is a struct of functions of tensors that are checked:
//
//   struct Device {
//     // Results.
//     static Tensor empty(at::IntArrayRef sizes, const Tensor& like);
//     static Tensor empty_like(const Tensor& like);
//
//     // y = f(x); y may be x. False where the strides are not for a kernel: those of dense tensors that are laid out
//     // alike always are.
//     static bool try_activation(const ActivationSpec& f, const Tensor& x, const Tensor& y);
//     // grad_output times a derivative, into a dense result; likewise.
//     static bool try_activation_backward(const ActivationBackwardArguments& backward, const Tensor& result);
//
//     // z = x + bias and y = f(z), both contiguous; z may be undefined, and each of them may be x.
//     static void bias_act(const ActivationSpec& f, const Tensor& x, const Tensor& bias, const Tensor& z,
//                          const Tensor& y);
//     // As LayerSteps::backward, at saved + bias where there is a bias (undefined with from_output). y may be left
//     // undefined where it takes another pass.
//     static LayerSteps::Backward bias_act_backward(const Tensor& grad, const Tensor& saved, const Tensor& bias,
//                                                   const ActivationSpec& f, bool from_output,
//                                                   LayerSteps::Wanted wanted, bool disposable);
//
//     // y = f(gate) * up; y may be one of the two.
//     static void act_mul(const ActivationSpec& f, const Tensor& gate, const Tensor& up, const Tensor& y);
//     // The gradients of gate and up, and f(gate) * up, into those tensors that are defined. The gradients may have
//     // the memory of `grad`.
//     static void act_mul_backward(const ActivationSpec& f, const Tensor& grad, const Tensor& gate, const Tensor& up,
//                                  const GatedGradients& results);
//
//     // a @ b, and x @ weight.T + bias, where `bias` may be undefined, of matrices.
//     static Tensor product(const Tensor& a, const Tensor& b);
//     static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
//   };
//   TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) { impl_ops<Device>(m); }
//
// and, if it has them,
//
//     using Guard = c10::DeviceGuard;  // what makes a tensor's device the current one
//
//     // Kernels for more than one step, which take over what they can: nullopt is a network that they leave. `saved`
//     // is filled where given; gate and up are returned if `saves`. Those of mlp and mlp_jet are not asked about
//     // ensembles unless they take them.
//     static constexpr bool takes_ensembles = true;
//     static std::optional<LayerSteps::Forward> try_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
//                                                         const ActivationSpec& f, bool keeps_z);
//     static std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);
//     static std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp);
//     static std::optional<Tensor> try_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved);
//     static std::optional<std::vector<Tensor>> try_mlp_jet_backward(const MlpJetBackwardArguments& mlp);
//     static std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves);
//     static std::optional<std::vector<Tensor>> try_gated_mlp_backward(const GatedMlpBackwardArguments& mlp);
//     static std::optional<Tensor> try_sequential(const SequentialArguments& network, std::vector<Tensor>* saved);
//     static std::optional<std::vector<Tensor>> try_sequential_backward(const SequentialBackwardArguments& network);
//
//     // The members of SequentialSteps with these names.
//     static Tensor rows(...);
//     static SequentialSteps::RowGradients rows_backward(...);
//
// A device without some of the functions registers the families that it has: impl_activations<ActivationLayer<Device>>,
// impl_bias_act<Device>, ...
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "ops/bias_act.h"
#include "ops/device_steps.h"
#include "ops/gated_act.h"
#include "ops/mlp_jet.h"

namespace fastops {

// ---- the kernels of the ops ----

// Nothing on a device that is alone.
template <class Device>
auto guard_for(const Tensor& tensor) {
  if constexpr (requires { typename Device::Guard; }) {
    return typename Device::Guard(tensor.device());
  } else {
    return tensor.device();
  }
}

// The layer of impl_activations.
template <class Device>
struct ActivationLayer {
  static Tensor functional(DispatchKeySet, const ActivationSpec& spec, const Tensor& self) {
    check_tensor(info(spec.id).name, "self", self);
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    Tensor result = Device::empty_like(self);
    activate<Device>(spec, self, result);
    return result;
  }
  static Tensor& out(DispatchKeySet, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_tensor(info(spec.id).name, "self", self);
    prepare_out(info(spec.id).name, out, self);
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    activate<Device>(spec, self, out);
    return out;
  }
  static Tensor& in_place(DispatchKeySet, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    activate<Device>(spec, self, self);
    return self;
  }
};

template <class Device>
struct DeviceOps {
  static Tensor activation_backward(const ActivationBackwardArguments& backward) {
    [[maybe_unused]] const auto guard = guard_for<Device>(backward.saved);
    const Tensor result = Device::empty_like(backward.saved);
    activate_backward<Device>(backward, result);
    return result;
  }

  static Tensor bias_act(const BiasActArguments& arguments) {
    const auto& [self, bias, activation] = arguments;
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    if (!bias.defined()) {
      const Tensor result = Device::empty_like(self);
      activate<Device>(activation, self, result);
      return result;
    }
    const Tensor result = Device::empty(self.sizes(), self);
    Device::bias_act(activation, self, bias, {}, result);
    return result;
  }
  static Tensor& bias_act_out(const BiasActOutArguments& arguments) {
    const auto& [self, bias, activation] = static_cast<const BiasActArguments&>(arguments);
    Tensor& out = arguments.out;
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    if (!bias.defined()) {
      activate<Device>(activation, self, out);
    } else if (out.is_contiguous()) {
      Device::bias_act(activation, self, bias, {}, out);
    } else {
      out.copy_(bias_act(arguments));
    }
    return out;
  }
  static std::vector<Tensor> bias_act_backward(const BiasActBackwardArguments& backward) {
    const auto& [grad_output, saved, bias, activation, from_output, output_mask] = backward;
    if (!output_mask[0] && !output_mask[1]) return {};
    [[maybe_unused]] const auto guard = guard_for<Device>(saved);
    auto results = Device::bias_act_backward(grad_output, saved, bias, activation, from_output,
                                             {output_mask[0], output_mask[1], false}, /*disposable=*/false);
    std::vector<Tensor> grads;
    if (output_mask[0]) grads.push_back(std::move(results.grad));
    if (output_mask[1]) grads.push_back(std::move(results.bias_grad));
    return grads;
  }

  static Tensor act_mul(const ActMulArguments& arguments) {
    const auto& [gate, up, activation] = arguments;
    [[maybe_unused]] const auto guard = guard_for<Device>(gate);
    const Tensor result = Device::empty(gate.sizes(), gate);
    Device::act_mul(activation, gate, up, result);
    return result;
  }
  static std::vector<Tensor> act_mul_backward(const ActMulBackwardArguments& backward) {
    const auto& [grad_output, gate, up, activation, output_mask] = backward;
    [[maybe_unused]] const auto guard = guard_for<Device>(gate);
    GatedGradients results;
    std::vector<Tensor> grads;
    if (output_mask[0]) grads.push_back(results.gate = Device::empty(gate.sizes(), gate));
    if (output_mask[1]) grads.push_back(results.up = Device::empty(gate.sizes(), gate));
    if (!grads.empty()) Device::act_mul_backward(activation, grad_output, gate, up, results);
    return grads;
  }
  static Tensor gated_act(const GatedActArguments& arguments) {
    const auto [gate, up] = split_gate(arguments.self, arguments.gate_last);
    return act_mul({gate, up, arguments.activation});
  }
  static Tensor gated_act_backward(const GatedActBackwardArguments& backward) {
    const Tensor& self = backward.self;
    [[maybe_unused]] const auto guard = guard_for<Device>(self);
    const auto [gate, up] = split_gate(self, backward.gate_last);
    const Tensor result = Device::empty(self.sizes(), self);
    const auto [grad_gate, grad_up] = split_gate(result, backward.gate_last);
    Device::act_mul_backward(backward.activation, backward.grad_output, gate, up, {grad_gate, grad_up, {}});
    return result;
  }

  static Tensor mlp(const MlpArguments& mlp) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    return device_mlp<Device>(mlp, nullptr);
  }
  static MlpForward::Result mlp_forward(const MlpArguments& mlp) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    std::vector<Tensor> saved;
    Tensor output = device_mlp<Device>(mlp, &saved);
    return {std::move(output), std::move(saved)};
  }
  static std::vector<Tensor> mlp_backward(const MlpBackwardArguments& mlp) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    return device_mlp_backward<Device>(mlp);
  }

  static Tensor mlp_jet_and_saved(const MlpJetArguments& mlp, std::vector<Tensor>* saved) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    if constexpr (requires { &Device::try_mlp_jet; }) {
      if (auto output = takes<Device>(mlp) ? Device::try_mlp_jet(mlp, saved) : std::nullopt) return *std::move(output);
    }
    return composite_mlp_jet(mlp, saved);
  }
  static Tensor mlp_jet(const MlpJetArguments& mlp) { return mlp_jet_and_saved(mlp, nullptr); }
  static MlpJetForward::Result mlp_jet_forward(const MlpJetArguments& mlp) {
    std::vector<Tensor> saved;
    Tensor output = mlp_jet_and_saved(mlp, &saved);
    return {std::move(output), std::move(saved)};
  }
  static std::vector<Tensor> mlp_jet_backward(const MlpJetBackwardArguments& mlp) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    if constexpr (requires { &Device::try_mlp_jet_backward; }) {
      if (auto grads = takes<Device>(mlp) ? Device::try_mlp_jet_backward(mlp) : std::nullopt) return *std::move(grads);
    }
    return composite_mlp_jet_backward(mlp, /*again=*/false);
  }

  static GatedMlpForward::Result gated_mlp_and_saved(const GatedMlpArguments& mlp, bool saves) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    if constexpr (requires { &Device::try_gated_mlp; }) {
      if (auto result = Device::try_gated_mlp(mlp, saves)) return *std::move(result);
    }
    return layered_gated_mlp<Device>(mlp, saves);
  }
  static Tensor gated_mlp(const GatedMlpArguments& mlp) { return std::get<0>(gated_mlp_and_saved(mlp, false)); }
  static GatedMlpForward::Result gated_mlp_forward(const GatedMlpArguments& mlp) {
    return gated_mlp_and_saved(mlp, true);
  }
  static std::vector<Tensor> gated_mlp_backward(const GatedMlpBackwardArguments& mlp) {
    [[maybe_unused]] const auto guard = guard_for<Device>(mlp.input);
    if constexpr (requires { &Device::try_gated_mlp_backward; }) {
      if (auto grads = Device::try_gated_mlp_backward(mlp)) return *std::move(grads);
    }
    return layered_gated_mlp_backward(mlp, gated_steps_of<Device>);
  }

  static Tensor sequential_and_saved(const SequentialArguments& network, std::vector<Tensor>* saved) {
    [[maybe_unused]] const auto guard = guard_for<Device>(network.input);
    if constexpr (requires { &Device::try_sequential; }) {
      if (auto output = Device::try_sequential(network, saved)) return *std::move(output);
    }
    return layered_sequential(network, saved, sequential_steps_of<Device>());
  }
  static Tensor sequential(const SequentialArguments& network) { return sequential_and_saved(network, nullptr); }
  static SequentialForward::Result sequential_forward(const SequentialArguments& network) {
    std::vector<Tensor> saved;
    Tensor output = sequential_and_saved(network, &saved);
    return {std::move(output), std::move(saved)};
  }
  static std::vector<Tensor> sequential_backward(const SequentialBackwardArguments& network) {
    [[maybe_unused]] const auto guard = guard_for<Device>(network.input);
    if constexpr (requires { &Device::try_sequential_backward; }) {
      if (auto grads = Device::try_sequential_backward(network)) return *std::move(grads);
    }
    return layered_sequential_backward(network, sequential_steps_of<Device>());
  }
};

// ---- their registration ----

template <class Device>
void impl_activation(torch::Library& m) {
  impl_activations<ActivationLayer<Device>>(m);
  implement<ActivationBackward, DeviceOps<Device>::activation_backward>(m);
}

template <class Device>
void impl_bias_act(torch::Library& m) {
  implement<BiasAct, DeviceOps<Device>::bias_act>(m);
  implement<BiasActOut, DeviceOps<Device>::bias_act_out>(m);
  implement<BiasActBackward, DeviceOps<Device>::bias_act_backward>(m);
}

template <class Device>
void impl_gated_act(torch::Library& m) {
  implement<ActMul, DeviceOps<Device>::act_mul>(m);
  implement<ActMulBackward, DeviceOps<Device>::act_mul_backward>(m);
  implement<GatedAct, DeviceOps<Device>::gated_act>(m);
  implement<GatedActBackward, DeviceOps<Device>::gated_act_backward>(m);
}

template <class Device>
void impl_mlp(torch::Library& m) {
  implement<Mlp, DeviceOps<Device>::mlp>(m);
  implement<MlpForward, DeviceOps<Device>::mlp_forward>(m);
  implement<MlpBackward, DeviceOps<Device>::mlp_backward>(m);
  implement<LinearAct, DeviceOps<Device>::mlp>(m);
}

// Without kernels of its own it is made of the device's activations and PyTorch's products.
template <class Device>
void impl_mlp_jet(torch::Library& m) {
  implement<MlpJet, DeviceOps<Device>::mlp_jet>(m);
  implement<MlpJetForward, DeviceOps<Device>::mlp_jet_forward>(m);
  implement<MlpJetBackward, DeviceOps<Device>::mlp_jet_backward>(m);
}

template <class Device>
void impl_gated_mlp(torch::Library& m) {
  implement<GatedMlp, DeviceOps<Device>::gated_mlp>(m);
  implement<GatedMlpForward, DeviceOps<Device>::gated_mlp_forward>(m);
  implement<GatedMlpBackward, DeviceOps<Device>::gated_mlp_backward>(m);
}

// Without kernels for steps on rows it is made of the device's networks of one layer and PyTorch's ops.
template <class Device>
void impl_sequential(torch::Library& m) {
  implement<Sequential, DeviceOps<Device>::sequential>(m);
  implement<SequentialForward, DeviceOps<Device>::sequential_forward>(m);
  implement<SequentialBackward, DeviceOps<Device>::sequential_backward>(m);
}

template <class Device>
void impl_ops(torch::Library& m) {
  impl_activation<Device>(m);
  impl_bias_act<Device>(m);
  impl_gated_act<Device>(m);
  impl_mlp<Device>(m);
  impl_mlp_jet<Device>(m);
  impl_gated_mlp<Device>(m);
  impl_sequential<Device>(m);
}

}  // namespace fastops
