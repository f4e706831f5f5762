#include "backends/cpu/gated_act.h"

#include "backends/cpu/bias_act.h"
#include "backends/cpu/launch.h"
#include "ops/gated_act.h"

namespace fastops::cpu {
namespace {

// A 0-d tensor is a row of one element.
Tensor at_least_1d(const Tensor& tensor) { return tensor.defined() && tensor.dim() == 0 ? tensor.view({1}) : tensor; }

// The gradients of gate and up, and f(gate) * up, into those tensors that are defined.
void backward_into(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const GatedGradients& results) {
  const auto kernel = kernels_for(spec, gate).gated_backward;
  const ResultRows grad_gate(at_least_1d(results.gate));
  const ResultRows grad_up(at_least_1d(results.up));
  const ResultRows product(at_least_1d(results.product));
  const RowView grad_rows(at_least_1d(grad_output));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(grad_rows.from(begin), gate_rows.from(begin), up_rows.from(begin), grad_gate.from(begin),
           grad_up.from(begin), product.from(begin), end - begin, gate_rows.columns(), spec.params());
  });
}

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return empty_result(sizes, like); }

  static void forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
    act_mul_into(spec, gate, up, result);
  }

  static void backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                       const Tensor& grad_gate, const Tensor& grad_up) {
    backward_into(spec, grad_output, gate, up, {grad_gate, grad_up, {}});
  }
};

GatedGradients backward_step(const Tensor& grad, const Tensor& gate, const Tensor& up, const ActivationSpec& f,
                             std::array<bool, 3> wanted) {
  const auto empty = [&] { return Device::empty(gate.sizes(), gate); };
  GatedGradients results;
  if (wanted[0]) results.gate = grad.is_contiguous() ? grad : empty();
  if (wanted[1]) results.up = wanted[0] || !grad.is_contiguous() ? empty() : grad;
  if (wanted[2]) results.product = empty();
  backward_into(f, grad, gate, up, results);
  return results;
}

}  // namespace

void act_mul_into(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  const auto kernel = kernels_for(spec, gate).gated_forward;
  const ResultRows result_rows(at_least_1d(result));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(gate_rows.from(begin), up_rows.from(begin), result_rows.from(begin), end - begin, gate_rows.columns(),
           spec.params());
  });
}

const GatedSteps gated_steps{backward_step, matrix_product};

TORCH_LIBRARY_IMPL(fastops, CPU, m) { impl_gated_acts<Device>(m); }

}  // namespace fastops::cpu
