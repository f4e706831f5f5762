// The plain activations: relu(self), softshrink(self, lambd), ..., their in-place and out= forms, and their derivative.
//
// Every activation has an op of its own, so its kernels differ only in the op's name and parameters. A layer of the
// dispatcher (a backend, Meta, autograd, ...) writes them once, in terms of an ActivationSpec:
//
//   struct Layer {
//     static Tensor functional(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self);
//     static Tensor& out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self, Tensor& out);
//     static Tensor& in_place(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self);
//   };
//   TORCH_LIBRARY_IMPL(fastops, Key, m) { impl_activations<Layer>(m); }
//
// `keys` are those that the layer was called with.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "activations/jet.h"
#include "export.h"
#include "ops/activation_spec.h"
#include "ops/checks.h"
#include "ops/dtype_of.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;
using c10::DispatchKeySet;

// The op of one activation, through the whole dispatcher or with the layers in a key set.
FASTOPS_API Tensor call_activation(const ActivationSpec& spec, const Tensor& self);
FASTOPS_API Tensor redispatch_activation(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self);
FASTOPS_API Tensor& redispatch_activation_out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self,
                                              Tensor& out);
FASTOPS_API Tensor& redispatch_activation_(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self);

// f(std::index_sequence<0, 1, ...>()) with an index for each parameter of the activation.
template <size_t>
using Parameter = double;
template <class F>
decltype(auto) with_parameters(Activation id, F f) {
  switch (parameter_count(id)) {
    case 0:
      return f(std::index_sequence<>());
    case 1:
      return f(std::index_sequence<0>());
    default:
      static_assert(std::tuple_size_v<decltype(ActivationSpec::values)> == 2);
      return f(std::index_sequence<0, 1>());
  }
}

// Registers the kernels of a layer for every activation; those that it lacks are null.
struct ActivationKernels {
  Tensor (*functional)(DispatchKeySet, const ActivationSpec&, const Tensor&);
  Tensor& (*out)(DispatchKeySet, const ActivationSpec&, const Tensor&, Tensor&);
  Tensor& (*in_place)(DispatchKeySet, const ActivationSpec&, Tensor&);
};
FASTOPS_API void impl_activations(torch::Library& m, const ActivationKernels& kernels);

template <class Layer>
void impl_activations(torch::Library& m) {
  ActivationKernels kernels{nullptr, Layer::out, Layer::in_place};
  if constexpr (requires { &Layer::functional; }) kernels.functional = Layer::functional;
  impl_activations(m, kernels);
}

// activation_backward(Tensor grad_output, Tensor saved, str activation, float[] params=[], bool from_output=False,
//                     int order=1) -> Tensor
//
// grad_output * the order-th derivative at `saved`, the input. With from_output, `saved` is the output and the
// derivatives are of f'(y) in y. It is linear in grad_output, and its derivative in `saved` is itself at order + 1, so
// one op serves all orders; from order max_order on, autograd differentiates the composite formula.
struct ActivationBackwardArguments {
  const Tensor& grad_output;
  const Tensor& saved;
  ActivationSpec activation;
  bool from_output;
  int64_t order;
};
struct ActivationBackward {
  static constexpr auto name = "activation_backward";
  using Result = Tensor;
  In<Tensor> grad_output, saved;
  std::string_view activation;
  c10::ArrayRef<double> params;
  bool from_output;
  int64_t order;
  auto values() const { return std::make_tuple(grad_output, saved, activation, params, from_output, order); }
  FASTOPS_API ActivationBackwardArguments checked() const;
};

inline Tensor activation_backward(const Tensor& grad_output, const Tensor& saved, const ActivationSpec& spec,
                                  bool from_output, int64_t order = 1) {
  return call_op(ActivationBackward{grad_output, saved, info(spec.id).name, parameters(spec), from_output, order});
}

// The formulas in ATen ops.
FASTOPS_API Tensor composite_activation(const ActivationSpec& spec, const Tensor& self);
FASTOPS_API Tensor composite_gradient(const ActivationBackwardArguments& backward);

}  // namespace fastops
