// The plain activations: relu(self), softshrink(self, lambd), ..., their in-place and out= forms, and their derivative.
//
// Every activation has an op of its own, so its kernels differ only in the op's name and parameters. A layer of the
// dispatcher (a backend, Meta, autograd, ...) writes them once, in terms of an ActivationSpec:
//
//   struct Layer {
//     static Tensor functional(const PlainOp& op, const ActivationSpec& spec, const Tensor& self);
//     static Tensor& out(const PlainOp& op, const ActivationSpec& spec, const Tensor& self, Tensor& out);
//     static Tensor& in_place(const PlainOp& op, const ActivationSpec& spec, Tensor& self);
//   };
//   TORCH_LIBRARY_IMPL(fastops, Key, m) { impl_activations<Layer>(m); }
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <utility>

#include "activations/jet.h"
#include "export.h"
#include "ops/activation_spec.h"
#include "ops/checks.h"
#include "ops/dtype_of.h"
#include "ops/operator.h"

namespace fastops {

using at::Tensor;

// The op of one activation: `call` goes through the whole dispatcher, the others to the layers in a key set. `keys` are
// those that the current layer was called with.
struct PlainOp {
  c10::DispatchKeySet keys;
  Tensor (*call)(const ActivationSpec&, const Tensor&);
  Tensor (*functional)(c10::DispatchKeySet, const ActivationSpec&, const Tensor&);
  Tensor& (*out)(c10::DispatchKeySet, const ActivationSpec&, const Tensor&, Tensor&);
  Tensor& (*in_place)(c10::DispatchKeySet, const ActivationSpec&, Tensor&);
};

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

// ---- the typed kernels of each activation's op, for impl_activations ----

namespace detail {

constexpr size_t count_parameters(std::string_view schema) {
  size_t count = 0;
  for (size_t at = schema.find("float "); at != schema.npos; at = schema.find("float ", at + 1)) ++count;
  return count;
}

template <size_t>
using Parameter = double;

template <Activation id, class Indices>
struct Typed;

template <Activation id, size_t... I>
struct Typed<id, std::index_sequence<I...>> {
  using Values = std::array<double, sizeof...(I)>;
  using Functional = Tensor(const Tensor&, Parameter<I>...);
  using Out = Tensor&(const Tensor&, Parameter<I>..., Tensor&);
  using InPlace = Tensor&(Tensor&, Parameter<I>...);

  template <class Signature>
  static c10::TypedOperatorHandle<Signature> find(const char* suffix, const char* overload) {
    const std::string name = std::string("fastops::") + info(id).name + suffix;
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload).typed<Signature>();
  }

  static const c10::TypedOperatorHandle<Functional>& functional_handle() {
    static const auto handle = find<Functional>("", "");
    return handle;
  }

  static PlainOp op(c10::DispatchKeySet keys) {
    return {keys,
            [](const ActivationSpec& spec, const Tensor& self) -> Tensor {
              return functional_handle().call(self, spec.values[I]...);
            },
            [](c10::DispatchKeySet ks, const ActivationSpec& spec, const Tensor& self) -> Tensor {
              return functional_handle().redispatch(ks, self, spec.values[I]...);
            },
            [](c10::DispatchKeySet ks, const ActivationSpec& spec, const Tensor& self, Tensor& out) -> Tensor& {
              static const auto handle = find<Out>("", "out");
              return handle.redispatch(ks, self, spec.values[I]..., out);
            },
            [](c10::DispatchKeySet ks, const ActivationSpec& spec, Tensor& self) -> Tensor& {
              static const auto handle = find<InPlace>("_", "");
              return handle.redispatch(ks, self, spec.values[I]...);
            }};
  }

  template <class Layer>
  static Tensor functional(c10::DispatchKeySet ks, const Tensor& self, Parameter<I>... p) {
    return Layer::functional(op(ks), activation_spec(id, Values{p...}), self);
  }
  template <class Layer>
  static Tensor& out(c10::DispatchKeySet ks, const Tensor& self, Parameter<I>... p, Tensor& out) {
    return Layer::out(op(ks), activation_spec(id, Values{p...}), self, out);
  }
  template <class Layer>
  static Tensor& in_place(c10::DispatchKeySet ks, Tensor& self, Parameter<I>... p) {
    return Layer::in_place(op(ks), activation_spec(id, Values{p...}), self);
  }
};

}  // namespace detail

// Registers the layer's kernels for every activation, for as many of the three forms as the layer has.
template <class Layer>
void impl_activations(torch::Library& m) {
  const auto impl = [&]<class Op>(const std::string& name) {
    if constexpr (requires { &Layer::functional; }) m.impl(name.c_str(), TORCH_FN((Op::template functional<Layer>)));
    m.impl((name + "_").c_str(), TORCH_FN((Op::template in_place<Layer>)));
    m.impl((name + ".out").c_str(), TORCH_FN((Op::template out<Layer>)));
  };
#define FASTOPS_IMPL(name, A, parameters, ...) \
  impl.template                                \
  operator()<detail::Typed<Activation::name, std::make_index_sequence<detail::count_parameters(parameters)>>>(#name);
  FASTOPS_ACTIVATIONS(FASTOPS_IMPL)
#undef FASTOPS_IMPL
}

}  // namespace fastops
