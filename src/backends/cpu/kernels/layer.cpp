// What the layers of mlp do to the sums of their matrix products.
#include "backends/cpu/kernels/layer.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void layer_forward(const void* arguments, const Block& block) {
  const auto to = *static_cast<const LayerForwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) FASTOPS_INLINE_LAMBDA {
    const auto z = add_bias<Storage>(sum(0), to.bias, load);
    store(z, to.pre);
    const auto y = apply([&](auto v) { return A::value(v, p); }, z);
    store(y, to.post);
    store_operand(y, to.next, to.as_stored);
  });
}

template <class A, class Storage, bool from_output>
void layer_backward(const void* arguments, const Block& block) {
  using Number = typename Packet<Storage>::Number;
  const auto to = *static_cast<const LayerBackwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  const auto derivative = [&](Number g, Number s) {
    if constexpr (from_output) {
      return A::template gradient_from_output<Number>(g, s, p);
    } else {
      return A::template gradient<Number>(g, s, p);
    }
  };
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) FASTOPS_INLINE_LAMBDA {
    if (!from_output && to.value.data) {
      const auto [value, gradient] = value_and_gradient<A, Storage>(sum(0), load(to.saved), p);
      store(value, to.value);
      store_operand(gradient, to.dz, to.as_stored);
    } else {
      store_operand(apply(derivative, sum(0), load(to.saved)), to.dz, to.as_stored);
    }
  });
}

}  // namespace

void add_layer_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.layer_forward = layer_forward<A, Storage>;
    entry.layer_backward = layer_backward<A, Storage, false>;
    if constexpr (A::has_gradient_from_output) entry.layer_backward_from_output = layer_backward<A, Storage, true>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
