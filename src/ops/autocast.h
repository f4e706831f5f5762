// The autocast rule of the ops: those with matrix products run in the context's dtype, the others in their input's.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <vector>

#include "ops/checks.h"

namespace fastops {

// X(device type, its autocast key)
#define FASTOPS_AUTOCAST_DEVICES(X) \
  X(CPU, AutocastCPU)               \
  X(CUDA, Autocast)                 \
  X(MPS, AutocastMPS)               \
  X(XPU, AutocastXPU)               \
  X(PrivateUse1, AutocastPrivateUse1)

// Whether autocast is on for a tensor's device; of some, such as meta, PyTorch must not be asked.
inline bool is_autocast_on(const at::Tensor& tensor) {
  const c10::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

// Keeps the calls in its scope from being cast again, and casts arguments. float64 and integer tensors stay.
class AutocastScope {
 public:
  AutocastScope(std::string_view op, c10::DeviceType device, c10::DispatchKey key)
      : op_(op), device_(device), dtype_(at::autocast::get_autocast_dtype(device)), below_(key) {}

  at::Tensor lower(Argument argument, const at::Tensor& tensor) const {
    check_tensor(op_, argument, tensor);
    return at::autocast::cached_cast(dtype_, tensor, device_);
  }
  std::optional<at::Tensor> lower(Argument argument, const std::optional<at::Tensor>& tensor) const {
    return tensor && tensor->defined() ? std::optional(lower(argument, *tensor)) : std::nullopt;
  }
  std::vector<at::Tensor> lower(Argument list, at::TensorList tensors) const {
    std::vector<at::Tensor> cast;
    cast.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) cast.push_back(lower({list.name, i}, tensors[i]));
    return cast;
  }
  c10::List<std::optional<at::Tensor>> lower(Argument list, const c10::List<std::optional<at::Tensor>>& tensors) const {
    c10::List<std::optional<at::Tensor>> cast;
    cast.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) cast.push_back(lower({list.name, i}, tensors.get(i)));
    return cast;
  }

 private:
  std::string_view op_;
  c10::DeviceType device_;
  at::ScalarType dtype_;
  c10::impl::ExcludeDispatchKeyGuard below_;
};

// Of ops that have products and yet run in their input's dtype: what they call is not cast.
template <c10::DispatchKey key>
void below_autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  op.callBoxed(stack);
}

}  // namespace fastops
