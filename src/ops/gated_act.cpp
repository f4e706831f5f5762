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

ActMulArguments ActMul::checked() const {
  const ActivationSpec spec = activation_spec(name, activation, params);
  check_tensor(name, "gate", gate);
  check_same_shape(name, "up", up, "gate", gate);
  return {gate, up, spec};
}

ActMulBackwardArguments ActMulBackward::checked() const {
  const ActivationSpec spec = ActMul{gate, up, activation, params}.checked().activation;
  check_same_shape(name, "grad_output", grad_output, "gate", gate);
  return {grad_output, gate, up, spec, output_mask};
}

GatedActArguments GatedAct::checked() const {
  const ActivationSpec spec = activation_spec(name, activation, params);
  check_tensor(name, "self", self);
  const c10::SymInt size = last_size(name, "self", self);
  TORCH_CHECK_VALUE(size % 2 == 0, "fastops.", name, ": input has shape ", self.get().sym_sizes(),
                    ", but its last dimension must be even: it holds the gate and the up half");
  return {self, spec, gate_last};
}

GatedActBackwardArguments GatedActBackward::checked() const {
  const GatedActArguments arguments = GatedAct{self, activation, params, gate_last}.checked();
  check_shape(name, "grad_output", grad_output, gated_sizes(self), "self", self);
  return {arguments, grad_output};
}

std::vector<c10::SymInt> gated_sizes(const Tensor& self) { return sizes_with(self, self.sym_size(-1) / 2); }

std::pair<Tensor, Tensor> split_gate(const Tensor& self, bool gate_last) {
  const c10::SymInt size = self.sym_size(-1);
  const c10::SymInt half = size / 2;
  Tensor first = self.slice_symint(-1, 0, half);
  Tensor second = self.slice_symint(-1, half, size);
  if (gate_last) std::swap(first, second);
  return {std::move(first), std::move(second)};
}

Tensor composite_act_mul(const ActMulArguments& arguments) {
  return bias_act(arguments.gate, std::nullopt, arguments.activation) * arguments.up;
}

std::vector<Tensor> composite_act_mul_backward(const ActMulBackwardArguments& backward) {
  const auto& [grad_output, gate, up, activation, output_mask] = backward;
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(activation_backward(grad_output * up, gate, activation, /*from_output=*/false));
  if (output_mask[1]) grads.push_back(grad_output * bias_act(gate, std::nullopt, activation));
  return grads;
}

Tensor composite_gated_act(const GatedActArguments& arguments) {
  const auto [gate, up] = split_gate(arguments.self, arguments.gate_last);
  return act_mul(gate, up, arguments.activation);
}

Tensor composite_gated_act_backward(const GatedActBackwardArguments& backward) {
  const auto [gate, up] = split_gate(backward.self, backward.gate_last);
  auto grads = act_mul_backward(backward.grad_output, gate, up, backward.activation, {true, true});
  if (backward.gate_last) std::swap(grads[0], grads[1]);
  return at::cat(grads, -1);
}

namespace {

Tensor act_mul_meta(const ActMulArguments& arguments) {
  return at::empty_symint(arguments.gate.sym_sizes(), arguments.gate.options());
}

std::vector<Tensor> act_mul_backward_meta(const ActMulBackwardArguments& backward) {
  std::vector<Tensor> grads;
  for (const bool wanted : backward.output_mask) {
    if (wanted) grads.push_back(at::empty_symint(backward.gate.sym_sizes(), backward.gate.options()));
  }
  return grads;
}

Tensor gated_act_meta(const GatedActArguments& arguments) {
  return at::empty_symint(gated_sizes(arguments.self), arguments.self.options());
}

Tensor gated_act_backward_meta(const GatedActBackwardArguments& backward) {
  return at::empty_symint(backward.self.sym_sizes(), backward.self.options());
}

// 16-bit: the product is rounded once, as the kernels do.
Tensor act_mul_fallback(const ActMulArguments& arguments) {
  const auto& [gate, up, activation] = arguments;
  const auto type = compute_type(gate);
  return (composite_activation(activation, gate.to(type)) * up.to(type)).to(gate.scalar_type()).contiguous();
}

std::vector<Tensor> act_mul_backward_fallback(const ActMulBackwardArguments& backward) {
  const auto& [grad_output, gate, up, activation, output_mask] = backward;
  const auto type = compute_type(gate);
  const Tensor g = grad_output.to(type);
  const Tensor x = gate.to(type);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(composite_gradient({g * up.to(type), x, activation, /*from_output=*/false, 1}));
  if (output_mask[1]) grads.push_back(g * composite_activation(activation, x));
  for (Tensor& grad : grads) grad = grad.to(gate.scalar_type()).contiguous();
  return grads;
}

Tensor act_mul_batched(const ActMul& op) {
  op.checked();
  return batched_by_row(op, &ActMul::gate, &ActMul::up);
}

std::vector<Tensor> act_mul_backward_batched(const ActMulBackward& op) {
  op.checked();
  return batched_by_row(op, &ActMulBackward::grad_output, &ActMulBackward::gate, &ActMulBackward::up);
}

Tensor gated_act_batched(const GatedAct& op) {
  op.checked();
  return batched_by_row(op, &GatedAct::self);
}

Tensor gated_act_backward_batched(const GatedActBackward& op) {
  op.checked();
  return batched_by_row(op, &GatedActBackward::grad_output, &GatedActBackward::self);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor act_mul_autocast(const ActMul& op) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  check_tensor(ActMul::name, "gate", op.gate);
  check_tensor(ActMul::name, "up", op.up);
  const auto type = c10::promoteTypes(op.gate.get().scalar_type(), op.up.get().scalar_type());
  const Tensor gate = op.gate.get().to(type);
  const Tensor up = op.up.get().to(type);
  return call_op(ActMul{gate, up, op.activation, op.params});
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
  implement<ActMul, act_mul_meta>(m);
  implement<ActMulBackward, act_mul_backward_meta>(m);
  implement<GatedAct, gated_act_meta>(m);
  implement<GatedActBackward, gated_act_backward_meta>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<ActMul, act_mul_fallback>(m);
  implement_fallback<ActMulBackward, act_mul_backward_fallback>(m);
  implement_fallback<GatedAct, composite_gated_act>(m);
  implement_fallback<GatedActBackward, composite_gated_act_backward>(m);
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  implement<ActMul, after_autocast<ActMul, act_mul_batched>>(m);
  implement<ActMulBackward, act_mul_backward_batched>(m);
  implement<GatedAct, gated_act_batched>(m);
  implement<GatedActBackward, gated_act_backward_batched>(m);
}

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) { implement<ActMulBackward, composite_act_mul_backward>(m); }

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                       \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                     \
    implement<ActMul, act_mul_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
