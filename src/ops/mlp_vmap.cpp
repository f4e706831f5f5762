// The vmap rules of mlp, mlp_jet and gated_mlp. A batch of inputs is one call of the op with more rows. A batch of
// weights or biases is an ensemble, whose products are batched ones; so are those of the parameters' gradients of each
// sample.
#include <torch/library.h>

#include "ops/batching.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"

namespace fastops {
namespace {

bool has_batched_parameters(const Vmap& vmap, const MlpArguments& mlp) {
  return vmap.is_batched(mlp.weights) || vmap.is_batched(mlp.biases);
}

// The same mlp as an ensemble. It refers to its weights, which `weights` holds.
MlpArguments as_ensemble(const Vmap& vmap, const MlpArguments& mlp, std::vector<Tensor>& weights) {
  weights = vmap.unwrap(mlp.weights);
  return {vmap.expand(mlp.input), weights, vmap.unwrap(mlp.biases), mlp.activation, mlp.output_activation, true};
}

// One call of the op where the parameters are shared; else of_ensemble(the op's arguments, the same as an ensemble).
template <class Op, class F>
typename Op::Result batched(Op op, F of_ensemble) {
  const auto mlp = op.checked();
  const Vmap vmap(mlp.input, mlp.weights, mlp.biases);
  if (!has_batched_parameters(vmap, mlp)) {
    const Tensor input = vmap.expand(mlp.input);
    op.input = input;
    return vmap.wrap(call_op(op));
  }
  std::vector<Tensor> held;
  return vmap.wrap(of_ensemble(mlp, as_ensemble(vmap, mlp, held)));
}

MlpForward::Result mlp_forward_batched(MlpForward op) {
  return batched(op, [](const MlpArguments&, const MlpArguments& ensemble) {
    std::vector<Tensor> saved;
    Tensor output = composite_mlp(ensemble, &saved);
    return MlpForward::Result(std::move(output), std::move(saved));
  });
}

Tensor mlp_batched(Mlp op) {
  return batched(op,
                 [](const MlpArguments&, const MlpArguments& ensemble) { return composite_mlp(ensemble, nullptr); });
}

std::vector<Tensor> mlp_backward_batched(MlpBackward op) {
  const MlpBackwardArguments mlp = op.checked();
  const Vmap vmap(mlp.grad_output, mlp.input, mlp.weights, mlp.biases, mlp.output, mlp.saved);
  const Tensor grad_output = vmap.expand(mlp.grad_output);
  const Tensor output = vmap.expand(mlp.output);
  const std::vector<Tensor> saved = vmap.expand(mlp.saved);
  const bool wants_parameters =
      std::find(mlp.output_mask.begin() + 1, mlp.output_mask.end(), true) != mlp.output_mask.end();
  if (!wants_parameters && !has_batched_parameters(vmap, mlp)) {
    const Tensor input = vmap.expand(mlp.input);
    const auto expanded_output = output.defined() ? std::optional(output) : std::nullopt;
    op.grad_output = grad_output;
    op.input = input;
    op.output = expanded_output;
    op.saved = saved;
    return vmap.wrap(call_op(op));
  }
  std::vector<Tensor> held;
  const MlpBackwardArguments ensemble{as_ensemble(vmap, mlp, held), grad_output, output, saved, mlp.output_mask};
  if (may_be_differentiated(grad_output) || may_be_differentiated(ensemble.input) ||
      may_be_differentiated(ensemble.weights) || may_be_differentiated(ensemble.biases)) {
    return vmap.wrap(composite_mlp_backward(ensemble));
  }
  return vmap.wrap(layered_mlp_backward(ensemble));
}

MlpJetForward::Result mlp_jet_forward_batched(MlpJetForward op) {
  return batched(op, [](const MlpJetArguments& mlp, const MlpArguments& ensemble) {
    std::vector<Tensor> saved;
    Tensor output = composite_mlp_jet({ensemble, mlp.form}, &saved);
    return MlpJetForward::Result(std::move(output), std::move(saved));
  });
}

Tensor mlp_jet_batched(MlpJet op) {
  return batched(op, [](const MlpJetArguments& mlp, const MlpArguments& ensemble) {
    return composite_mlp_jet({ensemble, mlp.form}, nullptr);
  });
}

std::vector<Tensor> mlp_jet_backward_batched(MlpJetBackward op) {
  const MlpJetBackwardArguments mlp = op.checked();
  const Vmap vmap(mlp.grad_output, mlp.input, mlp.weights, mlp.biases, mlp.saved);
  const Tensor grad_output = vmap.expand(mlp.grad_output);
  const std::vector<Tensor> saved = vmap.expand(mlp.saved);
  const bool wants_parameters =
      std::find(mlp.output_mask.begin() + 1, mlp.output_mask.end(), true) != mlp.output_mask.end();
  if (!wants_parameters && !has_batched_parameters(vmap, mlp)) {
    const Tensor input = vmap.expand(mlp.input);
    op.grad_output = grad_output;
    op.input = input;
    op.saved = saved;
    return vmap.wrap(call_op(op));
  }
  std::vector<Tensor> held;
  const MlpJetBackwardArguments ensemble{{as_ensemble(vmap, mlp, held), mlp.form}, grad_output, saved, mlp.output_mask};
  const bool again = may_be_differentiated(grad_output) || may_be_differentiated(ensemble.input) ||
                     may_be_differentiated(ensemble.weights) || may_be_differentiated(ensemble.biases);
  return vmap.wrap(composite_mlp_jet_backward(ensemble, again));
}

// Of a gated_mlp: its weights and biases; the same as an ensemble.
std::vector<Tensor> parameters_of(const GatedMlpArguments& mlp) {
  return {mlp.gate_weight, mlp.up_weight, mlp.down_weight, mlp.gate_bias, mlp.up_bias, mlp.down_bias};
}

GatedMlpArguments as_ensemble(const Vmap& vmap, const GatedMlpArguments& mlp) {
  const std::vector<Tensor> p = vmap.unwrap(parameters_of(mlp));
  return {vmap.expand(mlp.input), p[0], p[1], p[2], p[3], p[4], p[5], mlp.activation, true};
}

GatedMlpForward::Result gated_mlp_forward_batched(GatedMlpForward op) {
  const GatedMlpArguments mlp = op.checked();
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(mlp.input, parameters);
  if (vmap.is_batched(parameters)) return vmap.wrap(composite_gated_mlp(as_ensemble(vmap, mlp)));
  const Tensor input = vmap.expand(mlp.input);
  op.input = input;
  return vmap.wrap(call_op(op));
}

Tensor gated_mlp_batched(GatedMlp op) {
  const GatedMlpArguments mlp = op.checked();
  const std::vector<Tensor> parameters = parameters_of(mlp);
  const Vmap vmap(mlp.input, parameters);
  if (vmap.is_batched(parameters)) return vmap.wrap(std::get<0>(composite_gated_mlp(as_ensemble(vmap, mlp))));
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
  if (!wants_parameters && !vmap.is_batched(parameters)) {
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
  implement<Mlp, mlp_batched>(m);
  implement<MlpForward, mlp_forward_batched>(m);
  implement<MlpBackward, mlp_backward_batched>(m);
  implement<MlpJet, mlp_jet_batched>(m);
  implement<MlpJetForward, mlp_jet_forward_batched>(m);
  implement<MlpJetBackward, mlp_jet_backward_batched>(m);
  implement<GatedMlp, gated_mlp_batched>(m);
  implement<GatedMlpForward, gated_mlp_forward_batched>(m);
  implement<GatedMlpBackward, gated_mlp_backward_batched>(m);
}

}  // namespace fastops
