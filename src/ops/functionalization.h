// Functionalization of an op that writes into one of its arguments, for torch.compile and torch.func.functionalize.
#pragma once

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/Tensor.h>

namespace fastops {

// Replaces `target`, a functional tensor, by functional_form(self).
template <class F>
at::Tensor& functionalized(F functional_form, const at::Tensor& self, at::Tensor& target) {
  namespace fn = at::functionalization::impl;
  const auto inner = [](const at::Tensor& tensor) {
    if (!fn::isFunctionalTensor(tensor)) return tensor;
    fn::sync(tensor);
    return fn::from_functional_tensor(tensor);
  };
  const at::Tensor value = inner(self);
  at::Tensor result;
  {
    at::AutoDispatchSkipFunctionalize below;
    result = functional_form(value);
    if (!fn::isFunctionalTensor(target)) {
      TORCH_CHECK(!fn::isFunctionalTensor(self),
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
