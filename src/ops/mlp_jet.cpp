#include "ops/mlp_jet.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>

#include "activations/derivative.h"
#include "ops/activation.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/mlp_family.h"
#include "torch_internal/functorch.h"

namespace fastops {
namespace {

// ---- the arguments ----

JetForm check_form(std::string_view op, const MlpArguments& mlp, int64_t directions,
                   c10::ArrayRef<double> trace_weights) {
  const Tensor& input = mlp.input;
  TORCH_CHECK_VALUE(directions >= 1, "fastops.", op, ": directions must be at least 1, but is ", directions);
  TORCH_CHECK_VALUE(directions >> 31 == 0, "fastops.", op, ": directions must be below 2^31, but is ", directions);
  TORCH_CHECK_VALUE(input.dim() >= (mlp.ensemble ? 3 : 2), "fastops.", op, ": input must have shape [",
                    mlp.ensemble ? "members, " : "", "..., rows of a point, in_features], but has ", input.dim(),
                    " dimensions");
  const c10::SymInt rows = input.sym_size(-2);
  const int64_t pairs = directions * (directions + 1) / 2;
  const int64_t seconds = rows == 1 + directions       ? 0
                          : rows == 2 + directions     ? 1
                          : rows == 1 + 2 * directions ? directions
                                                       : pairs;
  TORCH_CHECK_VALUE(rows == 1 + directions + seconds, "fastops.", op, ": input has ", rows,
                    " rows for each point, but with ", directions, " directions it must have ", 1 + directions, ", ",
                    2 + directions, ", ", 1 + 2 * directions, " or ", 1 + directions + pairs,
                    ": the value, the tangents, and no second derivatives, the sum of those of each, these, or those",
                    " of each pair");
  TORCH_CHECK_VALUE(trace_weights.empty() || (seconds == 1 && trace_weights.size() == size_t(directions)), "fastops.",
                    op, ": trace_weights has ", trace_weights.size(), " entries, but must be empty, or have one for",
                    " each of the ", directions, " directions of an input with ", 2 + directions,
                    " rows for each point");
  return {directions, seconds, trace_weights.vec()};
}

MlpJetArguments check_mlp_jet(std::string_view op, const MlpJetForward& jet) {
  const MlpForward mlp{jet.input,  jet.weights,      jet.biases, jet.activation, jet.output_activation,
                       jet.params, jet.output_params};
  MlpArguments arguments = check_mlp(op, mlp);
  JetForm form = check_form(op, arguments, jet.directions, jet.trace_weights);
  return {std::move(arguments), std::move(form)};
}

}  // namespace

MlpJetArguments MlpJetForward::checked() const { return check_mlp_jet("mlp_jet", *this); }

MlpJetBackwardArguments MlpJetBackward::checked() const {
  MlpJetArguments mlp = check_mlp_jet(
      name, {input, directions, weights, biases, activation, output_activation, params, output_params, trace_weights});
  const size_t expected = mlp.layers() - (mlp.saves(mlp.layers() - 1) ? 0 : 1);
  MlpGradientArguments gradients = check_gradients(name, mlp, grad_output, saved, expected, output_mask);
  return {std::move(mlp), std::move(gradients)};
}

namespace {

// ---- the formulas, in differentiable ops ----

// The rows of points.
struct Jet {
  Jet(const Tensor& rows, const JetForm& form)
      : value(rows.narrow(-2, 0, 1)), tangents(rows.narrow(-2, 1, form.directions)) {
    if (form.seconds > 0) seconds = rows.narrow(-2, 1 + form.directions, form.seconds);
  }
  Tensor value, tangents;
  Tensor seconds;  // undefined where there are none
};

// w_d t_d
Tensor weighted(const Tensor& tangents, const JetForm& form) {
  if (form.trace_weights.empty()) return tangents;
  std::vector<Tensor> rows;
  for (int64_t d = 0; d < form.directions; ++d) rows.push_back(tangents.narrow(-2, d, 1) * form.trace_weights[d]);
  return at::cat(rows, -2);
}

// The tangents from direction d on.
Tensor from(const Tensor& tangents, const JetForm& form, int64_t d) {
  return tangents.narrow(-2, d, form.directions - d);
}

// t_d^2, t_d t_e of each pair, or the sum of w_d t_d^2
Tensor squares(const Tensor& tangents, const JetForm& form) {
  if (form.pairs()) {
    std::vector<Tensor> rows;
    for (int64_t d = 0; d < form.directions; ++d) rows.push_back(tangents.narrow(-2, d, 1) * from(tangents, form, d));
    return at::cat(rows, -2);
  }
  const Tensor each = weighted(tangents, form) * tangents;
  return form.each() ? each : each.sum(-2, /*keepdim=*/true);
}

// The gradient of the tangents, given that of squares().
Tensor squares_backward(const Tensor& grad, const Tensor& tangents, const JetForm& form) {
  if (!form.pairs()) return weighted(tangents, form) * grad * 2;
  Tensor sum;
  std::vector<Tensor> rows;
  for (int64_t d = 0, first = 0; d < form.directions; first += form.directions - d, ++d) {
    const Tensor of_pairs = grad.narrow(-2, first, form.directions - d);
    rows.push_back((of_pairs * from(tangents, form, d)).sum(-2, /*keepdim=*/true));
    const Tensor others = at::constant_pad_nd(of_pairs * tangents.narrow(-2, d, 1), {0, 0, d, 0});
    sum = sum.defined() ? sum + others : others;
  }
  return sum + at::cat(rows, -2);
}

// The derivatives of an activation at the value, of orders 1 to `count`. Undefined are those that are zero everywhere:
// an infinite number times such a derivative is nothing.
struct Derivatives {
  Derivatives(const ActivationSpec& f, const Tensor& value, int count) {
    const Tensor ones = at::ones_like(value);
    const int last = visit(f.id, [](auto activation) { return last_order<decltype(activation)>(); });
    for (int order = 1; order <= std::min(count, last); ++order) {
      at[order] = activation_backward(ones, value, f, /*from_output=*/false, order);
    }
  }
  Tensor at[max_order + 1];
};

Tensor activate(const Tensor& z, const ActivationSpec& f, const JetForm& form) {
  if (f.id == Activation::identity) return z;
  const Jet jet(z, form);
  const Derivatives d(f, jet.value, form.seconds > 0 ? 2 : 1);
  std::vector<Tensor> rows = {call_activation(f, jet.value), jet.tangents * d.at[1]};
  if (form.seconds > 0) {
    const Tensor straight = jet.seconds * d.at[1];
    rows.push_back(d.at[2].defined() ? straight + squares(jet.tangents, form) * d.at[2] : straight);
  }
  return at::cat(rows, -2);
}

// The gradient of z, given that of the activation at it.
Tensor activate_backward(const Tensor& grad, const Tensor& z, const ActivationSpec& f, const JetForm& form) {
  if (f.id == Activation::identity) return grad;
  const Jet jet(z, form);
  const Jet by(grad, form);
  const Derivatives d(f, jet.value, form.seconds > 0 ? 3 : 2);
  if (!d.at[2].defined()) return grad * d.at[1];
  Tensor by_value = by.value * d.at[1] + (jet.tangents * by.tangents).sum(-2, /*keepdim=*/true) * d.at[2];
  Tensor by_tangents = by.tangents * d.at[1];
  if (form.seconds == 0) return at::cat({by_value, by_tangents}, -2);
  Tensor bend = jet.seconds * d.at[2];
  if (d.at[3].defined()) bend = bend + squares(jet.tangents, form) * d.at[3];
  const Tensor slope = by.seconds * bend;
  by_value = by_value + (form.seconds > 1 ? slope.sum(-2, /*keepdim=*/true) : slope);
  by_tangents = by_tangents + squares_backward(by.seconds * d.at[2], jet.tangents, form);
  return at::cat({by_value, by_tangents, by.seconds * d.at[1]}, -2);
}

// The first row of each point has the bias.
Tensor project_rows(const MlpJetArguments& mlp, size_t layer, const Tensor& h) {
  const Tensor z = linear(h, mlp.weights[layer], {}, mlp.ensemble);
  const Tensor& bias = mlp.biases[layer];
  if (!bias.defined()) return z;
  const c10::SymInt others = h.sym_size(-2) - 1;
  Tensor rows = at::constant_pad_nd_symint(bias.unsqueeze(-2), {0, 0, 0, others});
  // That of each network of an ensemble is for all of its points.
  while (rows.dim() > 2 && rows.dim() < z.dim()) rows = rows.unsqueeze(1);
  return z + rows;
}

}  // namespace

Tensor composite_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved) {
  Tensor h = mlp.input;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor z = project_rows(mlp, i, h);
    if (saved && mlp.saves(i)) saved->push_back(z);
    h = activate(z, mlp.activation_of(i), mlp.form);
  }
  return h;
}

std::vector<Tensor> composite_mlp_jet_backward(const MlpJetBackwardArguments& mlp, bool again) {
  const size_t layers = mlp.layers();
  std::vector<Tensor> z = mlp.saved.vec();
  if (again) {
    z.clear();
    composite_mlp_jet(mlp, &z);
  }
  const size_t lowest = mlp.lowest_wanted();
  std::vector<Tensor> grads(mlp.output_mask.size());
  Tensor grad = mlp.grad_output;
  for (size_t i = layers; i-- > 0 && lowest < 3 + 2 * i;) {
    const Tensor dz = i < z.size() ? activate_backward(grad, z[i], mlp.activation_of(i), mlp.form) : grad;
    if (mlp.wants_weight(i)) {
      const Tensor below = i == 0 ? mlp.input : activate(z[i - 1], mlp.activation_of(i - 1), mlp.form);
      grads[1 + 2 * i] =
          gradient_of_weight(mlp.weights[i], as_matrix(dz, mlp.ensemble), as_matrix(below, mlp.ensemble), product);
    }
    if (mlp.wants_bias(i)) grads[2 + 2 * i] = as_matrix(dz.narrow(-2, 0, 1), mlp.ensemble).sum(-2);
    if (lowest < 1 + 2 * i) grad = linear(dz, mlp.weights[i].mT(), {}, mlp.ensemble);
  }
  if (mlp.wants_input()) grads[0] = grad;
  grads.erase(std::remove_if(grads.begin(), grads.end(), [](const Tensor& g) { return !g.defined(); }), grads.end());
  return grads;
}

namespace {

// ---- the ops ----

std::vector<Tensor> jet_backward_from_saved(const MlpJetBackwardArguments& mlp) {
  return composite_mlp_jet_backward(mlp, /*again=*/false);
}
std::vector<Tensor> jet_backward_again(const MlpJetBackwardArguments& mlp) {
  return composite_mlp_jet_backward(mlp, /*again=*/true);
}

int64_t (*&most_by_jet())() {
  static int64_t (*most)() = [] { return int64_t{64 * 1024}; };  // measured
  return most;
}

}  // namespace

bool are_few_for_jet(at::TensorList weights) {
  int64_t elements = 0;
  for (const Tensor& weight : weights) elements += weight.numel();
  return elements <= most_weights_by_jet();
}
int64_t most_weights_by_jet() { return most_by_jet()(); }
RegisterMostWeightsByJet::RegisterMostWeightsByJet(int64_t (*most)()) { most_by_jet() = most; }

std::vector<Tensor> parts_of_jets(const Tensor& jets, int64_t directions, int64_t seconds) {
  const std::array<int64_t, 3> rows = {1, directions, seconds};
  // The other one has no rule for vmap.
  return in_transform() ? at::split_with_sizes(jets, rows, -2) : at::unsafe_split_with_sizes(jets, rows, -2);
}

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  const std::string arguments =
      "(Tensor input, int directions, Tensor[] weights, Tensor?[] biases, str activation, "
      "str output_activation='identity', float[] params=[], float[] output_params=[], float[] trace_weights=[])";
  define(m, "mlp_jet" + arguments + " -> Tensor");
  define(m, "mlp_jet_forward" + arguments + " -> (Tensor output, Tensor[] saved)");
  define(m,
         "mlp_jet_backward(Tensor grad_output, Tensor input, int directions, Tensor[] weights, Tensor?[] biases, "
         "Tensor[] saved, str activation, str output_activation, float[] params, float[] output_params, "
         "float[] trace_weights, bool[] output_mask) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  implement<MlpJet, output_by<MlpJetArguments, output_meta<MlpJetArguments>>>(m);
  implement<MlpJetForward, output_and_saved_by<MlpJetArguments, output_meta<MlpJetArguments>>>(m);
  implement<MlpJetBackward, gradients_meta<MlpJetBackwardArguments>>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<MlpJet, output_by<MlpJetArguments, composite_mlp_jet>>(m);
  implement_fallback<MlpJetForward, output_and_saved_by<MlpJetArguments, composite_mlp_jet>>(m);
  implement_fallback<MlpJetBackward, jet_backward_from_saved>(m);
}

TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  implement<MlpJet, output_by<MlpJetArguments, composite_mlp_jet>>(m);
  implement<MlpJetForward, output_and_saved_by<MlpJetArguments, composite_mlp_jet>>(m);
  implement<MlpJetBackward, jet_backward_again>(m);
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                               \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                             \
    implement<MlpJet, lowered_by_autocast<MlpJet, c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m);              \
    m.impl("mlp_jet_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("mlp_jet_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
