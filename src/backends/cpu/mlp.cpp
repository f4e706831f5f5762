// mlp and linear_act as chains of matrix products.
#include "ops/mlp.h"

#include <torch/library.h>

#include <algorithm>

#include "backends/cpu/bias_act.h"
#include "backends/cpu/chain.h"
#include "ops/matrix.h"

namespace fastops::cpu {
namespace {

// The arguments as the kernels want them, and the memory of one call.
class Layers : protected Chain {
 protected:
  Layers(const MlpArguments& mlp, int64_t passes) : Chain(mlp.input, mlp.weights, mlp.biases, passes), mlp_(mlp) {}

  int64_t in_features(size_t layer) const { return layers_[layer].in_features; }
  int64_t out_features(size_t layer) const { return layers_[layer].out_features; }
  const Kernels& kernels_of(size_t layer) const { return kernels(mlp_.activation_of(layer).id, dtype_); }
  ActivationParams params_of(size_t layer) const { return mlp_.activation_of(layer).params(); }

  const MlpArguments& mlp_;
};

class Forward : Layers {
 public:
  explicit Forward(const MlpArguments& mlp) : Layers(mlp, 1) {}

  Tensor run(std::vector<Tensor>* saved) {
    Tensor output = rows_result(out_features(mlp_.layers() - 1));
    if (saved) {
      for (size_t i = 0; i < mlp_.layers(); ++i) {
        if (mlp_.saves(i)) saved->push_back(rows_result(out_features(i)));
      }
    }
    const auto holds_nothing = [](const Tensor& result) { return result.numel() == 0; };
    if (holds_nothing(output) && (!saved || std::all_of(saved->begin(), saved->end(), holds_nothing))) return output;
    c10::SmallVector<Product, 4> products;
    c10::SmallVector<Rows, 4> hidden;
    input_.take(workspace_, chunk_rows());
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      products.push_back(product_with(layers_[i], /*transposed=*/true));
      if (i + 1 < mlp_.layers()) hidden.push_back(take_rows(workspace_, dtype_, chunk_rows(), out_features(i)));
    }
    pack_all(panels_, dtype_, threads_);
    for_each_chunk([&](int64_t row, int64_t rows) { run_chunk(row, rows, products, hidden, output, saved); });
    return output;
  }

 private:
  void run_chunk(int64_t row, int64_t rows, c10::ArrayRef<Product> products, c10::ArrayRef<Rows> hidden,
                 const Tensor& output, const std::vector<Tensor>* saved) {
    c10::SmallVector<Stage, 4> stages;
    std::vector<LayerForwardArguments> arguments(mlp_.layers());
    ConstRows a = input_.from(row, stages);
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      const bool last = i + 1 == mlp_.layers();
      const bool keep = saved && mlp_.saves(i);
      LayerForwardArguments& to = arguments[i];
      to = {layers_[i].bias_data(), {}, {}, {}, params_of(i)};
      if (last) to.post = rows_of(output, row);
      if (!last) to.next = hidden[i];
      if (keep) (mlp_.saves_output(i) ? to.post : to.pre) = rows_of((*saved)[i], row);
      Stage stage;
      stage.products.push_back(products[i]);
      stage.products[0].a = a;
      stage.columns = out_features(i);
      stage.epilogue = {kernels_of(i).layer_forward, &to};
      stages.push_back(std::move(stage));
      a = constant(to.next);
    }
    run_stages(stages, dtype_, rows, threads_);
  }
};

class Backward : Layers {
 public:
  Backward(const MlpArguments& mlp, const Tensor& grad_output, const std::optional<Tensor>& output,
           at::TensorList saved, const c10::List<bool>& mask)
      : Layers(mlp, 2), grad_output_(grad_output, dtype_) {
    for (size_t i = 0; i < mlp.layers(); ++i) {
      const bool last = i + 1 == mlp.layers();
      if (i < saved.size()) {
        saved_.emplace_back(saved[i]);
      } else {
        saved_.emplace_back(last && mlp.needs_output() ? *output : grad_output);  // the latter for identity: not read
      }
    }
    for (bool wanted : mask) mask_.push_back(wanted);
    while (lowest_ < mask_.size() && !mask_[lowest_]) ++lowest_;
  }

  std::vector<Tensor> run() {
    make_results();
    if (is_empty()) {
      set_to_zero(results_);
    } else if (lowest_ < mask_.size()) {
      compute();
    }
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      if (wants_weight(i)) results_[1 + 2 * i] = in_layout_of(mlp_.weights[i], results_[1 + 2 * i]);
    }
    erase_undefined(results_);
    return std::move(results_);
  }

 private:
  void compute() {
    const size_t layers = mlp_.layers();
    const size_t first_layer = lowest_ == 0 ? 0 : (lowest_ - 1) / 2;

    grad_output_.take(workspace_, chunk_rows());
    products_.resize(layers);
    dz_.resize(layers);
    for (size_t i = layers; i-- > first_layer;) {
      if (i > first_layer || lowest_ == 0) products_[i] = product_with(layers_[i], /*transposed=*/false);
      const bool as_given = i + 1 == layers && mlp_.output_activation.id == Activation::identity;
      if (!as_given) dz_[i] = take_rows(workspace_, dtype_, chunk_rows(), out_features(i));
    }
    pack_all(panels_, dtype_, threads_);

    sum_gradients([&](int64_t row, int64_t rows, c10::SmallVectorImpl<ParameterGradients>& parameters) {
      run_chunk(row, rows, first_layer, parameters);
    });
  }

  bool wants_weight(size_t layer) const { return mask_[1 + 2 * layer]; }
  bool wants_bias(size_t layer) const { return mask_[2 + 2 * layer]; }

  void make_results() {
    results_.resize(mask_.size());
    if (mask_[0]) results_[0] = rows_result(in_features(0));
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      if (wants_weight(i)) results_[1 + 2 * i] = empty_parameter({out_features(i), in_features(i)});
      if (wants_bias(i)) results_[2 + 2 * i] = empty_parameter({out_features(i)});
    }
  }

  // From the last layer's dz down to the input's gradient.
  void run_chunk(int64_t row, int64_t rows, size_t first_layer,
                 c10::SmallVectorImpl<ParameterGradients>& parameters) const {
    const size_t layers = mlp_.layers();
    c10::SmallVector<Stage, 6> stages;
    std::vector<LayerBackwardArguments> arguments(layers);

    ConstRows dz = grad_output_.from(row, stages);
    if (dz_[layers - 1].data) {
      Stage stage;
      stage.source = dz;
      stage.columns = out_features(layers - 1);
      stage.epilogue = through_activation(layers - 1, row, arguments[layers - 1]);
      stages.push_back(std::move(stage));
      dz = constant(dz_[layers - 1]);
    }
    StoreArguments input_gradient{};
    for (size_t i = layers; i-- > first_layer;) {
      if (wants_weight(i) || wants_bias(i)) parameters.push_back(parameter_gradients(i, dz, row));
      if (i == first_layer && lowest_ > 0) break;
      Stage stage;
      stage.products.push_back(products_[i]);
      stage.products[0].a = dz;
      stage.columns = in_features(i);
      if (i == 0) {
        input_gradient = {rows_of(results_[0], row), false};
        stage.epilogue = {gemm_kernels(dtype_).store, &input_gradient};
      } else {
        stage.epilogue = through_activation(i - 1, row, arguments[i - 1]);
        dz = constant(dz_[i - 1]);
      }
      stages.push_back(std::move(stage));
    }
    run_stages(stages, dtype_, rows, threads_);
  }

  Epilogue through_activation(size_t layer, int64_t row, LayerBackwardArguments& arguments) const {
    arguments = {saved_[layer].from(row), dz_[layer], params_of(layer)};
    const bool from_output = mlp_.saves_output(layer);
    return {from_output ? kernels_of(layer).layer_backward_from_output : kernels_of(layer).layer_backward, &arguments};
  }

  ParameterGradients parameter_gradients(size_t layer, ConstRows dz, int64_t row) const {
    const bool as_input = layer == 0 || mlp_.saves_output(layer - 1);
    const Panels input{as_input ? gemm_kernels(dtype_).pack : kernels_of(layer - 1).pack_activated,
                       {layer == 0 ? input_.tensor().from(row) : saved_[layer - 1].from(row),
                        {},
                        0,
                        in_features(layer),
                        nullptr,
                        layer == 0 ? ActivationParams{} : params_of(layer - 1)}};
    return {dz, /*dz_converted=*/true, out_features(layer), input, results_[1 + 2 * layer], results_[2 + 2 * layer]};
  }

  LeftHand grad_output_;
  c10::SmallVector<RowView, 4> saved_;
  c10::SmallVector<bool, 9> mask_;
  size_t lowest_ = 0;  // the lowest place of the mask for which a gradient is wanted: nothing below it is computed
  std::vector<Tensor> results_;
  c10::SmallVector<Product, 4> products_;
  c10::SmallVector<Rows, 4> dz_;
};

Tensor mlp(FASTOPS_MLP_PARAMETERS, bool) {
  const MlpArguments arguments = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  if (!use_gemm(arguments.input, arguments.weights, Pass::forward)) return layered_mlp(arguments, nullptr, layer_steps);
  return Forward(arguments).run(nullptr);
}

std::tuple<Tensor, std::vector<Tensor>> mlp_forward(FASTOPS_MLP_PARAMETERS) {
  const MlpArguments arguments = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  std::vector<Tensor> saved;
  Tensor output = use_gemm(arguments.input, arguments.weights, Pass::forward)
                      ? Forward(arguments).run(&saved)
                      : layered_mlp(arguments, &saved, layer_steps);
  return {std::move(output), std::move(saved)};
}

std::vector<Tensor> mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                 const OptionalTensors& biases, const std::optional<Tensor>& output,
                                 at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                 c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                 const c10::List<bool>& output_mask) {
  const MlpArguments arguments = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                                    output_activation, params, output_params, output_mask);
  if (!use_gemm(arguments.input, arguments.weights, Pass::backward)) {
    return layered_mlp_backward(arguments, grad_output, output, saved, output_mask, layer_steps);
  }
  return Backward(arguments, grad_output, output, saved, output_mask).run();
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  std::string_view activation, c10::ArrayRef<double> params) {
  const MlpArguments arguments = check_linear_act(input, weight, bias, activation, params);
  if (!use_gemm(arguments.input, arguments.weights, Pass::forward)) return layered_mlp(arguments, nullptr, layer_steps);
  return Forward(arguments).run(nullptr);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, CPU, m) {
  m.impl("mlp", TORCH_FN(mlp));
  m.impl("mlp_forward", TORCH_FN(mlp_forward));
  m.impl("mlp_backward", TORCH_FN(mlp_backward));
  m.impl("linear_act", TORCH_FN(linear_act));
}

}  // namespace fastops::cpu
