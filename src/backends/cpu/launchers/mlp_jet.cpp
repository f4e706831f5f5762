// mlp_jet as a chain of matrix products: the rows of a point go through it together.
#include "backends/cpu/launchers/chain.h"

namespace fastops::cpu {
namespace {

class JetLayers : protected Chain {
 protected:
  JetLayers(Caller& caller, const MlpJetCall& mlp, int64_t passes)
      : Chain(caller, mlp.dtype, mlp.rows, mlp.layers.size(), passes * operations(mlp.layers), mlp.rows_of_point()),
        mlp_(mlp),
        layers_(mlp.layers) {}

  JetArguments jet(size_t layer) const {
    const Activation activation = layers_[layer].activation;
    const bool identity = activation == Activation::identity;
    return {identity ? nullptr : &kernels(activation, computed(dtype_)),
            layers_[layer].params,
            mlp_.directions,
            mlp_.seconds,
            mlp_.each,
            mlp_.trace_weights};
  }

  const MlpJetCall& mlp_;
  std::span<const Layer> layers_;
};

class Forward : JetLayers {
 public:
  Forward(Caller& caller, const MlpJetCall& mlp, ConstRows input, Rows output)
      : JetLayers(caller, mlp, 1),
        input_(input, layers_[0].in_features, dtype_),
        output_(output),
        products_(caller, layers_.size()),
        hidden_(caller, layers_.size()),
        arguments_(caller, layers_.size()) {
    input_.take(caller, operand(dtype_), chunk_rows());
    for (const Layer& layer : layers_) {
      products_.push_back(product_with(layer, /*transposed=*/true));
      if (&layer != &layers_.back()) hidden_.push_back(take_chunk(layer.out_features));
    }
    pack();
    for_each_chunk([&](int64_t row, int64_t rows) { run_chunk(row, rows); });
  }

 private:
  void run_chunk(int64_t row, int64_t rows) {
    arguments_.clear();
    ConstRows a = input_.from(row, stages_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      JetForwardArguments& to = arguments_.push_back({jet(i), layer.bias, {}, {}, {}, operands_as_stored()});
      if (i + 1 < layers_.size()) {
        to.next = hidden_[i];
      } else {
        to.post = from(output_, row);
      }
      if (layer.kept.data) to.pre = from(layer.kept, row);
      Stage& stage = stages_.push_back({.products = {products_[i]}, .product_count = 1, .columns = layer.out_features});
      stage.products[0].a = a;
      stage.epilogue = {gemm_kernels(dtype_).jet_forward, &to};
      a = constant(to.next);
    }
    run(rows);
  }

  LeftHand input_;
  Rows output_;
  List<Product> products_;
  List<Rows> hidden_;
  List<JetForwardArguments> arguments_;
};

class Backward : JetLayers {
 public:
  Backward(Caller& caller, const MlpJetCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad)
      : JetLayers(caller, mlp, 2),
        input_(input),
        grad_output_(grad_output, layers_.back().out_features, dtype_),
        input_grad_(input_grad),
        products_(caller, layers_.size(), Product{}),
        dz_(caller, layers_.size(), Rows{nullptr, 0}),
        values_(caller, layers_.size(), Rows{nullptr, 0}),
        arguments_(caller, layers_.size()) {
    const size_t layers = layers_.size();
    while (!input_grad_.data && first_layer_ < layers && !wants_parameters(first_layer_)) ++first_layer_;
    if (first_layer_ == layers) return;
    const bool through_last = layers_.back().activation != Activation::identity;
    grad_output_.take(caller, through_last ? computed(dtype_) : operand(dtype_), chunk_rows());
    for (size_t i = layers; i-- > first_layer_;) {
      if (has_product(i)) products_[i] = product_with(layers_[i], /*transposed=*/false);
      if (i + 1 < layers || through_last) dz_[i] = take_chunk(layers_[i].out_features);
      if (i > 0 && layers_[i].weight_grad) {
        values_[i - 1] = take_rows(caller, dtype_, chunk_rows(), layers_[i].in_features);
      }
    }
    pack();
    sum_gradients(layers, [&](int64_t row, int64_t rows, List<ParameterGradients>& parameters) {
      run_chunk(row, rows, parameters);
    });
  }

 private:
  bool wants_parameters(size_t layer) const { return layers_[layer].weight_grad || layers_[layer].bias_grad; }
  // Whether the gradient goes on below the layer; also for what its own weight's gradient takes, which is computed on
  // the way.
  bool has_product(size_t layer) const {
    return layer > first_layer_ || input_grad_.data || (layer > 0 && layers_[layer].weight_grad);
  }

  // From the last layer's dz down to the input's gradient.
  void run_chunk(int64_t row, int64_t rows, List<ParameterGradients>& parameters) {
    const size_t last = layers_.size() - 1;
    arguments_.clear();
    ConstRows dz = grad_output_.from(row, stages_);
    if (dz_[last].data) {
      stages_.push_back(
          {.source = dz, .columns = layers_[last].out_features, .epilogue = through_activation(last, row)});
      dz = constant(dz_[last]);
    }
    const StoreArguments input_gradient{from(input_grad_, row), /*add=*/false};
    for (size_t i = last + 1; i-- > first_layer_;) {
      if (wants_parameters(i)) parameters.push_back(parameter_gradients(i, dz, row));
      if (!has_product(i)) break;
      Stage& stage =
          stages_.push_back({.products = {products_[i]}, .product_count = 1, .columns = layers_[i].in_features});
      stage.products[0].a = dz;
      if (i == 0) {
        stage.epilogue = {gemm_kernels(dtype_).store, &input_gradient};
      } else {
        stage.epilogue = through_activation(i - 1, row);
        dz = constant(dz_[i - 1]);
      }
    }
    run(rows);
  }

  Epilogue through_activation(size_t i, int64_t row) {
    const JetBackwardArguments& arguments =
        arguments_.push_back({jet(i), constant(from(layers_[i].kept, row)), dz_[i], values_[i], operands_as_stored()});
    return {gemm_kernels(dtype_).jet_backward, &arguments};
  }

  ParameterGradients parameter_gradients(size_t i, ConstRows dz, int64_t row) const {
    const Layer& layer = layers_[i];
    const Panels input{gemm_kernels(dtype_).pack,
                       {i == 0 ? from(input_, row) : constant(values_[i - 1]), {}, 0, layer.in_features, nullptr}};
    return {dz,
            /*dz_is_operand=*/true,
            layer.out_features,
            input,
            layer.weight_grad,
            layer.bias_grad,
            reads_matrix(layer.in_features),
            mlp_.rows_of_point()};
  }

  size_t first_layer_ = 0;  // the lowest that has something to compute
  ConstRows input_;
  LeftHand grad_output_;
  Rows input_grad_;
  List<Product> products_;
  List<Rows> dz_;
  List<Rows> values_;  // what the hidden layers gave
  List<JetBackwardArguments> arguments_;
};

}  // namespace

void mlp_jet_forward(Caller& caller, const MlpJetCall& mlp, ConstRows input, Rows output) {
  Forward(caller, mlp, input, output);
}

void mlp_jet_backward(Caller& caller, const MlpJetCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  Backward(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
