// The backward of activation(x + bias), with the bias gradient summed and the activation's value computed again in the
// same pass. The loops are part of each kernel: the compiler makes one of them for each choice of results.
#include <algorithm>

#include "backends/cpu/kernels/vec.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// Column sums are kept for a block of columns that stays in the L1 cache, and carried over to the total every few rows:
// that bounds the rounding error of long sums by sqrt(rows) steps or so instead of rows.
constexpr int64_t block_columns = 512;
constexpr int64_t block_rows = 64;

template <class A, class Storage, bool from_output>
void bias_backward(ConstRows grad, ConstRows saved, const void* bias, Rows dx, void* sums, Rows value, int64_t rows,
                   int64_t columns, ActivationParams params) {
  using Number = typename Packet<Storage>::Number;
  using S = Compute<Storage>;
  const auto p = compute_params<Storage>(params);
  const auto derivative = [&](Number g, Number s) {
    if constexpr (from_output) {
      return A::template gradient_from_output<Number>(g, s, p);
    } else {
      return A::template gradient<Number>(g, s, p);
    }
  };
  const auto* bias_row = static_cast<const Storage*>(bias);
  auto* total = static_cast<S*>(sums);
  alignas(64) S block[block_columns];

  for (int64_t c0 = 0; c0 < columns; c0 += block_columns) {
    const int64_t n = std::min(block_columns, columns - c0);
    if (total) std::fill(total + c0, total + c0 + n, S(0));
    for (int64_t r0 = 0; r0 < rows; r0 += block_rows) {
      std::fill(block, block + block_columns, S(0));
      for (int64_t r = r0; r < std::min(rows, r0 + block_rows); ++r) {
        const Storage* grad_row = row<Storage>(grad, r) + c0;
        const Storage* saved_row = row<Storage>(saved, r) + c0;
        Storage* dx_row = dx.data ? row<Storage>(dx, r) + c0 : nullptr;
        Storage* value_row = value.data ? row<Storage>(value, r) + c0 : nullptr;
        for_each_packet<Storage>(n, [&](int64_t i, auto load, auto store) {
          auto s = load(saved_row);
          if (bias_row) s = apply([](Number a, Number b) { return a + b; }, s, load(bias_row + c0));
          const auto g = load(grad_row);
          Packet<Storage> d;
          if (!from_output && value_row) {
            const auto [y, gradient] = value_and_gradient<A, Storage>(g, s, p);
            store(y, value_row);
            d = gradient;
          } else {
            d = apply(derivative, g, s);
          }
          if (dx_row) store(d, dx_row);
          for (int k = 0; total && k < Packet<Storage>::parts; ++k) {
            S* sum = block + i + k * Number::width;
            (Number(Number::Base::loadu(sum)) + d.part[k]).v.store(sum);
          }
        });
      }
      for (int64_t i = 0; total && i < n; ++i) total[c0 + i] += block[i];
    }
  }
}

}  // namespace

void add_bias_act_backward_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.bias_backward = bias_backward<A, Storage, false>;
    if constexpr (A::has_gradient_from_output) entry.bias_backward_from_output = bias_backward<A, Storage, true>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
