// mlp and linear_act as chains of matrix products: each row goes through the activations by itself.
#include "backends/cpu/launchers/layers.h"
#include "backends/cpu/launchers/plain_layers.h"

namespace fastops::cpu {
namespace {

class RowForm {
 public:
  using Call = MlpCall;
  using ForwardArguments = LayerForwardArguments;
  using BackwardArguments = LayerBackwardArguments;
  static int64_t unit(const Call&) { return 1; }

  explicit RowForm(const Call& mlp) : dtype_(mlp.dtype) {}

  ForwardArguments forward(const Layer& layer, bool as_stored) const {
    return {layer.bias, {}, {}, {}, layer.params, as_stored};
  }
  BackwardArguments backward(const Layer& layer, ConstRows kept, Rows dz, Rows values, bool as_stored) const {
    return {kept, dz, values, layer.params, as_stored};
  }
  Epilogue forward_epilogue(const Layer& layer, const ForwardArguments& to) const {
    return through_layer(layer.activation, dtype_, to);
  }
  EpilogueKernel backward_kernel(const Layer& layer) const {
    const Kernels& kernels = activation(layer);
    return layer.keeps_output ? kernels.layer_backward_from_output : kernels.layer_backward;
  }
  const Kernels& activation(const Layer& layer) const { return kernels(layer.activation, dtype_); }

  bool keeps_values(const Layer& layer) const { return layer.keeps_output; }

 private:
  Dtype dtype_;
};

}  // namespace

void mlp_forward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output) {
  LayersForward<RowForm>(caller, mlp, input, output);
}

void mlp_backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  LayersBackward<RowForm>(caller, mlp, input, grad_output, input_grad);
}

void plain_mlp_backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  PlainLayersBackward<RowForm>(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
