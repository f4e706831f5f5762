// What the layers of mlp and gated_mlp do to the sums of their matrix products, and to the right-hand matrices on the
// way into panels.
#include "backends/cpu/kernels/panels.h"
#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// A row of biases, for every row of a block.
ConstRows every_row(const void* bias) { return {bias, 0}; }

template <class Storage, class Load>
Packet<Storage> add_bias(Packet<Storage> sum, const void* bias, Load load) {
  return bias ? apply<Storage>([](auto a, auto b) { return a + b; }, sum, load(every_row(bias))) : sum;
}

template <class A, class Storage>
void layer_forward(const void* arguments, const Block& block) {
  const auto& to = *static_cast<const LayerForwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto store_operand) {
    const auto z = add_bias<Storage>(sum(0), to.bias, load);
    store(z, to.pre);
    const auto y = apply<Storage>([&](auto v) { return A::value(v, p); }, z);
    store(y, to.post);
    store_operand(y, to.next, to.as_stored);
  });
}

template <class A, class Storage, bool from_output>
void layer_backward(const void* arguments, const Block& block) {
  using Number = typename Packet<Storage>::Number;
  const auto& to = *static_cast<const LayerBackwardArguments*>(arguments);
  const auto p = compute_params<Storage>(to.params);
  const auto derivative = [&](Number g, Number s) {
    if constexpr (from_output) {
      return A::template gradient_from_output<Number>(g, s, p);
    } else {
      return A::template gradient<Number>(g, s, p);
    }
  };
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto, auto store_operand) {
    store_operand(apply<Storage>(derivative, sum(0), load(to.saved)), to.dz, to.as_stored);
  });
}

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

// Panels of f(source), or of f(source) * second.
template <class A, class Storage, bool gated>
void pack_activated(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  using S = Compute<Storage>;
  const auto p = compute_params<Storage>(to.params);
  for_each_panel_row<S>(to, first_panel, last_panel,
                        [&](int64_t k, int64_t column, int64_t valid, S* target, int64_t width) {
                          const Block line{{target, nullptr}, width, 0, 1, 0, valid};
                          const auto at = [&](ConstRows rows) { return ConstRows{row<Storage>(rows, k) + column, 0}; };
                          for_each_sum<Storage>(line, [&](auto, auto load, auto, auto store_operand) {
                            auto y = apply<Storage>([&](auto v) { return A::value(v, p); }, load(at(to.source)));
                            if constexpr (gated) {
                              y = apply<Storage>([](auto a, auto b) { return a * b; }, y, load(at(to.second)));
                            }
                            store_operand(y, Rows{target, 0}, /*as_stored=*/false);
                          });
                          std::fill(target + valid, target + width, S(0));
                        });
}

}  // namespace

void add_layer_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.layer_forward = layer_forward<A, Storage>;
    entry.layer_backward = layer_backward<A, Storage, false>;
    if constexpr (A::has_gradient_from_output) entry.layer_backward_from_output = layer_backward<A, Storage, true>;
    entry.pack_activated = pack_activated<A, Storage, false>;
    entry.gated_layer_forward = gated_layer_forward<A, Storage>;
    entry.gated_layer_backward = gated_layer_backward<A, Storage>;
    entry.pack_gated = pack_activated<A, Storage, true>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
