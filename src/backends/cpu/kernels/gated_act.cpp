// activation(gate) * up, forward and backward.
#include "backends/cpu/kernels/vec.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void gated_forward(ConstRows gate, ConstRows up, Rows y, int64_t rows, int64_t columns, ActivationParams params) {
  const auto p = compute_params<Storage>(params);
  for (int64_t r = 0; r < rows; ++r) {
    transform<is_short<A>, Storage>(/*stream=*/false, columns,
                                    [p](auto g, auto u) FASTOPS_INLINE_LAMBDA { return A::value(g, p) * u; },
                                    row<Storage>(y, r), row<Storage>(gate, r), row<Storage>(up, r));
  }
}

template <class A, class Storage>
void gated_backward(ConstRows grad, ConstRows gate, ConstRows up, Rows dgate, Rows dup, Rows value, int64_t rows,
                    int64_t columns, ActivationParams params) {
  const auto p = compute_params<Storage>(params);
  for (int64_t r = 0; r < rows; ++r) {
    const Storage* grad_row = row<Storage>(grad, r);
    const Storage* gate_row = row<Storage>(gate, r);
    const Storage* up_row = row<Storage>(up, r);
    Storage* dgate_row = row<Storage>(dgate, r);
    Storage* dup_row = row<Storage>(dup, r);
    Storage* value_row = row<Storage>(value, r);
    for_each_packet<Storage>(columns, [&](int64_t, auto load, auto store) FASTOPS_INLINE_LAMBDA {
      const auto d = load(grad_row);
      const auto g = load(gate_row);
      const auto u = load(up_row);
      // The value has the same bits whether the gradient is wanted or not.
      const auto [f, gradient] = value_and_gradient<A, Storage>(product<Storage>(d, u), g, p);
      if (dgate_row) store(gradient, dgate_row);
      if (dup_row) store(product<Storage>(d, f), dup_row);
      if (value_row) store(product<Storage>(u, f), value_row);
    });
  }
}

}  // namespace

void add_gated_act_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    entry.gated_forward = gated_forward<A, Storage>;
    entry.gated_backward = gated_backward<A, Storage>;
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
