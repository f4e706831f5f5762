// Makes it visible when an op runs through PyTorch's ops because the tensors' device has no kernel for it: the
// environment variable FASTOPS_FALLBACK is `warn` or `error`. Unset or empty, nothing happens.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/operator.h"

namespace fastops {

// Read once.
bool fallback_is_visible();

// Warns, or throws NotImplementedError.
void report_fallback(const char* op, const at::Tensor& tensor);

inline void note_fallback(const char* op, const at::Tensor& tensor) {
  if (fallback_is_visible()) report_fallback(op, tensor);
}

namespace detail {

template <class Op, auto kernel>
typename Op::Result noted(const Op& op) {
  note_fallback(Op::name, std::get<0>(op.values()));
  return run_kernel<kernel>(op);
}

}  // namespace detail

// Registers the kernel of an op for devices that have none of their own. Its first argument is a tensor.
template <class Op, auto kernel>
void implement_fallback(torch::Library& m) {
  implement<Op, detail::noted<Op, kernel>>(m);
}

}  // namespace fastops
