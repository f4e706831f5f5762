#include "ops/gated_act.h"

#include <ATen/ops/empty.h>

#include "backends/hip/launch.h"

namespace fastops::hip {
namespace {

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

  static void forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
    const c10::DeviceGuard guard(gate.device());
    if (const auto grid = find_grid({result}, {gate, up})) {
      check(gated_forward(call_for(spec, gate, *grid), grid->matrices[1], grid->matrices[2], grid->matrices[0]));
    } else {
      forward(spec, gate.contiguous(), up.contiguous(), result);
    }
  }

  static void backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                       const Tensor& grad_gate, const Tensor& grad_up) {
    const c10::DeviceGuard guard(gate.device());
    if (const auto grid = find_grid({grad_gate, grad_up}, {grad_output, gate, up})) {
      const auto& m = grid->matrices;
      check(gated_backward(call_for(spec, gate, *grid), m[2], m[3], m[4], m[0], m[1], /*y=*/{}));
    } else {
      backward(spec, grad_output.contiguous(), gate.contiguous(), up.contiguous(), grad_gate, grad_up);
    }
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) { impl_gated_acts<Device>(m); }

}  // namespace fastops::hip
