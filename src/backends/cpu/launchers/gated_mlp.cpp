// gated_mlp as a chain of matrix products: both projections of the input in one stage, the down projection in the next.
#include <array>

#include "backends/cpu/launchers/chain.h"

namespace fastops::cpu {
namespace {

class Layers : protected Chain {
 protected:
  Layers(Caller& caller, const GatedMlpCall& mlp, int64_t passes)
      : Chain(caller, mlp.dtype, mlp.rows, 3, passes * operations(std::array{mlp.gate, mlp.up, mlp.down})), mlp_(mlp) {}

  int64_t hidden_features() const { return mlp_.down.in_features; }
  const Kernels& activation_kernels() const { return kernels(mlp_.activation, dtype_); }

  const GatedMlpCall& mlp_;
};

class Forward : Layers {
 public:
  Forward(Caller& caller, const GatedMlpCall& mlp, ConstRows input, Rows gate, Rows up, Rows output)
      : Layers(caller, mlp, 1), input_(input, mlp.gate.in_features, dtype_), gate_(gate), up_(up), output_(output) {
    input_.take(caller, operand(dtype_), chunk_rows());
    hidden_ = take_chunk(hidden_features());
    to_gate_ = product_with(mlp.gate, /*transposed=*/true);
    to_up_ = product_with(mlp.up, /*transposed=*/true);
    to_up_.sum = 1;
    to_output_ = product_with(mlp.down, /*transposed=*/true);
    to_output_.a = constant(hidden_);
    pack();
    for_each_chunk([&](int64_t row, int64_t rows) { run_chunk(row, rows); });
  }

 private:
  void run_chunk(int64_t row, int64_t rows) {
    to_gate_.a = to_up_.a = input_.from(row, stages_);
    const GatedForwardArguments projections{mlp_.gate.bias, mlp_.up.bias, from(gate_, row),          from(up_, row),
                                            hidden_,        mlp_.params,  operands_as_stored(dtype_)};
    stages_.push_back({.products = {to_gate_, to_up_},
                       .product_count = 2,
                       .columns = hidden_features(),
                       .epilogue = {activation_kernels().gated_layer_forward, &projections}});
    const LayerForwardArguments output{mlp_.down.bias, {}, from(output_, row), {}, {}, false};
    stages_.push_back({.products = {to_output_},
                       .product_count = 1,
                       .columns = mlp_.down.out_features,
                       .epilogue = through_layer(Activation::identity, dtype_, output)});
    run(rows);
  }

  LeftHand input_;
  Rows gate_, up_, output_;
  Rows hidden_{nullptr, 0};
  Product to_gate_{}, to_up_{}, to_output_{};
};

class Backward : Layers {
 public:
  Backward(Caller& caller, const GatedMlpCall& mlp, ConstRows input, ConstRows gate, ConstRows up,
           ConstRows grad_output, Rows input_grad)
      : Layers(caller, mlp, 2),
        input_(input),
        gate_(gate),
        up_(up),
        grad_output_(grad_output, mlp.down.out_features, dtype_),
        input_grad_(input_grad) {
    if (wants_gate()) grad_gate_ = take_chunk(hidden_features());
    if (wants_up()) grad_up_ = take_chunk(hidden_features());
    if (mlp.down.weight_grad) hidden_ = take_rows(caller, dtype_, chunk_rows(), hidden_features());
    if (wants_gate() || wants_up()) {
      grad_output_.take(caller, operand(dtype_), chunk_rows());
      to_hidden_ = product_with(mlp.down, /*transposed=*/false);
    } else {
      zeros_ = take_zeros(hidden_features());
    }
    if (input_grad.data) {
      by_gate_ = product_with(mlp.gate, /*transposed=*/false);
      by_gate_.a = constant(grad_gate_);
      by_up_ = product_with(mlp.up, /*transposed=*/false);
      by_up_.a = constant(grad_up_);
    }
    pack();
    sum_gradients(3, [&](int64_t row, int64_t rows, List<ParameterGradients>& parameters) {
      if (wants_gate() || wants_up() || hidden_.data) run_chunk(row, rows);
      add_parameters(row, parameters);
    });
  }

 private:
  bool wants_gate() const { return input_grad_.data || wants_parameters(mlp_.gate); }
  bool wants_up() const { return input_grad_.data || wants_parameters(mlp_.up); }

  // The hidden values again, and the gradients of gate, up and input.
  void run_chunk(int64_t row, int64_t rows) {
    const GatedBackwardArguments projections{
        from(gate_, row), from(up_, row), grad_gate_, grad_up_, hidden_, mlp_.params, operands_as_stored(dtype_)};
    Stage hidden{.source = zeros_,
                 .columns = hidden_features(),
                 .epilogue = {activation_kernels().gated_layer_backward, &projections}};
    if (wants_gate() || wants_up()) {
      hidden.products[hidden.product_count++] = to_hidden_;
      hidden.products[0].a = grad_output_.from(row, stages_);
    }
    stages_.push_back(hidden);
    const StoreArguments input{from(input_grad_, row), /*add=*/false};
    if (input_grad_.data) {
      stages_.push_back({.products = {by_gate_, by_up_},
                         .product_count = 2,
                         .columns = mlp_.gate.in_features,
                         .epilogue = storing(dtype_, input)});
    }
    run(rows);
  }

  void add_parameters(int64_t row, List<ParameterGradients>& parameters) const {
    const auto add = [&](const Linear& layer, ConstRows dz, bool dz_is_operand, ConstRows input) {
      if (!wants_parameters(layer)) return;
      parameters.push_back({dz, dz_is_operand, layer.out_features, panels_of(layer, input), layer.weight_grad,
                            layer.bias_grad, reads_matrix(layer.in_features)});
    };
    add(mlp_.gate, constant(grad_gate_), /*dz_is_operand=*/true, from(input_, row));
    add(mlp_.up, constant(grad_up_), /*dz_is_operand=*/true, from(input_, row));
    add(mlp_.down, grad_output_.as_given(row), /*dz_is_operand=*/false, constant(hidden_));
  }
  Panels panels_of(const Linear& layer, ConstRows input) const {
    return {gemm_kernels(dtype_).pack, {input, 0, layer.in_features, nullptr}};
  }

  ConstRows input_, gate_, up_;
  LeftHand grad_output_;
  Rows input_grad_;
  Rows grad_gate_{nullptr, 0}, grad_up_{nullptr, 0}, hidden_{nullptr, 0};
  ConstRows zeros_{nullptr, 0};
  Product to_hidden_{}, by_gate_{}, by_up_{};
};

}  // namespace

void gated_mlp_forward(Caller& caller, const GatedMlpCall& mlp, ConstRows input, Rows gate_kept, Rows up_kept,
                       Rows output) {
  Forward(caller, mlp, input, gate_kept, up_kept, output);
}

void gated_mlp_backward(Caller& caller, const GatedMlpCall& mlp, ConstRows input, ConstRows gate_kept,
                        ConstRows up_kept, ConstRows grad_output, Rows input_grad) {
  Backward(caller, mlp, input, gate_kept, up_kept, grad_output, input_grad);
}

}  // namespace fastops::cpu
