// mlp and linear_act as chains of matrix products.
#include "backends/cpu/chain.h"
#include "backends/cpu/networks.h"
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
    if (hold_nothing(output) && (!saved || hold_nothing(*saved))) return output;
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
  explicit Backward(const MlpBackwardArguments& mlp)
      : Layers(mlp, 2), backward_(mlp), lowest_(mlp.lowest_wanted()), grad_output_(mlp.grad_output, dtype_) {
    for (size_t i = 0; i < mlp.layers(); ++i) {
      const bool last = i + 1 == mlp.layers();
      if (i < mlp.saved.size()) {
        saved_.emplace_back(mlp.saved[i]);
      } else {
        saved_.emplace_back(last && mlp.needs_output() ? mlp.output : mlp.grad_output);  // the latter: not read
      }
    }
  }

  std::vector<Tensor> run() {
    make_results();
    if (is_empty()) {
      set_to_zero(results_);
    } else if (lowest_ < backward_.output_mask.size()) {
      compute();
    }
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      if (backward_.wants_weight(i)) results_[1 + 2 * i] = in_layout_of(mlp_.weights[i], results_[1 + 2 * i]);
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

  void make_results() {
    results_.resize(backward_.output_mask.size());
    if (backward_.wants_input()) results_[0] = rows_result(in_features(0));
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      if (backward_.wants_weight(i)) results_[1 + 2 * i] = empty_parameter({out_features(i), in_features(i)});
      if (backward_.wants_bias(i)) results_[2 + 2 * i] = empty_parameter({out_features(i)});
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
      if (backward_.wants_weight(i) || backward_.wants_bias(i)) parameters.push_back(parameter_gradients(i, dz, row));
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

  const MlpBackwardArguments& backward_;
  size_t lowest_;
  LeftHand grad_output_;
  c10::SmallVector<RowView, 4> saved_;
  std::vector<Tensor> results_;
  c10::SmallVector<Product, 4> products_;
  c10::SmallVector<Rows, 4> dz_;
};

}  // namespace

std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
  if (!use_gemm(mlp.input, mlp.weights, Pass::forward)) return std::nullopt;
  return Forward(mlp).run(saved);
}

std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp) {
  if (!use_gemm(mlp.input, mlp.weights, Pass::backward)) return std::nullopt;
  return Backward(mlp).run();
}

}  // namespace fastops::cpu
