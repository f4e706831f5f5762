#include "backends/cpu/networks.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/choice.h"
#include "backends/cpu/launch.h"
#include "ops/matrix.h"

namespace fastops::cpu {
namespace {

// ---- tensors as the launchers want them ----

bool is_empty(const Tensor& tensor) { return tensor.numel() == 0; }
bool are_empty(at::TensorList tensors) { return std::all_of(tensors.begin(), tensors.end(), is_empty); }

// Gradients where no layer has an output: rows without elements need no time.
void set_to_zero(std::vector<Tensor>& results) {
  for (Tensor& result : results) {
    if (result.defined()) result.zero_();
  }
}

std::vector<Tensor> without_undefined(std::vector<Tensor> results) {
  std::erase_if(results, [](const Tensor& result) { return !result.defined(); });
  return results;
}

// A result with the input's leading dimensions.
Tensor rows_result(const Tensor& input, int64_t features) {
  auto sizes = input.sizes().vec();
  sizes.back() = features;
  return empty_result(sizes, input);
}

void* data_of(const Tensor& result) { return result.defined() ? result.mutable_data_ptr() : nullptr; }

// A layer's weight and bias, copied where a launcher cannot take them as they are.
class Parameters {
 public:
  Parameters(const Tensor& weight, const Tensor& bias)
      : weight_(weight), out_features_(weight.size(0)), bias_(bias.defined() ? bias.contiguous() : bias) {}

  Linear linear(const Tensor& weight_grad = {}, const Tensor& bias_grad = {}) const {
    const void* const bias = bias_.defined() ? bias_.const_data_ptr() : nullptr;
    return {weight_, bias, weight_.columns(), out_features_, data_of(weight_grad), data_of(bias_grad)};
  }

 private:
  RowView weight_;
  int64_t out_features_;
  Tensor bias_;  // undefined if there is none
};

// ---- mlp ----

Rows kept_rows(const RowView& kept) {
  const ConstRows rows = kept;
  return {const_cast<void*>(rows.data), rows.stride};  // backward passes only read them
}

}  // namespace

std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  if (!has_faster_products(mlp.input, mlp.weights, Pass::forward)) return std::nullopt;
  c10::SmallVector<Parameters, 4> parameters;
  c10::SmallVector<Layer, 4> layers;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Call call = call_for(mlp.activation_of(i), mlp.input);
    const Linear linear = parameters.emplace_back(mlp.weights[i], mlp.biases[i]).linear();
    layers.push_back({linear, call.activation, call.params, mlp.saves_output(i), {nullptr, 0}});
    if (saved && mlp.saves(i)) {
      saved->push_back(rows_result(mlp.input, linear.out_features));
      layers.back().kept = result_rows(saved->back());
    }
  }
  const Tensor output = rows_result(mlp.input, layers.back().out_features);
  if (is_empty(output) && (!saved || are_empty(*saved))) return output;
  TorchCaller caller;
  mlp_forward(caller, {dtype_of(mlp.input), row_count(mlp.input), layers}, RowView(mlp.input), result_rows(output));
  return output;
}

std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp) {
  if (!has_faster_products(mlp.input, mlp.weights, Pass::backward)) return std::nullopt;
  std::vector<Tensor> results(mlp.output_mask.size());
  c10::SmallVector<Parameters, 4> parameters;
  c10::SmallVector<RowView, 4> kept;
  c10::SmallVector<Layer, 4> layers;
  const auto empty = [&](at::IntArrayRef sizes) { return empty_result(sizes, mlp.input); };
  if (mlp.wants_input()) results[0] = rows_result(mlp.input, mlp.input.size(-1));
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor& weight = mlp.weights[i];
    if (mlp.wants_weight(i)) results[1 + 2 * i] = empty(weight.sizes());
    if (mlp.wants_bias(i)) results[2 + 2 * i] = empty(weight.size(0));
    const bool has_kept = i < mlp.saved.size() || mlp.needs_output();
    if (has_kept) kept.emplace_back(i < mlp.saved.size() ? mlp.saved[i] : mlp.output);
    const Call call = call_for(mlp.activation_of(i), mlp.input);
    layers.push_back({parameters.emplace_back(weight, mlp.biases[i]).linear(results[1 + 2 * i], results[2 + 2 * i]),
                      call.activation, call.params, mlp.saves_output(i),
                      has_kept ? kept_rows(kept.back()) : Rows{nullptr, 0}});
  }
  const int64_t rows = row_count(mlp.input);
  const auto has_no_output = [](const Layer& layer) { return layer.out_features == 0; };
  if (rows == 0 || std::all_of(layers.begin(), layers.end(), has_no_output)) {
    set_to_zero(results);
  } else {
    TorchCaller caller;
    mlp_backward(caller, {dtype_of(mlp.input), rows, layers}, RowView(mlp.input), RowView(mlp.grad_output),
                 result_rows(results[0]));
  }
  for (size_t i = 0; i < mlp.layers(); ++i) {
    if (mlp.wants_weight(i)) results[1 + 2 * i] = in_layout_of(mlp.weights[i], results[1 + 2 * i]);
  }
  return without_undefined(std::move(results));
}

// ---- mlp_jet ----

namespace {

// The elementwise work that PyTorch's ops would do between their products is more than what those gain.
bool has_faster_jet(const MlpJetArguments& mlp) {
  return mlp.form.rows() <= most_jet_rows && has_own_products(mlp.input);
}

MlpJetCall jet_call(const MlpJetArguments& mlp, std::span<const Layer> layers) {
  const JetForm& form = mlp.form;
  return {{dtype_of(mlp.input), row_count(mlp.input), layers},
          form.directions,
          form.seconds,
          form.each(),
          form.trace_weights.empty() ? nullptr : form.trace_weights.data()};
}

}  // namespace

std::optional<Tensor> try_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved) {
  if (!has_faster_jet(mlp)) return std::nullopt;
  c10::SmallVector<Parameters, 4> parameters;
  c10::SmallVector<Layer, 4> layers;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Call call = call_for(mlp.activation_of(i), mlp.input);
    const Linear linear = parameters.emplace_back(mlp.weights[i], mlp.biases[i]).linear();
    layers.push_back({linear, call.activation, call.params, /*keeps_output=*/false, {nullptr, 0}});
    if (saved && mlp.saves(i)) {
      saved->push_back(rows_result(mlp.input, linear.out_features));
      layers.back().kept = result_rows(saved->back());
    }
  }
  const Tensor output = rows_result(mlp.input, layers.back().out_features);
  if (is_empty(output) && (!saved || are_empty(*saved))) return output;
  TorchCaller caller;
  mlp_jet_forward(caller, jet_call(mlp, layers), RowView(mlp.input), result_rows(output));
  return output;
}

std::optional<std::vector<Tensor>> try_mlp_jet_backward(const MlpJetBackwardArguments& mlp) {
  if (!has_faster_jet(mlp)) return std::nullopt;
  const auto& mask = mlp.output_mask;
  std::vector<Tensor> results(mask.size());
  c10::SmallVector<Parameters, 4> parameters;
  c10::SmallVector<RowView, 4> kept;
  c10::SmallVector<Layer, 4> layers;
  if (mask[0]) results[0] = rows_result(mlp.input, mlp.input.size(-1));
  bool has_outputs = false;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor& weight = mlp.weights[i];
    if (mask[1 + 2 * i]) results[1 + 2 * i] = empty_result(weight.sizes(), mlp.input);
    if (mask[2 + 2 * i]) results[2 + 2 * i] = empty_result(weight.size(0), mlp.input);
    if (i < mlp.saved.size()) kept.emplace_back(mlp.saved[i]);
    const Call call = call_for(mlp.activation_of(i), mlp.input);
    layers.push_back({parameters.emplace_back(weight, mlp.biases[i]).linear(results[1 + 2 * i], results[2 + 2 * i]),
                      call.activation, call.params, /*keeps_output=*/false,
                      i < mlp.saved.size() ? kept_rows(kept.back()) : Rows{nullptr, 0}});
    has_outputs = has_outputs || weight.size(0) > 0;
  }
  if (row_count(mlp.input) == 0 || !has_outputs) {
    set_to_zero(results);
  } else {
    TorchCaller caller;
    mlp_jet_backward(caller, jet_call(mlp, layers), RowView(mlp.input), RowView(mlp.grad_output),
                     result_rows(results[0]));
  }
  for (size_t i = 0; i < mlp.layers(); ++i) {
    if (mask[1 + 2 * i]) results[1 + 2 * i] = in_layout_of(mlp.weights[i], results[1 + 2 * i]);
  }
  return without_undefined(std::move(results));
}

// ---- gated_mlp ----

std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves) {
  const std::array weights = {mlp.gate_weight, mlp.up_weight, mlp.down_weight};
  if (!has_faster_products(mlp.input, weights, Pass::forward)) return std::nullopt;
  const Parameters gate(mlp.gate_weight, mlp.gate_bias);
  const Parameters up(mlp.up_weight, mlp.up_bias);
  const Parameters down(mlp.down_weight, mlp.down_bias);
  const Tensor output = rows_result(mlp.input, mlp.down_weight.size(0));
  const auto kept = [&] { return saves ? rows_result(mlp.input, mlp.gate_weight.size(0)) : Tensor(); };
  const Tensor gate_kept = kept();
  const Tensor up_kept = kept();
  if (!is_empty(output) || (saves && !is_empty(gate_kept))) {
    const Call call = call_for(mlp.activation, mlp.input);
    TorchCaller caller;
    gated_mlp_forward(
        caller,
        {call.dtype, row_count(mlp.input), gate.linear(), up.linear(), down.linear(), call.activation, call.params},
        RowView(mlp.input), result_rows(gate_kept), result_rows(up_kept), result_rows(output));
  }
  return GatedMlpForward::Result(output, gate_kept, up_kept);
}

std::optional<std::vector<Tensor>> try_gated_mlp_backward(const GatedMlpBackwardArguments& mlp) {
  const std::array weights = {mlp.gate_weight, mlp.up_weight, mlp.down_weight};
  if (!has_faster_products(mlp.input, weights, Pass::backward)) return std::nullopt;
  const auto& mask = mlp.output_mask;  // input, the three weights, the three biases
  std::vector<Tensor> results(mask.size());
  if (mask[0]) results[0] = rows_result(mlp.input, mlp.input.size(-1));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (mask[1 + i]) results[1 + i] = empty_result(weights[i].sizes(), mlp.input);
    if (mask[4 + i]) results[4 + i] = empty_result(weights[i].size(0), mlp.input);
  }
  const Parameters gate(mlp.gate_weight, mlp.gate_bias);
  const Parameters up(mlp.up_weight, mlp.up_bias);
  const Parameters down(mlp.down_weight, mlp.down_bias);
  const int64_t rows = row_count(mlp.input);
  if (rows == 0 || (mlp.gate_weight.size(0) == 0 && mlp.down_weight.size(0) == 0)) {
    set_to_zero(results);
  } else {
    const Call call = call_for(mlp.activation, mlp.input);
    TorchCaller caller;
    gated_mlp_backward(caller,
                       {call.dtype, rows, gate.linear(results[1], results[4]), up.linear(results[2], results[5]),
                        down.linear(results[3], results[6]), call.activation, call.params},
                       RowView(mlp.input), RowView(mlp.gate), RowView(mlp.up), RowView(mlp.grad_output),
                       result_rows(results[0]));
  }
  return without_undefined(std::move(results));
}

}  // namespace fastops::cpu
