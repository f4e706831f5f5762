// The chains of mlp and mlp_jet: layers of one form, forward and backward. A form says what becomes of the sums of
// products:
//
//   struct Form {
//     using Call = MlpCall;
//     using ForwardArguments = ..., BackwardArguments = ...;  // of its epilogues
//     static int64_t unit(const Call&);  // so many rows belong together; a layer's bias is for the first of them
//
//     explicit Form(const Call&);
//     ForwardArguments forward(const Layer&, bool as_stored) const;
//     BackwardArguments backward(const Layer&, ConstRows kept, Rows dz, Rows values, bool as_stored) const;
//     Epilogue forward_epilogue(const Layer&, const ForwardArguments&) const;
//     EpilogueKernel backward_kernel(const Layer&) const;
//     // Whether what a layer keeps are its values. Else the backward epilogue computes these again, for the
//     // gradient of the weight above.
//     bool keeps_values(const Layer&) const;
//   };
#pragma once

#include "backends/cpu/launchers/chain.h"

namespace fastops::cpu {

template <class Form>
class Layers : protected Chain {
 protected:
  using Call = typename Form::Call;

  Layers(Caller& caller, const Call& mlp, int64_t passes)
      : Chain(caller, mlp.dtype, mlp.rows, mlp.layers.size(), passes * operations(mlp.layers), Form::unit(mlp)),
        form_(mlp),
        layers_(mlp.layers) {}

  Form form_;
  std::span<const Layer> layers_;
};

template <class Form>
class LayersForward : Layers<Form> {
  using Base = Layers<Form>;
  using Base::caller_, Base::dtype_, Base::stages_, Base::form_, Base::layers_;

 public:
  LayersForward(Caller& caller, const typename Base::Call& mlp, ConstRows input, Rows output)
      : Base(caller, mlp, 1),
        input_(input, layers_[0].in_features, dtype_),
        output_(output),
        products_(caller, layers_.size()),
        hidden_(caller, layers_.size()),
        arguments_(caller, layers_.size()) {
    input_.take(caller, operand(dtype_), this->chunk_rows());
    for (const Layer& layer : layers_) {
      products_.push_back(this->product_with(layer, /*transposed=*/true));
      if (&layer != &layers_.back()) hidden_.push_back(this->take_chunk(layer.out_features));
    }
    this->pack();
    this->for_each_chunk([&](int64_t row, int64_t rows) { run_chunk(row, rows); });
  }

 private:
  void run_chunk(int64_t row, int64_t rows) {
    arguments_.clear();
    ConstRows a = input_.from(row, stages_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      auto& to = arguments_.push_back(form_.forward(layer, operands_as_stored(dtype_)));
      if (i + 1 < layers_.size()) {
        to.next = hidden_[i];
      } else {
        to.post = this->from(output_, row);
      }
      if (layer.kept.data) (layer.keeps_output ? to.post : to.pre) = this->from(layer.kept, row);
      Stage& stage = stages_.push_back({.products = {products_[i]}, .product_count = 1, .columns = layer.out_features});
      stage.products[0].a = a;
      stage.epilogue = form_.forward_epilogue(layer, to);
      a = constant(to.next);
    }
    this->run(rows);
  }

  LeftHand input_;
  Rows output_;
  List<Product> products_;
  List<Rows> hidden_;
  List<typename Form::ForwardArguments> arguments_;
};

template <class Form>
class LayersBackward : Layers<Form> {
  using Base = Layers<Form>;
  using Base::caller_, Base::dtype_, Base::stages_, Base::form_, Base::layers_;

 public:
  LayersBackward(Caller& caller, const typename Base::Call& mlp, ConstRows input, ConstRows grad_output,
                 Rows input_grad)
      : Base(caller, mlp, 2),
        unit_(Form::unit(mlp)),
        input_(input),
        grad_output_(grad_output, layers_.back().out_features, dtype_),
        input_grad_(input_grad),
        first_layer_(first_layer(layers_, input_grad.data != nullptr)),
        products_(caller, layers_.size(), Product{}),
        dz_(caller, layers_.size(), Rows{nullptr, 0}),
        values_(caller, layers_.size(), Rows{nullptr, 0}),
        arguments_(caller, layers_.size()) {
    const size_t layers = layers_.size();
    if (first_layer_ == layers) return;
    const bool through_last = layers_.back().activation != Activation::identity;
    grad_output_.take(caller, through_last ? computed(dtype_) : operand(dtype_), this->chunk_rows());
    for (size_t i = layers; i-- > first_layer_;) {
      const Layer& layer = layers_[i];
      if (has_product(i)) products_[i] = this->product_with(layer, /*transposed=*/false);
      if (i + 1 < layers || through_last) dz_[i] = this->take_chunk(layer.out_features);
      if (!has_product(i) && wants_values_below(i)) zeros_ = this->take_zeros(layer.in_features);
      if (wants_values_below(i)) values_[i - 1] = take_rows(caller, dtype_, this->chunk_rows(), layer.in_features);
    }
    this->pack();
    this->sum_gradients(layers, [&](int64_t row, int64_t rows, List<ParameterGradients>& parameters) {
      run_chunk(row, rows, parameters);
    });
  }

 private:
  bool wants_values_below(size_t layer) const {
    return layer > 0 && layers_[layer].weight_grad && !form_.keeps_values(layers_[layer - 1]);
  }
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
    const StoreArguments input_gradient{this->from(input_grad_, row), /*add=*/false};
    for (size_t i = last + 1; i-- > first_layer_;) {
      if (wants_parameters(layers_[i])) parameters.push_back(parameter_gradients(i, dz, row));
      if (!has_product(i) && !wants_values_below(i)) break;
      Stage& stage = stages_.push_back({.source = zeros_, .columns = layers_[i].in_features});
      if (has_product(i)) {
        stage.products[stage.product_count++] = products_[i];
        stage.products[0].a = dz;
      }
      if (i == 0) {
        stage.epilogue = storing(dtype_, input_gradient);
      } else {
        stage.epilogue = through_activation(i - 1, row);
        dz = constant(dz_[i - 1]);
      }
    }
    this->run(rows);
  }

  Epilogue through_activation(size_t i, int64_t row) {
    const Layer& layer = layers_[i];
    const ConstRows kept = constant(this->from(layer.kept, row));
    const auto& arguments =
        arguments_.push_back(form_.backward(layer, kept, dz_[i], values_[i], operands_as_stored(dtype_)));
    return {form_.backward_kernel(layer), &arguments};
  }

  ParameterGradients parameter_gradients(size_t i, ConstRows dz, int64_t row) const {
    const Layer& layer = layers_[i];
    const ConstRows input = i == 0                  ? this->from(input_, row)
                            : wants_values_below(i) ? constant(values_[i - 1])
                                                    : constant(this->from(layers_[i - 1].kept, row));
    return {dz,
            /*dz_is_operand=*/true,
            layer.out_features,
            {gemm_kernels(dtype_).pack, {input, 0, layer.in_features, nullptr}},
            layer.weight_grad,
            layer.bias_grad,
            this->reads_matrix(layer.in_features),
            unit_};
  }

  int64_t unit_;
  ConstRows input_;
  LeftHand grad_output_;
  Rows input_grad_;
  size_t first_layer_;
  List<Product> products_;
  List<Rows> dz_;
  ConstRows zeros_{nullptr, 0};
  List<Rows> values_;  // of the hidden layers that keep z
  List<typename Form::BackwardArguments> arguments_;
};

}  // namespace fastops::cpu
