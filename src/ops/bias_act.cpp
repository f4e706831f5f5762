#include "ops/bias_act.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/activation.h"
#include "ops/autocast.h"
#include "ops/batching.h"
#include "ops/checks.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/matrix.h"
#include "torch_internal/functionalization.h"

namespace fastops {

BiasActArguments BiasAct::checked() const {
  const ActivationSpec spec = activation_spec(name, activation, params);
  check_tensor(name, "self", self);
  const Tensor& added = value_or_undefined(bias);
  if (added.defined()) check_bias(name, "bias", bias, {last_size(name, "self", self)}, "self", self);
  return {self, added, spec};
}

BiasActOutArguments BiasActOut::checked() const {
  const BiasActArguments arguments = BiasAct::checked();
  prepare_out("bias_act", out, self);  // which makes it larger, maybe into the bias
  check_separate("bias_act", "bias", bias, out);
  return {arguments, out};
}

BiasActBackwardArguments BiasActBackward::checked() const {
  const ActivationSpec spec =
      ActivationBackward{grad_output, saved, activation, params, from_output, 1}.checked().activation;
  check_bias(name, "bias", bias, {last_size(name, "saved", saved)}, "saved", saved);
  const Tensor& added = from_output ? undefined_tensor() : value_or_undefined(bias);
  return {grad_output, saved, added, spec, from_output, output_mask};
}

namespace {

// self + bias, in the dtype that is computed with.
Tensor biased(const Tensor& self, const Tensor& bias) {
  const at::ScalarType type = compute_type(self);
  return bias.defined() ? self.to(type) + bias.to(type) : self.to(type);
}

}  // namespace

std::vector<Tensor> composite_bias_act_backward(const BiasActBackwardArguments& backward) {
  const at::ScalarType type = backward.saved.scalar_type();
  const Tensor at_point = biased(backward.saved, backward.bias);
  const Tensor grad = activation_backward(backward.grad_output.to(compute_type(backward.saved)), at_point,
                                          backward.activation, backward.from_output);
  std::vector<Tensor> grads;
  if (backward.output_mask[0]) grads.push_back(grad.to(type));
  if (backward.output_mask[1]) grads.push_back(as_matrix(grad).sum(0).to(type));
  return grads;
}

namespace {

Tensor bias_act_meta(const BiasActArguments& arguments) {
  const Tensor& self = arguments.self;
  return arguments.bias.defined() ? at::empty_symint(self.sym_sizes(), self.options()) : at::empty_like(self);
}

Tensor& bias_act_out_meta(const BiasActOutArguments& arguments) { return arguments.out; }

std::vector<Tensor> bias_act_backward_meta(const BiasActBackwardArguments& backward) {
  const Tensor& saved = backward.saved;
  std::vector<Tensor> grads;
  if (backward.output_mask[0]) grads.push_back(at::empty_symint(saved.sym_sizes(), saved.options()));
  if (backward.output_mask[1]) grads.push_back(at::empty_symint({saved.sym_size(-1)}, saved.options()));
  return grads;
}

Tensor bias_act_fallback(const BiasActArguments& arguments) {
  const auto& [self, bias, activation] = arguments;
  if (bias.defined()) {
    return composite_activation(activation, biased(self, bias)).to(self.scalar_type()).contiguous();
  }
  return activation.id == Activation::identity ? self.clone() : composite_activation(activation, self);
}

Tensor& bias_act_out_fallback(const BiasActOutArguments& arguments) {
  return arguments.out.copy_(bias_act_fallback(arguments));
}

std::vector<Tensor> bias_act_backward_fallback(const BiasActBackwardArguments& backward) {
  auto grads = composite_bias_act_backward(backward);
  for (Tensor& grad : grads) grad = grad.contiguous();
  return grads;
}

Tensor bias_act_batched(const BiasAct& op) {
  const auto& [self, bias, activation] = op.checked();
  if (bias.defined() && Vmap(bias).is_batched(bias)) return bias_act(self + bias, std::nullopt, activation);
  return batched_by_row(op, &BiasAct::self);
}

Tensor& bias_act_out_functionalized(const BiasActOut& op) {
  check_out("bias_act", op.out, op.self);
  return functionalized(
      [&](const Tensor& self, const std::optional<Tensor>& bias) {
        return call_op(BiasAct{self, bias, op.activation, op.params});
      },
      op.out.get(), op.self.get(), op.bias.get());
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor bias_act_autocast(const BiasAct& op) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  if (!op.bias.get() || !op.bias.get()->defined()) return call_op(op);
  check_tensor("bias_act", "bias", *op.bias.get());
  const std::optional<Tensor> bias = op.bias.get()->to(op.self.get().scalar_type());
  return call_op(BiasAct{op.self, bias, op.activation, op.params});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  define(m, "bias_act(Tensor self, Tensor? bias, str activation, float[] params=[]) -> Tensor");
  define(m,
         "bias_act.out(Tensor self, Tensor? bias, str activation, float[] params=[], *, Tensor(a!) out) -> Tensor(a!)");
  define(m,
         "bias_act_backward(Tensor grad_output, Tensor saved, Tensor? bias, str activation, float[] params, "
         "bool from_output, bool[2] output_mask) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  implement<BiasAct, bias_act_meta>(m);
  implement<BiasActOut, bias_act_out_meta>(m);
  implement<BiasActBackward, bias_act_backward_meta>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<BiasAct, bias_act_fallback>(m);
  implement_fallback<BiasActOut, bias_act_out_fallback>(m);
  implement_fallback<BiasActBackward, bias_act_backward_fallback>(m);
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  implement<BiasAct, after_autocast<BiasAct, bias_act_batched>>(m);
  implement<BiasActBackward, composite_bias_act_backward>(m);
}

TORCH_LIBRARY_IMPL(fastops, Functionalize, m) { implement<BiasActOut, bias_act_out_functionalized>(m); }

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) { implement<BiasActBackward, composite_bias_act_backward>(m); }

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                         \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                       \
    implement<BiasAct, bias_act_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
