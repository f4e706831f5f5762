// What the layers of mlp and gated_mlp have in common: the bias, and their activation on the way into panels.
#pragma once

#include "backends/cpu/kernels/panels.h"
#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {

// A row of biases, for every row of a block.
inline ConstRows every_row(const void* bias) { return {bias, 0}; }

template <class Storage, class Load>
Packet<Storage> add_bias(Packet<Storage> sum, const void* bias, Load load) {
  return bias ? apply<Storage>([](auto a, auto b) { return a + b; }, sum, load(every_row(bias))) : sum;
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

}  // namespace fastops::cpu::CPU_CAPABILITY
