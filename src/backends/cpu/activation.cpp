#include "backends/cpu/activation.h"

#include <ATen/ops/empty_like.h>

#include "backends/cpu/launch.h"
#include "ops/activation.h"

namespace fastops::cpu {
namespace {

// y = f(x) for tensors of the same layout.
void run_forward(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  const auto kernel = kernels_for(spec, x).forward;
  const int64_t size = x.element_size();
  char* y_data = byte_data(y);  // first: where x is y and a lazy clone, its data moves
  const char* x_data = const_byte_data(x);
  const bool stream = worth_streaming(y) && x_data != y_data;
  share_elements(x.numel(), [&](int64_t begin, int64_t end) {
    kernel(x_data + begin * size, y_data + begin * size, end - begin, spec.params(), stream);
  });
}

// y = f(x) for any strides: where the layouts differ, x is brought into y's and changed there.
void forward_into(const ActivationSpec& spec, const Tensor& x, const Tensor& y) {
  if (same_layout(x, y)) {
    run_forward(spec, x, y);
  } else if (y.is_non_overlapping_and_dense()) {
    y.copy_(x);
    run_forward(spec, y, y);
  } else {
    const Tensor dense = empty_result_like(x);
    forward_into(spec, x, dense);
    y.copy_(dense);
  }
}

}  // namespace

Tensor plain_activation(const ActivationSpec& spec, const Tensor& self) {
  Tensor result = empty_result_like(self);
  forward_into(spec, self, result);
  return result;
}

Tensor& plain_activation_out(const ActivationSpec& spec, const Tensor& self, Tensor& out) {
  forward_into(spec, self, out);
  return out;
}

namespace {

Tensor backward(const Tensor& grad_output, const Tensor& saved, std::string_view activation,
                c10::ArrayRef<double> params, bool from_output, int64_t order) {
  const auto spec = check_activation_backward(grad_output, saved, activation, params, from_output, order);
  const Kernels& table = kernels_for(spec, saved);
  const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
  Tensor result = empty_result_like(saved);
  const auto in_layout = [&](const Tensor& tensor) {
    return same_layout(tensor, result) ? tensor : at::empty_like(result).copy_(tensor);
  };
  const Tensor grad = in_layout(grad_output);
  const Tensor at_point = in_layout(saved);
  const int64_t size = result.element_size();
  const char* grad_data = const_byte_data(grad);
  const char* saved_data = const_byte_data(at_point);
  char* result_data = byte_data(result);
  const bool stream = worth_streaming(result);
  share_elements(result.numel(), [&](int64_t begin, int64_t end) {
    kernel(grad_data + begin * size, saved_data + begin * size, result_data + begin * size, end - begin, spec.params(),
           stream);
  });
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) {
  impl_activations<DeviceLayer<plain_activation, plain_activation_out>>(m);
  m.impl("activation_backward", TORCH_FN(backward));
}

}  // namespace fastops::cpu
