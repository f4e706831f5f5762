// What the layers of gated_mlp do to the sums of their matrix products, and to the right-hand matrices on the way into
// panels.
#include "backends/cpu/kernels/layer.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void gated_layer_forward(const void* arguments, const Block& block) {
  const auto& to = *static_cast<const GatedForwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) {
    const auto gate = add_bias<Storage>(sum(0), to.gate_bias, load);
    const auto up = add_bias<Storage>(sum(1), to.up_bias, load);
    store(gate, to.gate);
    store(up, to.up);
    store_operand(apply<Storage>([&](auto g, auto u) { return A::value(g, p) * u; }, gate, up), to.next, to.as_stored);
  });
}

template <class A, class Storage>
void gated_layer_backward(const void* arguments, const Block& block) {
  using Number = typename Packet<Storage>::Number;
  const auto& to = *static_cast<const GatedBackwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto, auto store_operand) {
    const auto grad = sum(0);
    const auto gate = load(to.gate);
    if (to.dgate.data) {
      store_operand(
          apply<Storage>([&](Number d, Number g, Number u) { return A::template gradient<Number>(d * u, g, p); }, grad,
                         gate, load(to.up)),
          to.dgate, to.as_stored);
    }
    if (to.dup.data) {
      store_operand(apply<Storage>([&](Number d, Number g) { return A::value(g, p) * d; }, grad, gate), to.dup,
                    to.as_stored);
    }
  });
}

}  // namespace

void add_gated_layer_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.gated_layer_forward = gated_layer_forward<A, Storage>;
    entry.gated_layer_backward = gated_layer_backward<A, Storage>;
    entry.pack_gated = pack_activated<A, Storage, true>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
