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
#include "ops/functionalization.h"
#include "ops/matrix.h"

namespace fastops {

const c10::TypedOperatorHandle<BiasAct>& bias_act_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::bias_act", "").typed<BiasAct>();
  return op;
}

const c10::TypedOperatorHandle<BiasActOut>& bias_act_out_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::bias_act", "out").typed<BiasActOut>();
  return op;
}

const c10::TypedOperatorHandle<BiasActBackward>& bias_act_backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastops::bias_act_backward", "").typed<BiasActBackward>();
  return op;
}

ActivationSpec check_bias_act(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                              c10::ArrayRef<double> params) {
  constexpr auto op = "bias_act";
  const ActivationSpec spec = activation_spec(op, activation, params);
  check_tensor(op, "self", self);
  if (bias && bias->defined()) check_bias(op, "bias", bias, last_size(op, "self", self), "self", self);
  return spec;
}

ActivationSpec check_bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                       const std::optional<Tensor>& bias, std::string_view activation,
                                       c10::ArrayRef<double> params, bool from_output) {
  constexpr auto op = "bias_act_backward";
  const ActivationSpec spec = check_activation_backward(grad_output, saved, activation, params, from_output, 1);
  check_bias(op, "bias", bias, last_size(op, "saved", saved), "saved", saved);
  return spec;
}

namespace {

// self + bias, in the dtype that is computed with.
Tensor sum(const Tensor& self, const Tensor& bias) {
  const at::ScalarType type = compute_type(self);
  return self.to(type) + bias.to(type);
}

}  // namespace

std::vector<Tensor> composite_bias_act_backward(const Tensor& grad_output, const Tensor& saved,
                                                const std::optional<Tensor>& bias, std::string_view activation,
                                                c10::ArrayRef<double> params, bool from_output,
                                                std::array<bool, 2> output_mask) {
  const auto spec = check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  const bool add_bias = !from_output && bias && bias->defined();
  const at::ScalarType type = compute_type(saved);
  const Tensor at_point = add_bias ? sum(saved, *bias) : saved.to(type);
  const Tensor grad = activation_backward(grad_output.to(type), at_point, spec, from_output);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(grad.to(saved.scalar_type()));
  if (output_mask[1]) grads.push_back(as_matrix(grad).sum(0).to(saved.scalar_type()));
  return grads;
}

namespace {

Tensor meta(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
            c10::ArrayRef<double> params) {
  check_bias_act(self, bias, activation, params);
  return bias && bias->defined() ? at::empty_symint(self.sym_sizes(), self.options()) : at::empty_like(self);
}

Tensor& meta_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                 c10::ArrayRef<double> params, Tensor& out) {
  check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  return out;
}

std::vector<Tensor> backward_meta(const Tensor& grad_output, const Tensor& saved, const std::optional<Tensor>& bias,
                                  std::string_view activation, c10::ArrayRef<double> params, bool from_output,
                                  std::array<bool, 2> output_mask) {
  check_bias_act_backward(grad_output, saved, bias, activation, params, from_output);
  std::vector<Tensor> grads;
  if (output_mask[0]) grads.push_back(at::empty_symint(saved.sym_sizes(), saved.options()));
  if (output_mask[1]) grads.push_back(at::empty_symint({saved.sym_size(-1)}, saved.options()));
  return grads;
}

Tensor composite(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                 c10::ArrayRef<double> params) {
  const auto spec = check_bias_act(self, bias, activation, params);
  if (bias && bias->defined()) {
    return composite_activation(spec, sum(self, *bias)).to(self.scalar_type()).contiguous();
  }
  return spec.id == Activation::identity ? self.clone() : composite_activation(spec, self);
}

Tensor& composite_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                      c10::ArrayRef<double> params, Tensor& out) {
  check_bias_act(self, bias, activation, params);
  check_separate("bias_act", "bias", bias, out);
  prepare_out("bias_act", out, self);
  return out.copy_(composite(self, bias, activation, params));
}

Tensor batched(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
               c10::ArrayRef<double> params) {
  check_bias_act(self, bias, activation, params);
  if (bias && bias->defined() && Vmap(*bias).is_batched(*bias)) {
    return bias_act_op().call(self + *bias, std::nullopt, activation, params);
  }
  return batched_by_row([&](const Tensor& x) { return bias_act_op().call(x, bias, activation, params); }, self);
}

std::vector<Tensor> backward_out_of_place(const Tensor& grad_output, const Tensor& saved,
                                          const std::optional<Tensor>& bias, std::string_view activation,
                                          c10::ArrayRef<double> params, bool from_output,
                                          std::array<bool, 2> output_mask) {
  auto grads = composite_bias_act_backward(grad_output, saved, bias, activation, params, from_output, output_mask);
  for (Tensor& grad : grads) grad = grad.contiguous();
  return grads;
}

Tensor& functionalize_out(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                          c10::ArrayRef<double> params, Tensor& out) {
  check_out("bias_act", out, self);
  return functionalized(
      [&](const Tensor& x, const std::optional<Tensor>& b) { return bias_act_op().call(x, b, activation, params); },
      out, self, bias);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor autocast(const Tensor& self, const std::optional<Tensor>& bias, std::string_view activation,
                c10::ArrayRef<double> params) {
  c10::impl::ExcludeDispatchKeyGuard below(key);
  std::optional<Tensor> cast;
  if (bias && bias->defined()) {
    check_tensor("bias_act", "bias", *bias);
    cast = bias->to(self.scalar_type());
  }
  return bias_act_op().call(self, cast, activation, params);
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
  m.impl("bias_act", TORCH_FN(meta));
  m.impl("bias_act.out", TORCH_FN(meta_out));
  m.impl("bias_act_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  m.impl("bias_act", FASTOPS_COMPOSITE("bias_act", composite));
  m.impl("bias_act.out", FASTOPS_COMPOSITE("bias_act.out", composite_out));
  m.impl("bias_act_backward", FASTOPS_COMPOSITE("bias_act_backward", backward_out_of_place));
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  m.impl("bias_act", TORCH_FN(batched));
  m.impl("bias_act_backward", TORCH_FN(composite_bias_act_backward));
}

TORCH_LIBRARY_IMPL(fastops, Functionalize, m) { m.impl("bias_act.out", TORCH_FN(functionalize_out)); }

// The vmap behind torch.autograd.grad(is_grads_batched=True), which cannot loop over an op that returns a list.
TORCH_LIBRARY_IMPL(fastops, Batched, m) { m.impl("bias_act_backward", TORCH_FN(composite_bias_act_backward)); }

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                         \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                       \
    m.impl("bias_act", TORCH_FN((autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>))); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
