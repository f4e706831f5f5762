#include "ops/gated_act.h"

#include <ATen/ops/empty.h>

#include "backends/cpu/launch.h"

namespace fastops::cpu {
namespace {

// A 0-d tensor is a row of one element.
Tensor at_least_1d(const Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

struct Device {
  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) {
    return in_huge_pages(at::empty(sizes, like.options()));
  }

  static void forward(const ActivationSpec& spec, const Tensor& gate, const Tensor& up, const Tensor& result) {
    const auto kernel = kernels_for(spec, gate).gated_forward;
    const RowView gate_rows(at_least_1d(gate));
    const RowView up_rows(at_least_1d(up));
    const RowView result_rows(at_least_1d(result));
    share_rows(gate_rows.rows(), gate_rows.columns(), [&](int64_t begin, int64_t end) {
      kernel(gate_rows.from(begin), up_rows.from(begin), result_rows.from_mutable(begin), end - begin,
             gate_rows.columns(), spec.params());
    });
  }

  static void backward(const ActivationSpec& spec, const Tensor& grad_output, const Tensor& gate, const Tensor& up,
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
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) { impl_gated_acts<Device>(m); }

}  // namespace fastops::cpu
