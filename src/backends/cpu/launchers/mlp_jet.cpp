// mlp_jet as a chain of matrix products: the rows of a point go through the activations together.
#include "backends/cpu/launchers/layers.h"
#include "backends/cpu/launchers/plain_layers.h"

namespace fastops::cpu {
namespace {

class PointForm {
 public:
  using Call = MlpJetCall;
  using ForwardArguments = JetForwardArguments;
  using BackwardArguments = JetBackwardArguments;
  static int64_t unit(const Call& mlp) { return mlp.rows_of_point(); }

  explicit PointForm(const Call& mlp) : mlp_(mlp) {}

  ForwardArguments forward(const Layer& layer, bool as_stored) const {
    return {jet(layer), layer.bias, {}, {}, {}, as_stored};
  }
  BackwardArguments backward(const Layer& layer, ConstRows kept, Rows dz, Rows values, bool as_stored) const {
    return {jet(layer), kept, dz, values, as_stored};
  }
  Epilogue forward_epilogue(const Layer&, const ForwardArguments& to) const {
    return {gemm_kernels(mlp_.dtype).jet_forward, &to};
  }
  EpilogueKernel backward_kernel(const Layer&) const { return gemm_kernels(mlp_.dtype).jet_backward; }
  const Kernels& activation(const Layer& layer) const { return kernels(layer.activation, computed(mlp_.dtype)); }

  bool keeps_values(const Layer&) const { return false; }

 private:
  JetArguments jet(const Layer& layer) const {
    const bool identity = layer.activation == Activation::identity;
    return {identity ? nullptr : &activation(layer),
            layer.params,
            mlp_.directions,
            mlp_.seconds,
            mlp_.each,
            mlp_.trace_weights};
  }

  const MlpJetCall& mlp_;
};

}  // namespace

void mlp_jet_forward(Caller& caller, const MlpJetCall& mlp, ConstRows input, Rows output) {
  LayersForward<PointForm>(caller, mlp, input, output);
}

void mlp_jet_backward(Caller& caller, const MlpJetCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  LayersBackward<PointForm>(caller, mlp, input, grad_output, input_grad);
}

void plain_mlp_jet_backward(Caller& caller, const MlpJetCall& mlp, ConstRows input, ConstRows grad_output,
                            Rows input_grad) {
  PlainLayersBackward<PointForm>(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
