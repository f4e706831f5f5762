// What the files of mlp and mlp_jet have in common.
#pragma once

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "ops/autocast.h"
#include "ops/matrix.h"
#include "ops/mlp.h"

namespace fastops {

// An op that returns the output, and one that also returns what is saved, as functions of their checked arguments, with
// kernel(mlp, saved).
template <class Arguments, auto kernel>
Tensor output_by(const Arguments& mlp) {
  return kernel(mlp, nullptr);
}
template <class Arguments, auto kernel>
MlpForward::Result output_and_saved_by(const Arguments& mlp) {
  std::vector<Tensor> saved;
  Tensor output = kernel(mlp, &saved);
  return {std::move(output), std::move(saved)};
}

// ---- results without values ----

template <class Arguments>
Tensor output_meta(const Arguments& mlp, std::vector<Tensor>* saved) {
  const auto empty_output = [&](size_t layer) {
    return at::empty_symint(sizes_with(mlp.input, mlp.weights[layer].sym_size(-2)), mlp.input.options());
  };
  for (size_t i = 0; saved && i < mlp.layers(); ++i) {
    if (mlp.saves(i)) saved->push_back(empty_output(i));
  }
  return empty_output(mlp.layers() - 1);
}

template <class Arguments>
std::vector<Tensor> gradients_meta(const Arguments& mlp) {
  const auto empty = [&](c10::SymIntArrayRef sizes) { return at::empty_symint(sizes, mlp.input.options()); };
  std::vector<Tensor> grads;
  if (mlp.wants_input()) grads.push_back(empty(mlp.input.sym_sizes()));
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor& weight = mlp.weights[i];
    if (mlp.wants_weight(i)) grads.push_back(in_layout_of(weight, empty(weight.sym_sizes())));
    if (mlp.wants_bias(i)) grads.push_back(empty(weight.sym_sizes().slice(0, weight.dim() - 1)));
  }
  return grads;
}

// ---- autocast ----

template <class Op, c10::DeviceType device, c10::DispatchKey key>
Tensor lowered_by_autocast(Op op) {
  const AutocastScope scope(Op::name, device, key);
  const Tensor input = scope.lower("input", op.input.get());
  const std::vector<Tensor> weights = scope.lower("weights", op.weights);
  const OptionalTensors biases = scope.lower("biases", op.biases.get());
  op.input = input;
  op.weights = weights;
  op.biases = biases;
  return call_op(op);
}

}  // namespace fastops
