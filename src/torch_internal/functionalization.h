// Functionalization of an op that writes into one of its arguments, for torch.compile and torch.func.functionalize.
//
// Private, in all torch versions from 2.11 to 2.15: at::functionalization::impl, to look into a functional tensor and
// to replace what it stands for. Without it, in-place and out= forms could not be compiled.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fastops {

// What a functional tensor stands for, with all that was written to its base; any other tensor itself.
inline at::Tensor functional_value(const at::Tensor& tensor) {
  namespace fn = at::functionalization::impl;
  if (!fn::isFunctionalTensor(tensor)) return tensor;
  fn::sync(tensor);
  return fn::from_functional_tensor(tensor);
}
inline std::optional<at::Tensor> functional_value(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(functional_value(*tensor)) : std::nullopt;
}

// Replaces `target`, a functional tensor, by functional_form(inputs...). Every tensor that it reads is among the
// inputs.
template <class F, class... Inputs>
at::Tensor& functionalized(F functional_form, at::Tensor& target, const Inputs&... inputs) {
  namespace fn = at::functionalization::impl;
  const auto values = std::tuple(functional_value(inputs)...);
  at::Tensor result;
  {
    at::AutoDispatchSkipFunctionalize below;
    result = std::apply(functional_form, values);
    if (!fn::isFunctionalTensor(target)) {
      TORCH_CHECK(!(fn::isFunctionalTensor(inputs) || ...),
                  "fastops: a functional tensor cannot be written into one that is not functional");
      return target.copy_(result);
    }
  }
  fn::replace_(target, result);
  fn::commit_update(target);
  fn::sync(target);
  return target;
}

}  // namespace fastops
