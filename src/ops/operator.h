// The ops as types. An op is a struct of its arguments, as its schema has them, from which its C++ signature, calls of
// it and its kernels follow:
//
//   struct GatedAct {
//     static constexpr auto name = "gated_act";
//     using Result = Tensor;
//     In<Tensor> self;
//     std::string_view activation;
//     c10::ArrayRef<double> params;
//     bool gate_last;
//     auto values() const { return std::make_tuple(self, activation, params, gate_last); }
//     GatedActArguments checked() const;
//   };
//
// checked() refuses what is wrong, and gives the arguments in the form that kernels compute with. A kernel takes either
// of the two, and implement() registers it:
//
//   Tensor gated_act(const GatedActArguments& arguments);
//   TORCH_LIBRARY_IMPL(fastops, CPU, m) { implement<GatedAct, gated_act>(m); }
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fastops {

// An argument that is passed by reference: one that is read, and one that is written to.
template <class T>
using In = std::reference_wrapper<const T>;
template <class T>
using Out = std::reference_wrapper<T>;

namespace detail {

template <class Result, class Values>
struct SignatureOf;
template <class Result, class... Values>
struct SignatureOf<Result, std::tuple<Values...>> {
  using type = Result(Values...);
};

}  // namespace detail

// The function that the dispatcher knows an op as.
template <class Op>
using Signature = typename detail::SignatureOf<typename Op::Result, decltype(std::declval<const Op&>().values())>::type;

template <class Op>
const c10::TypedOperatorHandle<Signature<Op>>& handle_of() {
  static const auto handle = [] {
    const std::string_view name = Op::name;
    const size_t dot = name.find('.');
    const std::string overload(dot == name.npos ? "" : name.substr(dot + 1));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(("fastops::" + std::string(name.substr(0, dot))).c_str(), overload.c_str())
        .template typed<Signature<Op>>();
  }();
  return handle;
}

// Calls the op, through the whole dispatcher or with the layers in a key set.
template <class Op>
typename Op::Result call_op(const Op& op) {
  return std::apply([](auto&&... values) ->
                    typename Op::Result { return handle_of<Op>().call(std::forward<decltype(values)>(values)...); },
                    op.values());
}
template <class Op>
typename Op::Result redispatch(c10::DispatchKeySet keys, const Op& op) {
  return std::apply(
      [keys](auto&&... values) ->
      typename Op::Result { return handle_of<Op>().redispatch(keys, std::forward<decltype(values)>(values)...); },
      op.values());
}

// kernel(op), or that of its checked arguments, whichever it takes.
template <auto kernel, class Op>
typename Op::Result run_kernel(const Op& op) {
  if constexpr (std::is_invocable_v<decltype(kernel), const Op&>) {
    return kernel(op);
  } else {
    return kernel(op.checked());
  }
}

namespace detail {

template <class Op, auto kernel, class Function>
struct Kernel;
template <class Op, auto kernel, class... Values>
struct Kernel<Op, kernel, typename Op::Result(Values...)> {
  static typename Op::Result run(Values... values) { return run_kernel<kernel>(Op{values...}); }
  static typename Op::Result run_with_keys(c10::DispatchKeySet keys, Values... values) {
    return kernel(keys, Op{values...});
  }
};

}  // namespace detail

// Registers a kernel: a function of the op or of its checked arguments, or, for a layer above the backends, of the key
// set that it was called with and the op. (The dispatcher's adapters take long to compile: those for a function known
// at run time are the same for all kernels of an op in a file.)
template <class Op, auto kernel>
void implement(torch::Library& m) {
  using Kernel = detail::Kernel<Op, kernel, Signature<Op>>;
  if constexpr (std::is_invocable_v<decltype(kernel), c10::DispatchKeySet, const Op&>) {
    m.impl(Op::name, TORCH_FN(Kernel::run_with_keys));
  } else {
    m.impl(Op::name, &Kernel::run);
  }
}

}  // namespace fastops
