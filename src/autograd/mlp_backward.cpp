// The node of mlp_backward of one network; that of an ensemble is made of ops that have their own derivatives.
#include <torch/library.h>

#include "autograd/mlp.h"
#include "autograd/second_derivatives.h"

namespace fastops {
namespace {

struct MlpBackwardNode : OpNode<MlpBackwardNode> {
  SavedVariable grad_output, input;
  std::vector<SavedVariable> weights, biases;
  ActivationSpec activation, output_activation;
  std::vector<bool> mask;  // of the results

  auto fields() { return std::tie(grad_output, input, weights, biases, activation, output_activation, mask); }
  std::string name() const override { return "FastopsMlpBackwardBackward"; }

  // The inputs are grad_output, input, weights[0], biases[0], weights[1], ...
  variable_list gradients(variable_list&& cotangents) override {
    constexpr auto op = "mlp_backward";
    const std::vector<Tensor> w = unpack(op, "weights", weights);
    const std::vector<Tensor> b = unpack(op, "biases", biases);
    const MlpArguments mlp{unpack(op, "input", input), w, b, activation, output_activation};
    const std::vector<Tensor> direction = scatter(std::move(cotangents), mask);
    const std::vector<Layer> layers = recomputed_.get([&] { return layers_of(mlp); });
    variable_list grads(2 + 2 * w.size());

    // The derivatives in the direction of each layer's input and sums.
    std::vector<Tensor> dx(w.size() + 1), dz(w.size());
    dx[0] = direction[0];
    for (size_t i = 0; i < w.size(); ++i) {
      dz[i] = add(times(dx[i], w[i]), times(layers[i].input, direction[1 + 2 * i]));
      if (const Tensor& d = direction[2 + 2 * i]; d.defined()) {
        dz[i] = dz[i].defined() ? dz[i] + d : d.expand_as(layers[i].point.at);
      }
      dx[i + 1] = layers[i].point.through(dz[i]);
    }
    if (wants(0)) grads[0] = dx.back();

    // The gradients of <grad_output, dx.back()>, from the last layer's output and its derivative down.
    Tensor by_x;
    Tensor by_dx = unpack(op, "grad_output", grad_output);
    for (size_t i = w.size(); i-- > 0;) {
      const auto& [x, point] = layers[i];
      const Tensor by_dz = point.through(by_dx);
      const Tensor by_z = add(point.through(by_x), point.through_slope(by_dx, dz[i], dx[i + 1]));
      if (wants(2 + 2 * i)) grads[2 + 2 * i] = add(weight_gradient(by_z, x), weight_gradient(by_dz, dx[i]));
      if (wants(3 + 2 * i)) grads[3 + 2 * i] = bias_gradient(by_z);
      by_x = add(input_gradient(by_z, w[i]), input_gradient(by_dz, direction[1 + 2 * i]));
      if (i > 0) by_dx = input_gradient(by_dz, w[i]);
    }
    if (wants(1)) grads[1] = by_x;
    return grads;
  }
  void release_saved() override {
    OpNode::release_saved();
    recomputed_.clear();
  }

 private:
  struct Layer {
    Tensor input;
    Point point;
  };

  static std::vector<Layer> layers_of(const MlpArguments& mlp) {
    std::vector<Layer> layers;
    Tensor h = mlp.input;
    for (size_t i = 0; i < mlp.layers(); ++i) {
      const Point point(mlp.activation_of(i), at::linear(h, mlp.weights[i], mlp.biases[i]));
      layers.push_back({h, point});
      h = point.value;
    }
    return layers;
  }

  Recomputed<std::vector<Layer>> recomputed_;
};
const RegisterNode<MlpBackwardNode> mlp_backward_node;

std::vector<Tensor> mlp_backward_autograd(c10::DispatchKeySet keys, const MlpBackward& op) {
  const bool grad = needs_grad(op.grad_output, op.input, op.weights, op.biases);
  if (any_tangent(op.grad_output, op.input, op.weights, op.biases) || (grad && is_ensemble(op.weights))) {
    return composite_mlp_backward(op.checked());
  }
  std::vector<Tensor> grads = call_below_autograd(keys, op);
  if (grad) {
    const MlpArguments mlp =
        MlpForward{op.input, op.weights, op.biases, op.activation, op.output_activation, op.params, op.output_params}
            .resolved();
    const auto node = make_node<MlpBackwardNode>();
    std::vector<Tensor> inputs = differentiable_inputs(mlp);
    inputs.insert(inputs.begin(), op.grad_output);
    node->set_next_edges(collect_next_edges(inputs));
    node->grad_output = save(op.grad_output.get());
    node->input = save(mlp.input);
    node->weights = save(mlp.weights);
    node->biases = save(at::TensorList(mlp.biases));
    node->activation = mlp.activation;
    node->output_activation = mlp.output_activation;
    node->mask = op.output_mask.get().vec();
    set_history(grads, node);
  }
  return grads;
}

}  // namespace

TORCH_LIBRARY_IMPL(fastops, Autograd, m) { implement<MlpBackward, mlp_backward_autograd>(m); }

}  // namespace fastops
