// The derivatives of the plain activations.
#include <algorithm>
#include <type_traits>

#include "activations/derivative.h"
#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class A, class Storage, int order, bool from_output>
void backward(const void* grad, const void* saved, void* dx, int64_t n, ActivationParams params, bool stream) {
  const auto p = compute_params<Storage>(params);
  const auto derivative = [p](auto g, auto s) FASTOPS_INLINE_LAMBDA {
    return derivative_of_order<A, order>(g, s, from_output, [p](auto g_, auto s_) FASTOPS_INLINE_LAMBDA {
      if constexpr (from_output) {
        return A::template gradient_from_output<decltype(s_)>(g_, s_, p);
      } else {
        return A::template gradient<decltype(s_)>(g_, s_, p);
      }
    });
  };
  transform<is_short<A>, Storage>(stream, n, derivative, static_cast<Storage*>(dx), static_cast<const Storage*>(grad),
                                  static_cast<const Storage*>(saved));
}

// The same of a 16-bit type by a kernel of float32, as many elements at a time as the L1 cache holds: derivatives of
// higher order take long to compile, and are seldom those of 16-bit types.
template <class Storage>
void backward_by(BackwardKernel of_float, const void* grad, const void* saved, void* dx, int64_t n,
                 ActivationParams params) {
  using P = Packet<Storage>;
  constexpr int64_t most = 1024;
  static_assert(most % P::width == 0);
  alignas(64) float grad_part[most], saved_part[most], dx_part[most];
  const auto* const from = static_cast<const Storage*>(grad);
  const auto* const at = static_cast<const Storage*>(saved);
  auto* const to = static_cast<Storage*>(dx);
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t count = std::min(most, n - begin);
    const auto for_each = [&](auto step) {
      for (int64_t i = 0; i < count; i += P::width) step(i, std::min(P::width, count - i));
    };
    for_each([&](int64_t i, int64_t size) {
      store_computed<Storage>(P::load(from + begin + i, size), grad_part + i, size);
      store_computed<Storage>(P::load(at + begin + i, size), saved_part + i, size);
    });
    of_float(grad_part, saved_part, dx_part, count, params, /*stream=*/false);
    for_each([&](int64_t i, int64_t size) { load_computed<Storage>(dx_part + i, size).store(to + begin + i, size); });
  }
}

template <class A, class Storage, int order, bool from_output>
BackwardKernel backward_of_order() {
  if constexpr (order > 1 && !std::is_same_v<Storage, Compute<Storage>>) {
    return [](const void* grad, const void* saved, void* dx, int64_t n, ActivationParams params, bool) {
      backward_by<Storage>(backward<A, float, order, from_output>, grad, saved, dx, n, params);
    };
  } else {
    return backward<A, Storage, order, from_output>;
  }
}

}  // namespace

void add_activation_backward_kernels(KernelTable& table) {
  for_each_kernel(table, []<class A, class Storage>(Kernels& entry) {
    static_assert(max_order == 3);
    entry.backward[0] = backward_of_order<A, Storage, 1, false>();
    entry.backward[1] = backward_of_order<A, Storage, 2, false>();
    entry.backward[2] = backward_of_order<A, Storage, 3, false>();
    if constexpr (A::has_gradient_from_output) {
      entry.backward_from_output[0] = backward_of_order<A, Storage, 1, true>();
      entry.backward_from_output[1] = backward_of_order<A, Storage, 2, true>();
      entry.backward_from_output[2] = backward_of_order<A, Storage, 3, true>();
    }
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
