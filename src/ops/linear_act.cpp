// linear_act: activation(input @ weight.T + bias), an mlp of one layer. Its training form is mlp_forward.
#include <torch/library.h>

#include "ops/autocast.h"
#include "ops/batching.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/mlp_family.h"

namespace fastops {

namespace {

Tensor linear_act_as_mlp(const LinearAct& op) {
  op.checked();
  const OptionalTensors biases({op.bias.get()});
  return call_op(Mlp{{op.input, op.weight.get(), biases, "identity", op.activation, {}, op.params}, false});
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor linear_act_autocast(const LinearAct& op) {
  const AutocastScope scope(LinearAct::name, device, key);
  const Tensor input = scope.lower("input", op.input.get());
  const Tensor weight = scope.lower("weight", op.weight.get());
  const std::optional<Tensor> bias = scope.lower("bias", op.bias.get());
  return call_op(LinearAct{input, weight, bias, op.activation, op.params});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  define(m, "linear_act(Tensor input, Tensor weight, Tensor? bias, str activation, float[] params=[]) -> Tensor");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) { implement<LinearAct, output_by<MlpArguments, output_meta<MlpArguments>>>(m); }

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) { implement_fallback<LinearAct, linear_act_as_mlp>(m); }

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  implement<LinearAct, after_autocast<LinearAct, linear_act_as_mlp>>(m);
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                             \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                           \
    implement<LinearAct, linear_act_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
