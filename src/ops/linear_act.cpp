// linear_act: activation(input @ weight.T + bias), an mlp of one layer. Its training form is mlp_forward.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/autocast.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/mlp.h"

namespace fastops {

const c10::TypedOperatorHandle<LinearAct>& linear_act_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastops::linear_act", "").typed<LinearAct>();
  return op;
}

namespace {

Tensor meta(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, std::string_view activation,
            c10::ArrayRef<double> params) {
  check_linear_act(input, weight, bias, activation, params);
  auto sizes = input.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  return at::empty_symint(sizes, input.options());
}

Tensor as_mlp(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, std::string_view activation,
              c10::ArrayRef<double> params) {
  check_linear_act(input, weight, bias, activation, params);
  return mlp_op().call(input, weight, OptionalTensors({bias}), "identity", activation, {}, params,
                       /*checkpoint=*/false);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor autocast(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                std::string_view activation, c10::ArrayRef<double> params) {
  const AutocastScope scope("linear_act", device, key);
  return linear_act_op().call(scope.lower("input", input), scope.lower("weight", weight), scope.lower("bias", bias),
                              activation, params);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  define(m, "linear_act(Tensor input, Tensor weight, Tensor? bias, str activation, float[] params=[]) -> Tensor");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) { m.impl("linear_act", TORCH_FN(meta)); }

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  m.impl("linear_act", FASTOPS_COMPOSITE("linear_act", as_mlp));
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) { m.impl("linear_act", TORCH_FN(as_mlp)); }

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                           \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                         \
    m.impl("linear_act", TORCH_FN((autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>))); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
