// The plain activations and their derivatives.
#include <cstring>
#include <type_traits>

#include "activations/derivative.h"
#include "backends/cpu/kernels/vec.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage>
void forward(const void* x, void* y, int64_t n, ActivationParams params, bool stream) {
  if constexpr (std::is_same_v<A, activations::Identity>) {
    std::memmove(y, x, n * sizeof(Storage));
    return;
  }
  const auto p = compute_params<Storage>(params);
  transform<Storage>(
      stream, n, [p](auto v) { return A::value(v, p); }, static_cast<Storage*>(y), static_cast<const Storage*>(x));
}

template <class A, class Storage, int order, bool from_output>
void backward(const void* grad, const void* saved, void* dx, int64_t n, ActivationParams params, bool stream) {
  const auto p = compute_params<Storage>(params);
  const auto derivative = [p](auto g, auto s) {
    return derivative_of_order<A, order>(g, s, from_output, [p](auto g_, auto s_) {
      if constexpr (from_output) {
        return A::template gradient_from_output<decltype(s_)>(g_, s_, p);
      } else {
        return A::template gradient<decltype(s_)>(g_, s_, p);
      }
    });
  };
  transform<Storage>(stream, n, derivative, static_cast<Storage*>(dx), static_cast<const Storage*>(grad),
                     static_cast<const Storage*>(saved));
}

}  // namespace

void add_activation_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    static_assert(max_order == 3);
    entry.forward = forward<A, Storage>;
    entry.backward[0] = backward<A, Storage, 1, false>;
    entry.backward[1] = backward<A, Storage, 2, false>;
    entry.backward[2] = backward<A, Storage, 3, false>;
    if constexpr (A::has_gradient_from_output) {
      entry.backward_from_output[0] = backward<A, Storage, 1, true>;
      entry.backward_from_output[1] = backward<A, Storage, 2, true>;
      entry.backward_from_output[2] = backward<A, Storage, 3, true>;
    }
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
