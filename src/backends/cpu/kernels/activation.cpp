// The plain activations.
#include <cstring>
#include <type_traits>

#include "backends/cpu/kernels/vec.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void forward(const void* x, void* y, int64_t n, ActivationParams params, bool stream) {
  if constexpr (std::is_same_v<A, activations::Identity>) {
    std::memmove(y, x, n * sizeof(Storage));
    return;
  }
  const auto p = compute_params<Storage>(params);
  transform<is_short<A>, Storage>(
      stream, n, [p](auto v) FASTOPS_INLINE_LAMBDA { return A::value(v, p); }, static_cast<Storage*>(y),
      static_cast<const Storage*>(x));
}

}  // namespace

void add_activation_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) { entry.forward = forward<A, Storage>; });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
