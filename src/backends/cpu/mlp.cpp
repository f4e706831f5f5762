// mlp and linear_act as chains of matrix products.
#include "ops/mlp.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "backends/cpu/gemm.h"

namespace fastops::cpu {
namespace {

// The left-hand matrix of a chain's first product: a tensor itself, or a copy of it in the type that is computed with
// and with a stride that the caches like.
class LeftHand {
 public:
  LeftHand(const Tensor& tensor, Dtype dtype) : tensor_(tensor), dtype_(dtype) {}

  void take(Workspace& workspace, int64_t rows) {
    const int64_t stride = tensor_.from(0).stride;
    const bool regular = rows == 1 || stride * accumulator_size(dtype_) % 4096 != 0;
    if (dtype_ != computed(dtype_) || !regular) copy_ = take_rows(workspace, dtype_, rows, tensor_.columns());
  }
  const RowView& tensor() const { return tensor_; }

  // The rows from `row` on. The stage that makes the copy is added to `stages`.
  ConstRows from(int64_t row, c10::SmallVectorImpl<Stage>& stages) const {
    if (!copy_.data) return tensor_.from(row);
    Stage stage;
    stage.source = tensor_.from(row);
    stage.target = copy_;
    stage.columns = tensor_.columns();
    stages.push_back(std::move(stage));
    return constant(copy_);
  }

 private:
  RowView tensor_;
  Dtype dtype_;
  Rows copy_{nullptr, 0};
};

// The arguments as the kernels want them, and the memory of one call.
class Layers {
 public:
  Layers(const MlpArguments& mlp, int64_t passes)
      : mlp_(mlp), dtype_(dtype_of(mlp.input)), input_(mlp.input, dtype_), rows_(row_count(mlp.input)) {
    int64_t operations = 0;
    for (size_t i = 0; i < mlp.layers(); ++i) {
      weights_.emplace_back(mlp.weights[i]);
      biases_.push_back(mlp.biases[i].defined() ? mlp.biases[i].contiguous() : Tensor());
      operations += rows_ * in_features(i) * out_features(i);
    }
    threads_ = threads_for(passes * operations);
  }

  int64_t rows() const { return rows_; }
  int64_t in_features(size_t layer) const { return mlp_.weights[layer].size(1); }
  int64_t out_features(size_t layer) const { return mlp_.weights[layer].size(0); }
  const Kernels& kernels_of(size_t layer) const { return kernels(mlp_.activation_of(layer).id, dtype_); }
  ActivationParams params_of(size_t layer) const { return mlp_.activation_of(layer).params(); }
  bool has_bias(size_t layer) const { return biases_[layer].defined(); }

 protected:
  // The product of `a` with a layer's weight, packed.
  Product with_weight(size_t layer, ConstRows a, bool transposed) {
    const int64_t depth = transposed ? in_features(layer) : out_features(layer);
    const int64_t columns = transposed ? out_features(layer) : in_features(layer);
    void* panels = take_panels(workspace_, dtype_, depth, columns);
    const GemmKernels& gemm = gemm_kernels(dtype_);
    panels_.push_back(
        {transposed ? gemm.pack_transposed : gemm.pack, {weights_[layer].from(0), {}, depth, columns, panels, {}}});
    return {a, panels, depth};
  }

  static int64_t row_count(const Tensor& tensor) {
    int64_t rows = 1;
    for (int64_t d = 0; d + 1 < tensor.dim(); ++d) rows *= tensor.size(d);
    return rows;
  }

  const MlpArguments& mlp_;
  Dtype dtype_;
  LeftHand input_;
  int64_t rows_;
  int64_t threads_;
  c10::SmallVector<RowView, 4> weights_;
  c10::SmallVector<Tensor, 4> biases_;
  Workspace workspace_;
  c10::SmallVector<Panels, 4> panels_;
};

// The most rows that go through all layers before the next ones: their intermediate results take memory.
constexpr int64_t chunk_rows = 2048;

class Forward : Layers {
 public:
  explicit Forward(const MlpArguments& mlp) : Layers(mlp, 1) {}

  Tensor run(std::vector<Tensor>* saved) {
    Tensor output = empty_result(mlp_.layers() - 1);
    if (saved) {
      for (size_t i = 0; i < mlp_.layers(); ++i) {
        if (mlp_.saves(i)) saved->push_back(empty_result(i));
      }
    }
    if (rows_ == 0) return output;
    const int64_t chunk = std::min(rows_, chunk_rows);
    c10::SmallVector<Product, 4> products;
    c10::SmallVector<Rows, 4> hidden;
    input_.take(workspace_, chunk);
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      products.push_back(with_weight(i, {}, /*transposed=*/true));
      if (i + 1 < mlp_.layers()) hidden.push_back(take_rows(workspace_, dtype_, chunk, out_features(i)));
    }
    pack_all(panels_, dtype_, threads_);
    const Parts chunks(rows_, chunk);
    for (int64_t c = 0; c < chunks.count; ++c)
      run_chunk(chunks.begin(c), chunks.size(c), products, hidden, output, saved);
    return output;
  }

 private:
  Tensor empty_result(size_t layer) const {
    auto sizes = mlp_.input.sizes().vec();
    sizes.back() = out_features(layer);
    return at::empty(sizes, mlp_.input.options());
  }

  Rows rows_of(const Tensor& tensor, int64_t row) const {
    return from_row(Rows{byte_data(tensor), tensor.size(-1)}, row, dtype_);
  }

  void run_chunk(int64_t row, int64_t rows, c10::ArrayRef<Product> products, c10::ArrayRef<Rows> hidden,
                 const Tensor& output, const std::vector<Tensor>* saved) {
    c10::SmallVector<Stage, 4> stages;
    c10::SmallVector<LayerForwardArguments, 4> arguments(mlp_.layers());
    ConstRows a = input_.from(row, stages);
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      const bool last = i + 1 == mlp_.layers();
      const bool keep = saved && mlp_.saves(i);
      LayerForwardArguments& to = arguments[i];
      to = {has_bias(i) ? biases_[i].const_data_ptr() : nullptr, {}, {}, {}, params_of(i)};
      if (last) to.post = rows_of(output, row);
      if (!last) to.next = hidden[i];
      if (keep) (output_suffices(mlp_.activation_of(i)) ? to.post : to.pre) = rows_of((*saved)[i], row);
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
    if (lowest_ == mask_.size()) return {};
    const size_t layers = mlp_.layers();
    const int64_t chunk = std::min(rows_, chunk_rows);
    const size_t first_layer = lowest_ == 0 ? 0 : (lowest_ - 1) / 2;

    grad_output_.take(workspace_, chunk);
    products_.resize(layers);
    dz_.resize(layers);
    for (size_t i = layers; i-- > first_layer;) {
      if (i > first_layer || lowest_ == 0) products_[i] = with_weight(i, {}, /*transposed=*/false);
      const bool as_given = i + 1 == layers && mlp_.output_activation.id == Activation::identity;
      if (!as_given) dz_[i] = take_rows(workspace_, dtype_, chunk, out_features(i));
    }
    pack_all(panels_, dtype_, threads_);

    GradientSums sums(workspace_, dtype_, threads_);
    const Parts chunks(rows_, std::max<int64_t>(1, chunk));
    for (int64_t c = 0; c < std::max<int64_t>(1, chunks.count); ++c) {
      const int64_t row = rows_ == 0 ? 0 : chunks.begin(c);
      const int64_t rows = rows_ == 0 ? 0 : chunks.size(c);
      run_chunk(row, rows, first_layer);
      if (c == 0) sums.prepare(parameters_, chunk, chunks.count <= 1);
      sums.add(parameters_, rows, c == 0);
    }
    sums.finish(parameters_);
    results_.erase(std::remove_if(results_.begin(), results_.end(), [](const Tensor& t) { return !t.defined(); }),
                   results_.end());
    return std::move(results_);
  }

 private:
  bool wants_weight(size_t layer) const { return mask_[1 + 2 * layer]; }
  bool wants_bias(size_t layer) const { return mask_[2 + 2 * layer]; }

  void make_results() {
    const auto options = mlp_.input.options();
    results_.resize(mask_.size());
    if (mask_[0]) results_[0] = at::empty(mlp_.input.sizes(), options);
    for (size_t i = 0; i < mlp_.layers(); ++i) {
      if (wants_weight(i)) results_[1 + 2 * i] = at::empty({out_features(i), in_features(i)}, options);
      if (wants_bias(i)) results_[2 + 2 * i] = at::empty({out_features(i)}, options);
    }
  }

  // From the last layer's dz down to the input's gradient; fills parameters_.
  void run_chunk(int64_t row, int64_t rows, size_t first_layer) {
    const size_t layers = mlp_.layers();
    c10::SmallVector<Stage, 6> stages;
    c10::SmallVector<LayerBackwardArguments, 4> arguments(layers);
    parameters_.clear();

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
      if (wants_weight(i) || wants_bias(i)) parameters_.push_back(parameter_gradients(i, dz, row));
      if (i == first_layer && lowest_ > 0) break;
      Stage stage;
      stage.products.push_back(products_[i]);
      stage.products[0].a = dz;
      stage.columns = in_features(i);
      if (i == 0) {
        input_gradient = {from_row(Rows{byte_data(results_[0]), in_features(0)}, row, dtype_), false};
        stage.epilogue = {gemm_kernels(dtype_).store, &input_gradient};
      } else {
        stage.epilogue = through_activation(i - 1, row, arguments[i - 1]);
        dz = constant(dz_[i - 1]);
      }
      stages.push_back(std::move(stage));
    }
    if (rows > 0) run_stages(stages, dtype_, rows, threads_);
  }

  Epilogue through_activation(size_t layer, int64_t row, LayerBackwardArguments& arguments) const {
    arguments = {saved_[layer].from(row), dz_[layer], params_of(layer)};
    const bool from_output = output_suffices(mlp_.activation_of(layer));
    return {from_output ? kernels_of(layer).layer_backward_from_output : kernels_of(layer).layer_backward, &arguments};
  }

  ParameterGradients parameter_gradients(size_t layer, ConstRows dz, int64_t row) const {
    const bool as_input = layer == 0 || output_suffices(mlp_.activation);
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
  c10::SmallVector<ParameterGradients, 4> parameters_;
};

bool use_gemm(const MlpArguments& mlp) {
  int64_t weights = 0;
  for (const Tensor& weight : mlp.weights) weights += weight.numel();
  const int64_t columns = mlp.input.size(-1);
  return use_gemm(dtype_of(mlp.input), columns > 0 ? mlp.input.numel() / columns : 1, weights);
}

Tensor mlp(FASTOPS_MLP_PARAMETERS) {
  const MlpArguments arguments = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  if (!use_gemm(arguments)) return layered_mlp(arguments, nullptr);
  return Forward(arguments).run(nullptr);
}

std::tuple<Tensor, std::vector<Tensor>> mlp_forward(FASTOPS_MLP_PARAMETERS) {
  const MlpArguments arguments = check_mlp("mlp", FASTOPS_MLP_ARGUMENTS);
  std::vector<Tensor> saved;
  Tensor output = use_gemm(arguments) ? Forward(arguments).run(&saved) : layered_mlp(arguments, &saved);
  return {std::move(output), std::move(saved)};
}

std::vector<Tensor> mlp_backward(const Tensor& grad_output, const Tensor& input, at::TensorList weights,
                                 const OptionalTensors& biases, const std::optional<Tensor>& output,
                                 at::TensorList saved, std::string_view activation, std::string_view output_activation,
                                 c10::ArrayRef<double> params, c10::ArrayRef<double> output_params,
                                 const c10::List<bool>& output_mask) {
  const MlpArguments arguments = check_mlp_backward(grad_output, input, weights, biases, output, saved, activation,
                                                    output_activation, params, output_params, output_mask);
  if (!use_gemm(arguments)) return layered_mlp_backward(arguments, grad_output, output, saved, output_mask);
  return Backward(arguments, grad_output, output, saved, output_mask).run();
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  std::string_view activation, c10::ArrayRef<double> params) {
  const MlpArguments arguments = check_linear_act(input, weight, bias, activation, params);
  if (!use_gemm(arguments)) return layered_mlp(arguments, nullptr);
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
