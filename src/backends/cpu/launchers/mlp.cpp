// mlp and linear_act as chains of matrix products.
#include "backends/cpu/launchers/chain.h"

namespace fastops::cpu {
namespace {

class Layers : protected Chain {
 protected:
  Layers(Caller& caller, const MlpCall& mlp, int64_t passes)
      : Chain(caller, mlp.dtype, mlp.rows, mlp.layers.size(), passes * operations(mlp.layers)), layers_(mlp.layers) {}

  const Kernels& kernels_of(size_t layer) const { return kernels(layers_[layer].activation, dtype_); }

  std::span<const Layer> layers_;
};

class Forward : Layers {
 public:
  Forward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output)
      : Layers(caller, mlp, 1),
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
      LayerForwardArguments& to = arguments_.push_back({layer.bias, {}, {}, {}, layer.params, operands_as_stored()});
      if (i + 1 < layers_.size()) {
        to.next = hidden_[i];
      } else {
        to.post = from(output_, row);
      }
      if (layer.kept.data) (layer.keeps_output ? to.post : to.pre) = from(layer.kept, row);
      Stage& stage = stages_.push_back({.products = {products_[i]}, .product_count = 1, .columns = layer.out_features});
      stage.products[0].a = a;
      stage.epilogue = {kernels_of(i).layer_forward, &to};
      a = constant(to.next);
    }
    run(rows);
  }

  LeftHand input_;
  Rows output_;
  List<Product> products_;
  List<Rows> hidden_;
  List<LayerForwardArguments> arguments_;
};

class Backward : Layers {
 public:
  Backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad)
      : Layers(caller, mlp, 2),
        input_(input),
        grad_output_(grad_output, layers_.back().out_features, dtype_),
        input_grad_(input_grad),
        products_(caller, layers_.size(), Product{}),
        dz_(caller, layers_.size(), Rows{nullptr, 0}),
        arguments_(caller, layers_.size()) {
    const size_t layers = layers_.size();
    while (!input_grad_.data && first_layer_ < layers && !wants_parameters(first_layer_)) ++first_layer_;
    if (first_layer_ == layers) return;
    const bool through_last = layers_.back().activation != Activation::identity;
    grad_output_.take(caller, through_last ? computed(dtype_) : operand(dtype_), chunk_rows());
    for (size_t i = layers; i-- > first_layer_;) {
      if (has_product(i)) products_[i] = product_with(layers_[i], /*transposed=*/false);
      if (i + 1 < layers || through_last) dz_[i] = take_chunk(layers_[i].out_features);
    }
    pack();
    sum_gradients(layers, [&](int64_t row, int64_t rows, List<ParameterGradients>& parameters) {
      run_chunk(row, rows, parameters);
    });
  }

 private:
  bool wants_parameters(size_t layer) const { return layers_[layer].weight_grad || layers_[layer].bias_grad; }
  // Whether the gradient goes on below the layer.
  bool has_product(size_t layer) const { return layer > first_layer_ || input_grad_.data; }

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
    const Layer& layer = layers_[i];
    const LayerBackwardArguments& arguments =
        arguments_.push_back({constant(from(layer.kept, row)), dz_[i], layer.params, operands_as_stored()});
    return {layer.keeps_output ? kernels_of(i).layer_backward_from_output : kernels_of(i).layer_backward, &arguments};
  }

  ParameterGradients parameter_gradients(size_t i, ConstRows dz, int64_t row) const {
    const Layer& layer = layers_[i];
    const bool is_first = i == 0;
    const bool as_input = is_first || layers_[i - 1].keeps_output;
    const Panels input{as_input ? gemm_kernels(dtype_).pack : kernels_of(i - 1).pack_activated,
                       {is_first ? from(input_, row) : constant(from(layers_[i - 1].kept, row)),
                        {},
                        0,
                        layer.in_features,
                        nullptr,
                        is_first ? ActivationParams{} : layers_[i - 1].params,
                        as_input ? nullptr : &kernels_of(i - 1)}};
    const bool in_place = as_input && reads_matrix(layer.in_features);
    return {dz, /*dz_is_operand=*/true, layer.out_features, input, layer.weight_grad, layer.bias_grad, in_place};
  }

  size_t first_layer_ = 0;  // the lowest that has something to compute
  ConstRows input_;
  LeftHand grad_output_;
  Rows input_grad_;
  List<Product> products_;
  List<Rows> dz_;
  List<LayerBackwardArguments> arguments_;
};

}  // namespace

void mlp_forward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output) {
  Forward(caller, mlp, input, output);
}

void mlp_backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  Backward(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
