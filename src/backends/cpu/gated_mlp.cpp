// gated_mlp as a chain of matrix products: both projections of the input in one stage, the down projection in the next.
#include "backends/cpu/chain.h"
#include "backends/cpu/networks.h"

namespace fastops::cpu {
namespace {

std::array<Tensor, 3> weights_of(const GatedMlpArguments& mlp) {
  return {mlp.gate_weight, mlp.up_weight, mlp.down_weight};
}
std::array<Tensor, 3> biases_of(const GatedMlpArguments& mlp) { return {mlp.gate_bias, mlp.up_bias, mlp.down_bias}; }

class Layers : protected Chain {
 protected:
  Layers(const GatedMlpArguments& mlp, int64_t passes)
      : Chain(mlp.input, weights_of(mlp), biases_of(mlp), passes), activation_(mlp.activation) {}

  const Layer& gate_layer() const { return layers_[0]; }
  const Layer& up_layer() const { return layers_[1]; }
  const Layer& down_layer() const { return layers_[2]; }
  int64_t hidden_features() const { return down_layer().in_features; }
  const Kernels& activation_kernels() const { return kernels(activation_.id, dtype_); }

  ActivationSpec activation_;
};

class Forward : Layers {
 public:
  explicit Forward(const GatedMlpArguments& mlp) : Layers(mlp, 1) {}

  // The output, and gate and up if `saves`.
  std::tuple<Tensor, Tensor, Tensor> run(bool saves) {
    output_ = rows_result(down_layer().out_features);
    if (saves) gate_ = rows_result(hidden_features());
    if (saves) up_ = rows_result(hidden_features());
    if (!hold_nothing({output_, gate_, up_})) compute();
    return {std::move(output_), std::move(gate_), std::move(up_)};
  }

 private:
  void compute() {
    input_.take(workspace_, chunk_rows());
    hidden_ = take_rows(workspace_, dtype_, chunk_rows(), hidden_features());
    to_gate_ = product_with(gate_layer(), /*transposed=*/true);
    to_up_ = product_with(up_layer(), /*transposed=*/true);
    to_up_.sum = 1;
    to_output_ = product_with(down_layer(), /*transposed=*/true);
    to_output_.a = constant(hidden_);
    pack_all(panels_, dtype_, threads_);
    for_each_chunk([&](int64_t row, int64_t rows) { run_chunk(row, rows); });
  }

  void run_chunk(int64_t row, int64_t rows) {
    c10::SmallVector<Stage, 3> stages;
    to_gate_.a = to_up_.a = input_.from(row, stages);
    const GatedForwardArguments projections{
        gate_layer().bias_data(), up_layer().bias_data(), rows_of(gate_, row), rows_of(up_, row), hidden_,
        activation_.params()};
    stages.push_back({.products = {to_gate_, to_up_},
                      .columns = hidden_features(),
                      .epilogue = {activation_kernels().gated_layer_forward, &projections}});
    const LayerForwardArguments output{down_layer().bias_data(), {}, rows_of(output_, row), {}, {}};
    stages.push_back({.products = {to_output_},
                      .columns = down_layer().out_features,
                      .epilogue = {kernels(Activation::identity, dtype_).layer_forward, &output}});
    run_stages(stages, dtype_, rows, threads_);
  }

  Tensor output_, gate_, up_;
  Rows hidden_{nullptr, 0};
  Product to_gate_{}, to_up_{}, to_output_{};
};

class Backward : Layers {
 public:
  explicit Backward(const GatedMlpBackwardArguments& mlp)
      : Layers(mlp, 2), grad_output_(mlp.grad_output, dtype_), gate_(mlp.gate), up_(mlp.up), mask_(mlp.output_mask) {}

  std::vector<Tensor> run() {
    make_results();
    if (is_empty()) {
      set_to_zero(results_);
    } else {
      compute();
    }
    erase_undefined(results_);
    return std::move(results_);
  }

 private:
  void compute() {
    if (wants_gate()) grad_gate_ = take_rows(workspace_, dtype_, chunk_rows(), hidden_features());
    if (wants_up()) grad_up_ = take_rows(workspace_, dtype_, chunk_rows(), hidden_features());
    if (wants_gate() || wants_up()) {
      grad_output_.take(workspace_, chunk_rows());
      to_hidden_ = product_with(down_layer(), /*transposed=*/false);
    }
    if (mask_[0]) {
      by_gate_ = product_with(gate_layer(), /*transposed=*/false);
      by_gate_.a = constant(grad_gate_);
      by_up_ = product_with(up_layer(), /*transposed=*/false);
      by_up_.a = constant(grad_up_);
    }
    pack_all(panels_, dtype_, threads_);
    sum_gradients([&](int64_t row, int64_t rows, c10::SmallVectorImpl<ParameterGradients>& parameters) {
      if (wants_gate() || wants_up()) run_chunk(row, rows);
      add_parameters(row, parameters);
    });
  }

  bool wants_gate() const { return mask_[0] || mask_[1] || mask_[4]; }
  bool wants_up() const { return mask_[0] || mask_[2] || mask_[5]; }

  void make_results() {
    results_.resize(mask_.size());
    if (mask_[0]) results_[0] = rows_result(gate_layer().in_features);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (mask_[1 + i]) results_[1 + i] = empty_parameter({layers_[i].out_features, layers_[i].in_features});
      if (mask_[4 + i]) results_[4 + i] = empty_parameter({layers_[i].out_features});
    }
  }

  // The gradients of gate, up and input.
  void run_chunk(int64_t row, int64_t rows) {
    c10::SmallVector<Stage, 3> stages;
    to_hidden_.a = grad_output_.from(row, stages);
    const GatedBackwardArguments projections{gate_.from(row), up_.from(row), grad_gate_, grad_up_,
                                             activation_.params()};
    stages.push_back({.products = {to_hidden_},
                      .columns = hidden_features(),
                      .epilogue = {activation_kernels().gated_layer_backward, &projections}});
    const StoreArguments input{rows_of(results_[0], row), /*add=*/false};
    if (mask_[0]) {
      stages.push_back({.products = {by_gate_, by_up_},
                        .columns = gate_layer().in_features,
                        .epilogue = {gemm_kernels(dtype_).store, &input}});
    }
    run_stages(stages, dtype_, rows, threads_);
  }

  void add_parameters(int64_t row, c10::SmallVectorImpl<ParameterGradients>& parameters) const {
    const auto add = [&](size_t layer, ConstRows dz, bool dz_converted, const Panels& input) {
      const Tensor& weight = results_[1 + layer];
      const Tensor& bias = results_[4 + layer];
      if (!weight.defined() && !bias.defined()) return;
      parameters.push_back({dz, dz_converted, layers_[layer].out_features, input, weight, bias});
    };
    const Panels input{gemm_kernels(dtype_).pack,
                       {input_.tensor().from(row), {}, 0, gate_layer().in_features, nullptr, {}}};
    const Panels hidden{activation_kernels().pack_gated,
                        {gate_.from(row), up_.from(row), 0, hidden_features(), nullptr, activation_.params()}};
    add(0, constant(grad_gate_), /*dz_converted=*/true, input);
    add(1, constant(grad_up_), /*dz_converted=*/true, input);
    add(2, grad_output_.tensor().from(row), /*dz_converted=*/false, hidden);
  }

  LeftHand grad_output_;
  RowView gate_, up_;
  std::array<bool, 7> mask_;  // input, the three weights, the three biases
  std::vector<Tensor> results_;
  Rows grad_gate_{nullptr, 0}, grad_up_{nullptr, 0};
  Product to_hidden_{}, by_gate_{}, by_up_{};
};

}  // namespace

std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves) {
  if (!use_gemm(mlp.input, weights_of(mlp), Pass::forward)) return std::nullopt;
  return Forward(mlp).run(saves);
}

std::optional<std::vector<Tensor>> try_gated_mlp_backward(const GatedMlpBackwardArguments& mlp) {
  if (!use_gemm(mlp.input, weights_of(mlp), Pass::backward)) return std::nullopt;
  return Backward(mlp).run();
}

}  // namespace fastops::cpu
