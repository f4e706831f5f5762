// The vmap rules of mlp, mlp_jet and gated_mlp. A batch of inputs is one call of the op with more rows. A batch of
// weights or biases is an ensemble, and so are the parameters' gradients of each sample: for mlp and mlp_jet one call
// of the op, too; the products of gated_mlp are batched ones.
#include <torch/library.h>

#include "ops/batching.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"

namespace fastops {
namespace {

// A batch of calls of a network as one call of it, with more rows. Or, where each call has its own parameters, or
// gradients of them, with a member of an ensemble for each of them.
class OneCall {
 public:
  OneCall(const Vmap& vmap, const MlpArguments& mlp, bool wants_parameters)
      : vmap_(vmap),
        of_rows_(!wants_parameters && !vmap.is_batched(mlp.weights) && !vmap.is_batched(mlp.biases)),
        was_ensemble_(mlp.ensemble && vmap.is_batched()),
        weights_(parameters(mlp.weights)) {
    for (const Tensor& bias : parameters(mlp.biases)) {
      biases_.push_back(bias.defined() ? std::optional(bias) : std::nullopt);
    }
    if (was_ensemble_) sizes_ = {vmap.size(), mlp.weights[0].sym_size(0)};
  }

  at::TensorList weights() const { return weights_; }
  const OptionalTensors& biases() const { return biases_; }

  // The input, or another tensor of rows.
  Tensor rows(const Tensor& tensor) const {
    const Tensor all = vmap_.expand(tensor);
    if (!was_ensemble_ || !all.defined()) return all;
    return of_rows_ ? all.transpose(0, 1) : all.flatten(0, 1);
  }
  std::vector<Tensor> rows(at::TensorList tensors) const {
    return map(tensors, [&](const Tensor& t) { return rows(t); });
  }

  Tensor result(const Tensor& tensor) const {
    if (!was_ensemble_) return vmap_.wrap(tensor);
    return vmap_.wrap(of_rows_ ? tensor.transpose(0, 1) : tensor.unflatten_symint(0, sizes_));
  }
  std::vector<Tensor> result(const std::vector<Tensor>& tensors) const {
    return map(tensors, [&](const Tensor& t) { return result(t); });
  }
  MlpForward::Result result(const MlpForward::Result& results) const {
    return {result(std::get<0>(results)), result(std::get<1>(results))};
  }

 private:
  template <class F>
  static std::vector<Tensor> map(at::TensorList tensors, F f) {
    std::vector<Tensor> results;
    results.reserve(tensors.size());
    for (const Tensor& tensor : tensors) results.push_back(f(tensor));
    return results;
  }
  std::vector<Tensor> parameters(at::TensorList tensors) const {
    return map(tensors, [&](const Tensor& tensor) {
      if (of_rows_) return vmap_.unwrap(tensor);
      const Tensor each = vmap_.expand(tensor);
      return was_ensemble_ && each.defined() ? each.flatten(0, 1) : each;
    });
  }

  const Vmap& vmap_;
  bool of_rows_;
  bool was_ensemble_;               // and becomes a batch of them
  std::vector<c10::SymInt> sizes_;  // of the batch, and of the ensemble
  std::vector<Tensor> weights_;
  OptionalTensors biases_;
};

template <class Op>
typename Op::Result forward_batched(Op op) {
  const auto mlp = op.checked();
  const Vmap vmap(mlp.input, mlp.weights, mlp.biases);
  const OneCall one(vmap, mlp, /*wants_parameters=*/false);
  const Tensor input = one.rows(mlp.input);
  op.input = input;
  op.weights = one.weights();
  op.biases = one.biases();
  return one.result(call_op(op));
}

Tensor output_of(const MlpBackwardArguments& mlp) { return mlp.output; }
Tensor output_of(const MlpJetBackwardArguments&) { return {}; }

template <class Op>
std::vector<Tensor> backward_batched(Op op) {
  const auto mlp = op.checked();
  const Tensor output = output_of(mlp);
  const Vmap vmap(mlp.grad_output, mlp.input, mlp.weights, mlp.biases, output, mlp.saved);
  const OneCall one(vmap, mlp, mlp.wants_parameters());
  const Tensor grad_output = one.rows(mlp.grad_output);
  const Tensor input = one.rows(mlp.input);
  const std::vector<Tensor> saved = one.rows(mlp.saved);
  std::optional<Tensor> rows_of_output;
  if constexpr (requires { op.output; }) {
    if (output.defined()) rows_of_output = one.rows(output);
    op.output = rows_of_output;
  }
  op.grad_output = grad_output;
  op.input = input;
  op.saved = saved;
  op.weights = one.weights();
  op.biases = one.biases();
  return one.result(call_op(op));
}

// Of a gated_mlp: its weights and biases; the same as an ensemble.
std::vector<Tensor> parameters_of(const GatedMlpArguments& mlp) {
  return {mlp.gate_weight, mlp.up_weight, mlp.down_weight, mlp.gate_bias, mlp.up_bias, mlp.down_bias};
}

GatedMlpArguments as_ensemble(const Vmap& vmap, const GatedMlpArguments& mlp) {
  const std::vector<Tensor> p = vmap.unwrap(parameters_of(mlp));
  return {vmap.expand(mlp.input), p[0], p[1], p[2], p[3], p[4], p[5], mlp.activation, true};
}

// gated_mlp_forward, or gated_mlp, which gives the first of its results.
template <class Op>
typename Op::Result gated_mlp_batched(Op op) {
  const GatedMlpArguments mlp = op.checked();
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(mlp.input, parameters);
  if (vmap.is_batched(parameters)) {
    auto results = composite_gated_mlp(as_ensemble(vmap, mlp));
    if constexpr (std::is_same_v<typename Op::Result, Tensor>) {
      return vmap.wrap(std::get<0>(results));
    } else {
      return vmap.wrap(results);
    }
  }
  const Tensor input = vmap.expand(mlp.input);
  op.input = input;
  return vmap.wrap(call_op(op));
}

std::vector<Tensor> gated_mlp_backward_batched(GatedMlpBackward op) {
  const GatedMlpBackwardArguments mlp = op.checked();
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(mlp.grad_output, mlp.input, parameters, mlp.gate, mlp.up);
  const Tensor grad_output = vmap.expand(mlp.grad_output);
  const Tensor gate = vmap.expand(mlp.gate);
  const Tensor up = vmap.expand(mlp.up);
  const bool wants_parameters =
      std::find(mlp.output_mask.begin() + 1, mlp.output_mask.end(), true) != mlp.output_mask.end();
  if (!vmap.is_batched() || (!wants_parameters && !vmap.is_batched(parameters))) {
    const Tensor input = vmap.expand(mlp.input);
    op.grad_output = grad_output;
    op.input = input;
    op.gate = gate;
    op.up = up;
    return vmap.wrap(call_op(op));
  }
  const GatedMlpBackwardArguments ensemble{as_ensemble(vmap, mlp), grad_output, gate, up, mlp.output_mask};
  if (may_be_differentiated(grad_output) || may_be_differentiated(ensemble.input) ||
      may_be_differentiated(parameters_of(ensemble))) {
    return vmap.wrap(composite_gated_mlp_backward(ensemble));
  }
  return vmap.wrap(layered_gated_mlp_backward(ensemble));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  implement<Mlp, after_autocast<Mlp, forward_batched<Mlp>>>(m);
  implement<MlpForward, forward_batched<MlpForward>>(m);
  implement<MlpBackward, backward_batched<MlpBackward>>(m);
  implement<MlpJet, after_autocast<MlpJet, forward_batched<MlpJet>>>(m);
  implement<MlpJetForward, forward_batched<MlpJetForward>>(m);
  implement<MlpJetBackward, backward_batched<MlpJetBackward>>(m);
  implement<GatedMlp, after_autocast<GatedMlp, gated_mlp_batched<GatedMlp>>>(m);
  implement<GatedMlpForward, gated_mlp_batched<GatedMlpForward>>(m);
  implement<GatedMlpBackward, gated_mlp_backward_batched>(m);
}

}  // namespace fastops
