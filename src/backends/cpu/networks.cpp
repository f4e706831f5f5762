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

// ---- mlp and mlp_jet: one network, or those of an ensemble, one after another in memory ----

// The matrices [..., columns] of the networks. An undefined tensor is none.
class Matrices {
 public:
  // Inputs, which are copied where a launcher cannot take them as they are.
  static Matrices read(const Tensor& tensor, bool ensemble) {
    if (!tensor.defined()) return {};
    const auto stride = row_stride(ensemble ? tensor.select(0, 0) : tensor);
    const Tensor rows = stride ? tensor : contiguous_copy(tensor);
    return {rows, const_cast<void*>(rows.const_data_ptr()), stride.value_or(tensor.size(-1)), ensemble};
  }
  // Results, which are contiguous.
  static Matrices written(const Tensor& tensor, bool ensemble) {
    if (!tensor.defined()) return {};
    return {tensor, tensor.mutable_data_ptr(), tensor.size(-1), ensemble};
  }

  Rows of(int64_t network) const { return {data_ ? data_ + network * step_ : nullptr, stride_}; }

 private:
  Matrices() = default;
  Matrices(const Tensor& tensor, void* data, int64_t stride, bool ensemble)
      : tensor_(tensor),
        data_(static_cast<char*>(data)),
        stride_(stride),
        step_(ensemble ? tensor.stride(0) * static_cast<int64_t>(tensor.element_size()) : 0) {}

  Tensor tensor_;
  char* data_ = nullptr;
  int64_t stride_ = 0;
  int64_t step_ = 0;  // bytes from one network to the next
};

// A layer of all networks.
struct StackedLayer {
  Layer first;  // but for the places
  Matrices weight, bias, weight_grad, bias_grad, kept;

  Layer of(int64_t network) const {
    Layer layer = first;
    layer.weight = constant(weight.of(network));
    layer.bias = bias.of(network).data;
    layer.weight_grad = weight_grad.of(network).data;
    layer.bias_grad = bias_grad.of(network).data;
    layer.kept = kept.of(network);
    return layer;
  }
};

class Networks {
 public:
  template <class Arguments>
  explicit Networks(const Arguments& mlp)
      : dtype_(dtype_of(mlp.input)),
        count_(mlp.ensemble ? mlp.input.size(0) : 1),
        rows_(row_count(mlp.input) / count_),
        operations_(0) {}

  // The next layer, with what the forward pass fills or the backward pass reads, and the gradients of its parameters;
  // each of them may be none.
  template <class Arguments>
  void add_layer(const Arguments& mlp, const Matrices& kept, const Tensor& weight_grad, const Tensor& bias_grad) {
    const size_t i = layers_.size();
    const Tensor& weight = mlp.weights[i];
    const Call call = call_for(mlp.activation_of(i), mlp.input);
    Linear linear{{}, nullptr, weight.size(-1), weight.size(-2)};
    linear.transposed = has_transposed_rows(weight);
    layers_.push_back({{linear, call.activation, call.params, mlp.saves_output(i), {}},
                       Matrices::read(linear.transposed ? weight.mT() : weight, mlp.ensemble),
                       Matrices::read(mlp.biases[i], mlp.ensemble),
                       Matrices::written(weight_grad, mlp.ensemble),
                       Matrices::written(bias_grad, mlp.ensemble),
                       kept});
    operations_ += rows_ * linear.in_features * linear.out_features;
  }

  // f(caller, a network's call, its number) for each. Threads take whole networks, where those are many or small; else
  // they share each of them.
  template <class F>
  void for_each(const F& f) const {
    const auto run = [&](int64_t begin, int64_t end) {
      c10::SmallVector<Layer, 4> layers;
      TorchCaller caller(/*in_profile=*/count_ == 1);
      for (int64_t network = begin; network < end; ++network) {
        layers.clear();
        for (const StackedLayer& layer : layers_) layers.push_back(layer.of(network));
        f(caller, MlpCall{dtype_, rows_, layers}, network);
        caller.clear();
      }
    };
    if (count_ == 1) return run(0, 1);
    RECORD_FUNCTION("fastops::networks", c10::ArrayRef<const c10::IValue>());
    constexpr int64_t call_operations = 10'000;  // a call takes as long as so many
    constexpr int64_t least_operations = 200'000;
    const int64_t operations = operations_ + call_operations;
    const int64_t threads = at::get_num_threads();
    if (count_ % threads == 0 || count_ > 4 * threads || operations < least_operations) {
      at::parallel_for(0, count_, std::max<int64_t>(1, least_operations / operations), run);
    } else {
      run(0, count_);
    }
  }

 private:
  Dtype dtype_;
  int64_t count_;
  int64_t rows_;
  int64_t operations_;  // of a network
  c10::SmallVector<StackedLayer, 4> layers_;
};

// With launch(caller, a network's call, its input, its output).
template <class Arguments, class F>
Tensor forward(const Arguments& mlp, std::vector<Tensor>* saved, const F& launch) {
  const Tensor output = rows_result(mlp.input, mlp.weights.back().size(-2));
  c10::SmallVector<Tensor, 4> kept(mlp.layers());
  for (size_t i = 0; saved && i < mlp.layers(); ++i) {
    if (mlp.saves(i)) saved->push_back(kept[i] = rows_result(mlp.input, mlp.weights[i].size(-2)));
  }
  if (is_empty(output) && (!saved || are_empty(*saved))) return output;
  Networks networks(mlp);
  for (size_t i = 0; i < mlp.layers(); ++i) {
    networks.add_layer(mlp, Matrices::written(kept[i], mlp.ensemble), {}, {});
  }
  const Matrices input = Matrices::read(mlp.input, mlp.ensemble);
  const Matrices outputs = Matrices::written(output, mlp.ensemble);
  networks.for_each([&](Caller& caller, const MlpCall& call, int64_t network) {
    launch(caller, call, constant(input.of(network)), outputs.of(network));
  });
  return output;
}

// With launch(caller, a network's call, its input, its grad_output, its input's gradient).
template <class Arguments, class F>
std::vector<Tensor> backward(const Arguments& mlp, const Tensor& output, const F& launch) {
  std::vector<Tensor> results(mlp.output_mask.size());
  if (mlp.wants_input()) results[0] = rows_result(mlp.input, mlp.input.size(-1));
  bool has_outputs = false;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const auto sizes = mlp.weights[i].sizes();
    if (mlp.wants_weight(i)) results[1 + 2 * i] = empty_result(sizes, mlp.input);
    if (mlp.wants_bias(i)) results[2 + 2 * i] = empty_result(sizes.slice(0, sizes.size() - 1), mlp.input);
    has_outputs = has_outputs || sizes.end()[-2] > 0;
  }
  if (row_count(mlp.input) == 0 || !has_outputs) {
    set_to_zero(results);
  } else {
    Networks networks(mlp);
    for (size_t i = 0; i < mlp.layers(); ++i) {
      const Tensor kept = i < mlp.saved.size() ? mlp.saved[i] : mlp.needs_output() ? output : Tensor();
      networks.add_layer(mlp, Matrices::read(kept, mlp.ensemble), results[1 + 2 * i], results[2 + 2 * i]);
    }
    const Matrices input = Matrices::read(mlp.input, mlp.ensemble);
    const Matrices grad_output = Matrices::read(mlp.grad_output, mlp.ensemble);
    const Matrices input_grad = Matrices::written(results[0], mlp.ensemble);
    networks.for_each([&](Caller& caller, const MlpCall& call, int64_t network) {
      launch(caller, call, constant(input.of(network)), constant(grad_output.of(network)), input_grad.of(network));
    });
  }
  for (size_t i = 0; i < mlp.layers(); ++i) {
    if (mlp.wants_weight(i)) results[1 + 2 * i] = in_layout_of_weight(mlp.weights[i], results[1 + 2 * i]);
  }
  return without_undefined(std::move(results));
}

}  // namespace

std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  const bool unpacked = goes_unpacked(mlp.input, mlp.weights, Pass::forward);
  if (!unpacked && !has_faster_products(mlp.input, mlp.weights, Pass::forward)) return std::nullopt;
  return forward(mlp, saved, unpacked ? unpacked_mlp_forward : mlp_forward);
}

std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp) {
  const bool unpacked = goes_unpacked(mlp.input, mlp.weights, Pass::backward);
  if (unpacked || goes_plain(mlp.input, mlp.weights, /*with_derivatives=*/false)) {
    return backward(mlp, mlp.output, unpacked ? unpacked_mlp_backward : plain_mlp_backward);
  }
  if (!has_faster_products(mlp.input, mlp.weights, Pass::backward)) return std::nullopt;
  return backward(mlp, mlp.output, mlp_backward);
}

namespace {

// The elementwise work that PyTorch's ops would do between their products is more than what those gain.
bool has_faster_jet(const MlpJetArguments& mlp) {
  return mlp.form.rows() <= most_jet_rows && has_own_products(mlp.input);
}

MlpJetCall jet_call(const MlpCall& call, const JetForm& form) {
  return {call, form.directions, form.seconds, form.each(),
          form.trace_weights.empty() ? nullptr : form.trace_weights.data()};
}

}  // namespace

std::optional<Tensor> try_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved) {
  if (!has_faster_jet(mlp)) return std::nullopt;
  return forward(mlp, saved, [&](Caller& caller, const MlpCall& call, ConstRows input, Rows output) {
    mlp_jet_forward(caller, jet_call(call, mlp.form), input, output);
  });
}

std::optional<std::vector<Tensor>> try_mlp_jet_backward(const MlpJetBackwardArguments& mlp) {
  if (!has_faster_jet(mlp)) return std::nullopt;
  const bool plain = goes_plain(mlp.input, mlp.weights, /*with_derivatives=*/true);
  const auto launch = plain ? plain_mlp_jet_backward : mlp_jet_backward;
  return backward(mlp, {}, [&](Caller& caller, const MlpCall& call, ConstRows input, ConstRows grad_output, Rows grad) {
    launch(caller, jet_call(call, mlp.form), input, grad_output, grad);
  });
}

// ---- gated_mlp ----

namespace {

struct GatedParameters {
  explicit GatedParameters(const GatedMlpArguments& mlp)
      : have_one_form(has_transposed_rows(mlp.gate_weight) == has_transposed_rows(mlp.up_weight)),
        gate(mlp.gate_weight, mlp.gate_bias, have_one_form),
        up(mlp.up_weight, mlp.up_bias, have_one_form),
        down(mlp.down_weight, mlp.down_bias) {}

  bool have_one_form;  // the gate's product and the other projection's, as those of a stage must
  Parameters gate, up, down;
};

}  // namespace

std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves) {
  const std::array weights = {mlp.gate_weight, mlp.up_weight, mlp.down_weight};
  if (goes_unpacked_by_layers(mlp.input, mlp.gate_weight)) return std::nullopt;
  if (!has_faster_products(mlp.input, weights, Pass::forward)) return std::nullopt;
  const GatedParameters parameters(mlp);
  const Tensor output = rows_result(mlp.input, mlp.down_weight.size(0));
  const auto kept = [&] { return saves ? rows_result(mlp.input, mlp.gate_weight.size(0)) : Tensor(); };
  const Tensor gate_kept = kept();
  const Tensor up_kept = kept();
  if (!is_empty(output) || (saves && !is_empty(gate_kept))) {
    const Call call = call_for(mlp.activation, mlp.input);
    TorchCaller caller;
    gated_mlp_forward(caller,
                      {call.dtype, row_count(mlp.input), parameters.gate.linear(), parameters.up.linear(),
                       parameters.down.linear(), call.activation, call.params},
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
  const GatedParameters parameters(mlp);
  const int64_t rows = row_count(mlp.input);
  if (rows == 0 || (mlp.gate_weight.size(0) == 0 && mlp.down_weight.size(0) == 0)) {
    set_to_zero(results);
  } else {
    const Call call = call_for(mlp.activation, mlp.input);
    TorchCaller caller;
    gated_mlp_backward(
        caller,
        {call.dtype, rows, parameters.gate.linear(results[1], results[4]), parameters.up.linear(results[2], results[5]),
         parameters.down.linear(results[3], results[6]), call.activation, call.params},
        RowView(mlp.input), RowView(mlp.gate), RowView(mlp.up), RowView(mlp.grad_output), result_rows(results[0]));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (mask[1 + i]) results[1 + i] = in_layout_of_weight(weights[i], results[1 + i]);
  }
  return without_undefined(std::move(results));
}

}  // namespace fastops::cpu
