#include "ops/gated_act.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/activation.h"
#include "ops/autocast.h"
#include "ops/batching.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"

namespace fastops {

const c10::TypedOperatorHandle<ActMul>& act_mul_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::act_mul", "").typed<ActMul>();
  return op;
}

const c10::TypedOperatorHandle<ActMulBackward>& act_mul_backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::act_mul_backward", "").typed<ActMulBackward>();
  return op;
}

const c10::TypedOperatorHandle<GatedAct>& gated_act_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::gated_act", "").typed<GatedAct>();
  return op;
}

const c10::TypedOperatorHandle<GatedActBackward>& gated_act_backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::gated_act_backward", "").typed<GatedActBackward>();
  return op;
}

ActivationSpec check_act_mul(const Tensor& gate, const Tensor& up, std::string_view activation,
                             c10::ArrayRef<double> params) {
  constexpr auto op = "act_mul";
  const ActivationSpec spec = activation_spec(op, activation, params);
  check_tensor(op, "gate", gate);
  check_same_shape(op, "up", up, "gate", gate);
  return spec;
}

ActivationSpec check_act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                      std::string_view activation, c10::ArrayRef<double> params) {
  const ActivationSpec spec = check_act_mul(gate, up, activation, params);
  check_same_shape("act_mul_backward", "grad_output", grad_output, "gate", gate);
  return spec;
}

ActivationSpec check_gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params) {
  constexpr auto op = "gated_act";
  const ActivationSpec spec = activation_spec(op, activation, params);
  check_tensor(op, "self", self);
  const c10::SymInt size = last_size(op, "self", self);
  TORCH_CHECK_VALUE(size % 2 == 0, "fastops.", op, ": self has shape ", self.sym_sizes(),
                    ", but its last dimension must be even: it holds the gate and the up half");
  return spec;
}

ActivationSpec check_gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                                        c10::ArrayRef<double> params) {
  constexpr auto op = "gated_act_backward";
  const ActivationSpec spec = check_gated_act(self, activation, params);
  check_like(op, "grad_output", grad_output, "self", self);
  const auto sizes = gated_sizes(self);
  TORCH_CHECK_VALUE(grad_output.sym_sizes().equals(sizes), "fastops.", op, ": grad_output has shape ",
                    grad_output.sym_sizes(), ", but must have shape ", c10::SymIntArrayRef(sizes));
  return spec;
}

std::vector<c10::SymInt> gated_sizes(const Tensor& self) {
  auto sizes = self.sym_sizes().vec();
  sizes.back() = sizes.back() / 2;
  return sizes;
}

std::pair<Tensor, Tensor> split_gate(const Tensor& self, bool gate_last) {
  const c10::SymInt half = self.sym_size(-1) / 2;
  Tensor first = self.narrow_symint(-1, 0, half);
  Tensor second = self.narrow_symint(-1, half, half);
  if (gate_last) std::swap(first, second);
  return {std::move(first), std::move(second)};
}

Tensor composite_act_mul(const Tensor& gate, const Tensor& up, std::string_view activation,
                         c10::ArrayRef<double> params) {
  return bias_act(gate, std::nullopt, check_act_mul(gate, up, activation, params)) * up;
}

std::vector<Tensor> composite_act_mul_backward(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                               std::string_view activation, c10::ArrayRef<double> params,
                                               std::array<bool, 2> output_mask) {
  const auto spec = check_act_mul_backward(grad_output, gate, up, activation, params);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(activation_backward(grad_output * up, gate, spec, /*from_output=*/false));
  if (output_mask[1]) grads.push_back(grad_output * bias_act(gate, std::nullopt, spec));
  return grads;
}

Tensor composite_gated_act(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params,
                           bool gate_last) {
  check_gated_act(self, activation, params);
  const auto [gate, up] = split_gate(self, gate_last);
  return act_mul_op().call(gate, up, activation, params);
}

Tensor composite_gated_act_backward(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                                    c10::ArrayRef<double> params, bool gate_last) {
  check_gated_act_backward(grad_output, self, activation, params);
  const auto [gate, up] = split_gate(self, gate_last);
  auto grads = act_mul_backward_op().call(grad_output, gate, up, activation, params, {true, true});
  if (gate_last) std::swap(grads[0], grads[1]);
  return at::cat(grads, -1);
}

namespace {

Tensor act_mul_meta(const Tensor& gate, const Tensor& up, std::string_view activation, c10::ArrayRef<double> params) {
  check_act_mul(gate, up, activation, params);
  return at::empty_symint(gate.sym_sizes(), gate.options());
}

std::vector<Tensor> act_mul_backward_meta(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                          std::string_view activation, c10::ArrayRef<double> params,
                                          std::array<bool, 2> output_mask) {
  check_act_mul_backward(grad_output, gate, up, activation, params);
  std::vector<Tensor> grads;
  for (const bool wanted : output_mask) {
    if (wanted) grads.push_back(at::empty_symint(gate.sym_sizes(), gate.options()));
  }
  return grads;
}

Tensor gated_act_meta(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params, bool) {
  check_gated_act(self, activation, params);
  return at::empty_symint(gated_sizes(self), self.options());
}

Tensor gated_act_backward_meta(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                               c10::ArrayRef<double> params, bool) {
  check_gated_act_backward(grad_output, self, activation, params);
  return at::empty_symint(self.sym_sizes(), self.options());
}

// 16-bit: the product is rounded once, as the kernels do.
Tensor act_mul_explicit(const Tensor& gate, const Tensor& up, std::string_view activation,
                        c10::ArrayRef<double> params) {
  const auto spec = check_act_mul(gate, up, activation, params);
  const auto type = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (composite_activation(spec, gate.to(type)) * up.to(type)).to(gate.scalar_type()).contiguous();
}

std::vector<Tensor> act_mul_backward_explicit(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                              std::string_view activation, c10::ArrayRef<double> params,
                                              std::array<bool, 2> output_mask) {
  const auto spec = check_act_mul_backward(grad_output, gate, up, activation, params);
  const auto type = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor g = grad_output.to(type);
  const Tensor x = gate.to(type);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(composite_gradient(spec, g * up.to(type), x, /*from_output=*/false, 1));
  if (output_mask[1]) grads.push_back(g * composite_activation(spec, x));
  for (Tensor& grad : grads) grad = grad.to(gate.scalar_type()).contiguous();
  return grads;
}

Tensor act_mul_batched(const Tensor& gate, const Tensor& up, std::string_view activation,
                       c10::ArrayRef<double> params) {
  check_act_mul(gate, up, activation, params);
  return batched_by_row([&](const Tensor& g, const Tensor& u) { return act_mul_op().call(g, u, activation, params); },
                        gate, up);
}

std::vector<Tensor> act_mul_backward_batched(const Tensor& grad_output, const Tensor& gate, const Tensor& up,
                                             std::string_view activation, c10::ArrayRef<double> params,
                                             std::array<bool, 2> output_mask) {
  check_act_mul_backward(grad_output, gate, up, activation, params);
  return batched_by_row(
      [&](const Tensor& grad, const Tensor& g, const Tensor& u) {
        return act_mul_backward_op().call(grad, g, u, activation, params, output_mask);
      },
      grad_output, gate, up);
}

Tensor gated_act_batched(const Tensor& self, std::string_view activation, c10::ArrayRef<double> params,
                         bool gate_last) {
  check_gated_act(self, activation, params);
  return batched_by_row([&](const Tensor& x) { return gated_act_op().call(x, activation, params, gate_last); }, self);
}

Tensor gated_act_backward_batched(const Tensor& grad_output, const Tensor& self, std::string_view activation,
                                  c10::ArrayRef<double> params, bool gate_last) {
  check_gated_act_backward(grad_output, self, activation, params);
  return batched_by_row(
      [&](const Tensor& grad, const Tensor& x) {
        return gated_act_backward_op().call(grad, x, activation, params, gate_last);
      },
      grad_output, self);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor act_mul_autocast(const Tensor& gate, const Tensor& up, std::string_view activation,
                        c10::ArrayRef<double> params) {
  c10::impl::ExcludeDispatchKeyGuard below(key);
  check_tensor("act_mul", "gate", gate);
  check_tensor("act_mul", "up", up);
  const auto type = c10::promoteTypes(gate.scalar_type(), up.scalar_type());
  return act_mul_op().call(gate.to(type), up.to(type), activation, params);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  define(m, "act_mul(Tensor gate, Tensor up, str activation, float[] params=[]) -> Tensor");
  define(m,
         "act_mul_backward(Tensor grad_output, Tensor gate, Tensor up, str activation, float[] params, "
         "bool[2] output_mask) -> Tensor[]");
  define(m, "gated_act(Tensor self, str activation, float[] params=[], bool gate_last=False) -> Tensor");
  define(
      m,
      "gated_act_backward(Tensor grad_output, Tensor self, str activation, float[] params, bool gate_last) -> Tensor");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  m.impl("act_mul", TORCH_FN(act_mul_meta));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward_meta));
  m.impl("gated_act", TORCH_FN(gated_act_meta));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward_meta));
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  m.impl("act_mul", FASTOPS_COMPOSITE("act_mul", act_mul_explicit));
  m.impl("act_mul_backward", FASTOPS_COMPOSITE("act_mul_backward", act_mul_backward_explicit));
  m.impl("gated_act", FASTOPS_COMPOSITE("gated_act", composite_gated_act));
  m.impl("gated_act_backward", FASTOPS_COMPOSITE("gated_act_backward", composite_gated_act_backward));
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  m.impl("act_mul", TORCH_FN(act_mul_batched));
  m.impl("act_mul_backward", TORCH_FN(act_mul_backward_batched));
  m.impl("gated_act", TORCH_FN(gated_act_batched));
  m.impl("gated_act_backward", TORCH_FN(gated_act_backward_batched));
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) { m.impl("act_mul_backward", TORCH_FN(composite_act_mul_backward)); }

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                              \
    m.impl("act_mul", TORCH_FN((act_mul_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>))); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
