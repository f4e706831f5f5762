#include "ops/activation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nan_to_num.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "ops/batching.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/tensor_number.h"
#include "torch_internal/functionalization.h"

namespace fastops {

ActivationBackwardArguments ActivationBackward::checked() const {
  const ActivationSpec spec = activation_spec(name, activation, params);
  check_tensor(name, "saved", saved);
  check_same_shape(name, "grad_output", grad_output, "saved", saved);
  TORCH_CHECK_VALUE(order >= 1 && order <= max_order, "fastops.", name, ": order must be 1 to ", int{max_order},
                    ", but is ", order);
  TORCH_CHECK_VALUE(!from_output || output_suffices(spec), "fastops.", name, ": the derivative of ", activation,
                    " cannot be had from its output with these parameters; pass the input and from_output=False");
  return {grad_output, saved, spec, from_output, order};
}

namespace {

// The parameters as native kernels for tensors of this type see them: PyTorch's ops refuse a scalar that the type has
// no room for, but not an infinite one.
ActivationSpec with_parameters_in(at::ScalarType type, ActivationSpec spec) {
  if (type == at::kDouble) return spec;
  for (double& value : spec.values) {
    if (std::abs(value) > std::numeric_limits<float>::max()) value = static_cast<float>(value);
  }
  return spec;
}

template <int order>
TensorNumber gradient(const ActivationSpec& spec, const TensorNumber& g, const TensorNumber& s, bool from_output) {
  return visit(spec.id, [&](auto activation) {
    using A = decltype(activation);
    return gradient_of_order<order>(g, s, [&](const auto& g_, const auto& s_) {
      using Number = std::decay_t<decltype(s_)>;
      if constexpr (A::has_gradient_from_output) {
        if (from_output) return A::template gradient_from_output<Number>(g_, s_, spec.params());
      }
      return A::template gradient<Number>(g_, s_, spec.params());
    });
  });
}

}  // namespace

Tensor composite_activation(const ActivationSpec& spec, const Tensor& self) {
  const at::ScalarType type = compute_type(self);
  const auto params = with_parameters_in(type, spec).params();
  const TensorNumber x(self.to(type));
  const TensorNumber y = visit(spec.id, [&](auto activation) { return decltype(activation)::value(x, params); });
  return y.tensor.to(self.scalar_type());
}

Tensor composite_gradient(const ActivationBackwardArguments& backward) {
  const auto& [grad_output, saved, activation, from_output, order] = backward;
  const at::ScalarType type = compute_type(saved);
  const ActivationSpec spec = with_parameters_in(type, activation);
  const TensorNumber g(grad_output.to(type));
  const TensorNumber s(saved.to(type));
  static_assert(max_order == 3);
  const TensorNumber d = order == 1   ? gradient<1>(spec, g, s, from_output)
                         : order == 2 ? gradient<2>(spec, g, s, from_output)
                                      : gradient<3>(spec, g, s, from_output);
  if (!d.is_constant()) return d.tensor.to(saved.scalar_type());
  // A derivative that is zero everywhere comes as a constant; it is zero for any gradient.
  return at::mul(d.is_zero() ? at::nan_to_num(grad_output, 0.0, 0.0, 0.0) : grad_output, d.constant);
}

namespace {

// The ops with as many parameters as there are indices, and kernels of theirs.
template <class Indices>
struct PlainOps;
template <size_t... I>
struct PlainOps<std::index_sequence<I...>> {
  using Functional = Tensor(const Tensor&, Parameter<I>...);
  using Out = Tensor&(const Tensor&, Parameter<I>..., Tensor&);
  using InPlace = Tensor&(Tensor&, Parameter<I>...);

  struct Handles {
    c10::TypedOperatorHandle<Functional> functional;
    c10::TypedOperatorHandle<Out> out;
    c10::TypedOperatorHandle<InPlace> in_place;
  };

  template <class Function>
  static c10::TypedOperatorHandle<Function> find(const std::string& name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload).typed<Function>();
  }

  static const Handles& handles(Activation id) {
    static const auto all = [] {
      std::array<std::optional<Handles>, activation_count> found;
      for (int i = 0; i < activation_count; ++i) {
        const auto id = static_cast<Activation>(i);
        if (parameter_count(id) != sizeof...(I)) continue;
        const std::string name = std::string("fastops::") + info(id).name;
        found[i] = {find<Functional>(name, ""), find<Out>(name, "out"), find<InPlace>(name + "_", "")};
      }
      return found;
    }();
    return *all[static_cast<int>(id)];
  }

  static void impl(torch::Library& m, Activation id, const ActivationKernels& kernels) {
    using Values = std::array<double, sizeof...(I)>;
    const std::string name = info(id).name;
    if (kernels.functional) {
      m.impl(name.c_str(), [id, f = kernels.functional](DispatchKeySet keys, const Tensor& self, Parameter<I>... p) {
        return f(keys, activation_spec(id, Values{p...}), self);
      });
    }
    m.impl((name + ".out").c_str(),
           [id, f = kernels.out](DispatchKeySet keys, const Tensor& self, Parameter<I>... p, Tensor& out) -> Tensor& {
             return f(keys, activation_spec(id, Values{p...}), self, out);
           });
    m.impl((name + "_").c_str(),
           [id, f = kernels.in_place](DispatchKeySet keys, Tensor& self, Parameter<I>... p) -> Tensor& {
             return f(keys, activation_spec(id, Values{p...}), self);
           });
  }
};

}  // namespace

Tensor call_activation(const ActivationSpec& spec, const Tensor& self) {
  return with_parameters(spec.id, [&]<size_t... I>(std::index_sequence<I...> indices) {
    return PlainOps<decltype(indices)>::handles(spec.id).functional.call(self, spec.values[I]...);
  });
}

Tensor redispatch_activation(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self) {
  return with_parameters(spec.id, [&]<size_t... I>(std::index_sequence<I...> indices) {
    return PlainOps<decltype(indices)>::handles(spec.id).functional.redispatch(keys, self, spec.values[I]...);
  });
}

Tensor& redispatch_activation_out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
  return with_parameters(spec.id, [&]<size_t... I>(std::index_sequence<I...> indices) -> Tensor& {
    return PlainOps<decltype(indices)>::handles(spec.id).out.redispatch(keys, self, spec.values[I]..., out);
  });
}

Tensor& redispatch_activation_(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self) {
  return with_parameters(spec.id, [&]<size_t... I>(std::index_sequence<I...> indices) -> Tensor& {
    return PlainOps<decltype(indices)>::handles(spec.id).in_place.redispatch(keys, self, spec.values[I]...);
  });
}

void impl_activations(torch::Library& m, const ActivationKernels& kernels) {
  for (int i = 0; i < activation_count; ++i) {
    const auto id = static_cast<Activation>(i);
    with_parameters(id, [&](auto indices) { PlainOps<decltype(indices)>::impl(m, id, kernels); });
  }
}

namespace {

// Shapes only; serves symbolic sizes.
struct MetaLayer {
  static Tensor functional(DispatchKeySet, const ActivationSpec& spec, const Tensor& self) {
    check_tensor(info(spec.id).name, "self", self);
    return at::empty_like(self);
  }
  static Tensor& out(DispatchKeySet, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_tensor(info(spec.id).name, "self", self);
    prepare_out(info(spec.id).name, out, self);
    return out;
  }
  static Tensor& in_place(DispatchKeySet, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    return self;
  }
};

// Any device without kernels of its own.
struct FallbackLayer {
  static Tensor functional(DispatchKeySet, const ActivationSpec& spec, const Tensor& self) {
    check_tensor(info(spec.id).name, "self", self);
    note_fallback(info(spec.id).name, self);
    // identity's formula is its argument, which an op must not return
    return spec.id == Activation::identity ? self.clone() : composite_activation(spec, self);
  }
  static Tensor& out(DispatchKeySet keys, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_tensor(info(spec.id).name, "self", self);
    prepare_out(info(spec.id).name, out, self);
    out.copy_(functional(keys, spec, self));
    return out;
  }
  static Tensor& in_place(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    self.copy_(functional(keys, spec, self));
    return self;
  }
};

// vmap: the op itself, on the tensor with its batch dimension.
struct BatchedLayer {
  static Tensor functional(DispatchKeySet, const ActivationSpec& spec, const Tensor& self) {
    return batched_by_row([&](const Tensor& x) { return call_activation(spec, x); }, self);
  }
  static Tensor& out(DispatchKeySet, const ActivationSpec& spec, const Tensor&, Tensor&) {
    TORCH_CHECK(false, "fastops.", info(spec.id).name, ": out= is not supported under vmap, as in PyTorch");
  }
  // On a copy, as autograd at an outer level may keep the argument. It is added to -0, which changes no number: what
  // functionalization makes of copy_ has no forward mode.
  static Tensor& in_place(DispatchKeySet keys, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    const Tensor result = functional(keys, spec, self.clone());
    return self.fill_(-0.0).add_(result);
  }
};

// functionalization (torch.compile, torch.func.functionalize): the in-place form becomes the functional one.
struct FunctionalizeLayer {
  static Tensor& in_place(DispatchKeySet, const ActivationSpec& spec, Tensor& self) {
    check_in_place(info(spec.id).name, self);
    return functionalized([&](const Tensor& x) { return call_activation(spec, x); }, self, self);
  }
  static Tensor& out(DispatchKeySet, const ActivationSpec& spec, const Tensor& self, Tensor& out) {
    check_out(info(spec.id).name, out, self);
    return functionalized([&](const Tensor& x) { return call_activation(spec, x); }, out, self);
  }
};

Tensor activation_backward_meta(const ActivationBackwardArguments& backward) { return at::empty_like(backward.saved); }

Tensor activation_backward_fallback(const ActivationBackwardArguments& backward) {
  const Tensor result = composite_gradient(backward);
  if (!result.is_same(backward.grad_output) && result.sym_strides() == backward.saved.sym_strides()) return result;
  // In the layout of `saved`, where a formula is grad_output itself or begins with it. Adding to -0 changes no number;
  // a copy_ would have no place in a graph that is decomposed.
  return at::full_like(backward.saved, -0.0).add(result);
}

Tensor activation_backward_batched(const ActivationBackward& op) {
  return batched_by_row(op, &ActivationBackward::grad_output, &ActivationBackward::saved);
}

}  // namespace

TORCH_LIBRARY(fastops, m) {
  const std::vector<at::Tag> pointwise = {at::Tag::pointwise};
  for (int i = 0; i < activation_count; ++i) {
    const ActivationInfo& a = info(static_cast<Activation>(i));
    const std::string name = a.name;
    const std::string parameters = *a.schema ? std::string(", ") + a.schema : "";
    define(m, name + "(Tensor self" + parameters + ") -> Tensor", pointwise);
    define(m, name + "_(Tensor(a!) self" + parameters + ") -> Tensor(a!)", pointwise);
    define(m, name + ".out(Tensor self" + parameters + ", *, Tensor(a!) out) -> Tensor(a!)", pointwise);
  }
  define(m,
         "activation_backward(Tensor grad_output, Tensor saved, str activation, float[] params=[], bool "
         "from_output=False, int order=1) -> Tensor",
         pointwise);
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  impl_activations<MetaLayer>(m);
  implement<ActivationBackward, activation_backward_meta>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  impl_activations<FallbackLayer>(m);
  implement_fallback<ActivationBackward, activation_backward_fallback>(m);
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  impl_activations<BatchedLayer>(m);
  implement<ActivationBackward, activation_backward_batched>(m);
}

TORCH_LIBRARY_IMPL(fastops, Functionalize, m) { impl_activations<FunctionalizeLayer>(m); }

}  // namespace fastops
