#include "ops/gated_act.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backends/cpu/launch.h"
#include "ops/checks.h"

namespace fastops::cpu {
namespace {

// A 0-d tensor is a row of one element.
Tensor at_least_1d(const Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

void forward_into(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
  const auto kernel = kernels_for(spec, gate).gated_forward;
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  const RowView result_rows(at_least_1d(result));
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(gate_rows.from(begin), up_rows.from(begin), result_rows.from_mutable(begin), end - begin,
           gate_rows.columns(), spec.params());
  });
}

// Undefined results are not computed.
void backward_into(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                   const Tensor& grad_gate, const Tensor& grad_up) {
  const auto kernel = kernels_for(spec, gate).gated_backward;
  const RowView grad_rows(at_least_1d(grad_output));
  const RowView gate_rows(at_least_1d(gate));
  const RowView up_rows(at_least_1d(up));
  const auto result_rows = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<RowView>(at_least_1d(tensor)) : std::nullopt;
  };
  const auto grad_gate_rows = result_rows(grad_gate);
  const auto grad_up_rows = result_rows(grad_up);
  const Rows none{nullptr, 0};
  share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
    kernel(grad_rows.from(begin), gate_rows.from(begin), up_rows.from(begin),
           grad_gate_rows ? grad_gate_rows->from_mutable(begin) : none,
           grad_up_rows ? grad_up_rows->from_mutable(begin) : none, end - begin, gate_rows.columns(), spec.params());
  });
}

Tensor act_mul(const Tensor& gate, const Tensor& up, std::string_view activation, c10::ArrayRef<double> params) {
  const auto spec = check_act_mul(gate, up, activation, params);
  Tensor result = in_huge_pages(at::empty(gate.sizes(), gate.options()));
  forward_into(spec, gate, up, result);
  return result;
}

std::vector<Tensor> act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                     std::string_view activation, c10::ArrayRef<double> params,
                                     std::array<bool, 2> output_mask) {
  const auto spec = check_act_mul_backward(grad_output, gate, up, activation, params);
  std::vector<Tensor> grads;
  std::array<Tensor, 2> result;
  for (size_t i = 0; i < 2; ++i) {
    if (!output_mask[i]) continue;
    result[i] = in_huge_pages(at::empty(gate.sizes(), gate.options()));
    grads.push_back(result[i]);
  }
  backward_into(spec, grad_output, gate, up, result[0], result[1]);
  return grads;
}

Tensor gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = check_gated_act(self, activation, params);
  const auto [gate, up] = split_gate(self, gate_last);
  Tensor result = in_huge_pages(at::empty(gate.sizes(), gate.options()));
  forward_into(spec, gate, up, result);
  return result;
}

Tensor gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                          c10::ArrayRef<double> params, bool gate_last) {
  const auto spec = check_gated_act_backward(grad_output, self, activation, params);
  const auto [gate, up] = split_gate(self, gate_last);
  Tensor result = in_huge_pages(at::empty(self.sizes(), self.options()));
  const auto [grad_gate, grad_up] = split_gate(result, gate_last);
  backward_into(spec, grad_output, gate, up, grad_gate, grad_up);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) {
  m.impl("act_mul", TORCH_FN(act_mul));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward));
  m.impl("gated_act", TORCH_FN(gated_act));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward));
}

}  // namespace fastops::cpu
