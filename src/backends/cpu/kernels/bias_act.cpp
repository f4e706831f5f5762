// activation(x + bias) over the last dimension.
#include "backends/cpu/kernels/vec.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void bias_forward(ConstRows x, const void* bias, Rows z, Rows y, int64_t rows, int64_t columns,
                  ActivationParams params) {
  const auto p = compute_params<Storage>(params);
  const auto* bias_row = static_cast<const Storage*>(bias);
  for (int64_t r = 0; r < rows; ++r) {
    const Storage* x_row = row<Storage>(x, r);
    Storage* z_row = row<Storage>(z, r);
    Storage* y_row = row<Storage>(y, r);
    if (!z_row) {
      transform<is_short<A>, Storage>(
          /*stream=*/false, columns, [p](auto a, auto b) FASTOPS_INLINE_LAMBDA { return A::value(a + b, p); }, y_row,
          x_row, bias_row);
      continue;
    }
    for_each_packet<Storage>(columns, [&](int64_t, auto load, auto store) {
      const auto sum = apply([](auto a, auto b) { return a + b; }, load(x_row), load(bias_row));
      store(sum, z_row);
      store(apply([&](auto v) { return A::value(v, p); }, sum), y_row);
    });
  }
}

}  // namespace

void add_bias_act_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) { entry.bias_forward = bias_forward<A, Storage>; });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
