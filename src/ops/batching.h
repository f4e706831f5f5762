// What the vmap rules of the ops have in common.
//
// Most ops compute each row by itself, so that their rule is the op itself, called once with the batch dimension as one
// more dimension of rows. Only a batch of weights or biases, an ensemble, is something else: mlp.h, gated_mlp.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "ops/autocast.h"
#include "ops/operator.h"
#include "torch_internal/functorch.h"

namespace fastops {

// An op that computes each row of these arguments by itself, as one call of it: batched_by_row(op, &Op::self).
template <class Op>
typename Op::Result batched_by_row(Op op, auto... arguments) {
  const Vmap vmap((op.*arguments).get()...);
  const std::array<at::Tensor, sizeof...(arguments)> expanded = {vmap.expand((op.*arguments).get())...};
  size_t next = 0;
  ((op.*arguments = expanded[next++]), ...);
  return vmap.wrap(call_op(op));
}

// f(tensor) of a function that computes each row by itself.
template <class F>
at::Tensor batched_by_row(F f, const at::Tensor& tensor) {
  const Vmap vmap(tensor);
  return vmap.wrap(f(vmap.expand(tensor)));
}

// A vmap rule, which comes before that of autocast: where this is on, the op goes there first, and then comes back.
template <class Op, auto rule>
typename Op::Result after_autocast(const Op& op) {
  const at::Tensor& first = std::get<0>(op.values());
  if (!is_autocast_on(first)) return run_kernel<rule>(op);
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(first.device().type());
  return redispatch(c10::DispatchKeySet(key), op);
}

}  // namespace fastops
