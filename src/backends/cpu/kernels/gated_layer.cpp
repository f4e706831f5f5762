// What the layers of gated_mlp do to the sums of their matrix products.
#include "backends/cpu/kernels/layer.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void gated_layer_forward(const void* arguments, const Block& block) {
  const auto to = *static_cast<const GatedForwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) FASTOPS_INLINE_LAMBDA {
    const auto gate = add_bias<Storage>(sum(0), to.gate_bias, load);
    const auto up = add_bias<Storage>(sum(1), to.up_bias, load);
    store(gate, to.gate);
    store(up, to.up);
    store_operand(apply([&](auto g, auto u) { return A::value(g, p) * u; }, gate, up), to.next, to.as_stored);
  });
}

template <class A, class Storage>
void gated_layer_backward(const void* arguments, const Block& block) {
  const auto to = *static_cast<const GatedBackwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) FASTOPS_INLINE_LAMBDA {
    const auto grad = sum(0);
    const auto up = load(to.up);
    const auto [value, gradient] = value_and_gradient<A, Storage>(product<Storage>(grad, up), load(to.gate), p);
    store_operand(gradient, to.dgate, to.as_stored);
    store_operand(product<Storage>(grad, value), to.dup, to.as_stored);
    store(product<Storage>(value, up), to.value);
  });
}

}  // namespace

void add_gated_layer_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.gated_layer_forward = gated_layer_forward<A, Storage>;
    entry.gated_layer_backward = gated_layer_backward<A, Storage>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
