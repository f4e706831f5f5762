// What the layers of mlp and gated_mlp have in common: the bias.
#pragma once

#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {

// A row of biases, for every row of a block.
inline ConstRows every_row(const void* bias) { return {bias, 0}; }

template <class Storage, class Load>
C10_ALWAYS_INLINE Packet<Storage> add_bias(Packet<Storage> sum, const void* bias, Load load) {
  return bias ? apply([](auto a, auto b) { return a + b; }, sum, load(every_row(bias))) : sum;
}

}  // namespace fastops::cpu::CPU_CAPABILITY
