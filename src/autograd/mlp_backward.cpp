// The node of mlp_backward of one network; that of an ensemble is made of ops that have their own derivatives.
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>

#include "autograd/mlp.h"
#include "autograd/second_derivatives.h"
#include "ops/mlp_jet.h"

namespace fastops {
namespace {

// A network's layers, from what its forward pass kept: the value of each activation, or z (Point).
struct Layer {
  Tensor input;
  Point point;
};
std::vector<Layer> layers_of(const MlpArguments& mlp, at::TensorList kept) {
  std::vector<Layer> layers;
  Tensor h = mlp.input;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    const Tensor at = i < kept.size() ? kept[i] : Tensor();
    layers.push_back({h, Point::kept(mlp.activation_of(i), at, /*needs_value=*/i + 1 < mlp.layers())});
    h = layers.back().point.value;
  }
  return layers;
}

// The same, all computed again.
std::vector<Layer> layers_of(const MlpArguments& mlp) {
  std::vector<Layer> layers;
  Tensor h = mlp.input;
  for (size_t i = 0; i < mlp.layers(); ++i) {
    layers.push_back({h, Point(mlp.activation_of(i), projection(h, mlp.weights[i], mlp.biases[i]))});
    h = layers.back().point.value;
  }
  return layers;
}

// The node of what was kept, for derivatives of derivatives: nothing is computed again for it.
struct MlpKeptNode : OpNode<MlpKeptNode> {
  SavedVariable input;
  std::vector<SavedVariable> weights, kept;
  ActivationSpec activation, output_activation;

  auto fields() { return std::tie(input, weights, kept, activation, output_activation); }
  std::string name() const override { return "FastopsMlpKeptBackward"; }

  // The inputs are those of the network.
  variable_list gradients(variable_list&& by_kept) override {
    constexpr auto op = "mlp_backward";
    const std::vector<Tensor> w = unpack(op, "weights", weights);
    const MlpArguments mlp{unpack(op, "input", input), w, {}, activation, output_activation};
    std::vector<Tensor> outputs;
    for (const SavedVariable& saved : kept) outputs.push_back(saved.unpack(getptr()));
    const std::vector<Layer> layers = layers_of(mlp, outputs);
    variable_list grads(1 + 2 * w.size());
    Tensor by_x;
    for (size_t i = outputs.size(); i-- > 0;) {
      const auto& [x, point] = layers[i];
      const Tensor by_z =
          point.from_output ? point.through(add(by_x, by_kept[i])) : add(point.through(by_x), by_kept[i]);
      if (wants(1 + 2 * i)) grads[1 + 2 * i] = weight_gradient(by_z, x);
      if (wants(2 + 2 * i)) grads[2 + 2 * i] = bias_gradient(by_z);
      if (i > 0 || wants(0)) by_x = input_gradient(by_z, w[i]);
    }
    if (wants(0)) grads[0] = by_x;
    return grads;
  }
};
const RegisterNode<MlpKeptNode> mlp_kept_node;

// What was kept, with its history where gradients are recorded.
std::vector<Tensor> with_history(const MlpArguments& mlp, at::TensorList kept) {
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : kept) outputs.push_back(tensor.detach());
  if (outputs.empty() || !needs_grad(mlp.input, mlp.weights, mlp.biases)) return outputs;
  const auto node = make_node<MlpKeptNode>();
  node->set_next_edges(collect_next_edges(differentiable_inputs(mlp)));
  node->input = save(mlp.input);
  node->weights = save(mlp.weights);
  node->activation = mlp.activation;
  node->output_activation = mlp.output_activation;
  set_history(outputs, node);
  for (const Tensor& output : outputs) node->kept.push_back(save(output, /*is_output=*/true));
  return outputs;
}

struct MlpBackwardNode : OpNode<MlpBackwardNode> {
  SavedVariable grad_output, input;
  std::vector<SavedVariable> weights, biases, kept;
  ActivationSpec activation, output_activation;
  std::vector<bool> mask;         // of the results
  bool leaves_gradients = false;  // to the network's node, the last input

  auto fields() {
    return std::tie(grad_output, input, weights, biases, kept, activation, output_activation, mask, leaves_gradients);
  }
  std::string name() const override { return "FastopsMlpBackwardBackward"; }

  // The inputs are grad_output, input, weights[0], biases[0], weights[1], ... and, so that its node comes after this
  // one, the network's output.
  variable_list gradients(variable_list&& cotangents) override {
    constexpr auto op = "mlp_backward";
    const std::vector<Tensor> w = unpack(op, "weights", weights);
    const std::vector<Tensor> b = unpack(op, "biases", biases);
    const MlpArguments mlp{unpack(op, "input", input), w, b, activation, output_activation};
    const Tensor by_y = unpack(op, "grad_output", grad_output);
    variable_list grads = gradients_of(mlp, by_y, scatter(std::move(cotangents), mask));
    if (is_of_compiled_autograd()) {
      std::vector<Tensor> inputs = differentiable_inputs(mlp);
      inputs.insert(inputs.begin(), by_y);
      if (leaves_gradients) inputs.push_back(by_y);
      for (size_t i = 0; i < grads.size(); ++i) {
        if (wants(i) && !grads[i].defined()) grads[i] = at::zeros_like(inputs[i]);
      }
    }
    return grads;
  }
  void release_saved() override {
    OpNode::release_saved();
    recomputed_.clear();
  }

 private:
  // The network's node, the input after `count` others; null where nothing is left to it.
  Node* network(size_t count) const {
    return leaves_gradients && !is_of_compiled_autograd() ? next_edge(count).function.get() : nullptr;
  }
  // Whether it takes this one's part. A hook on it is to be called for its output's gradients alone.
  bool takes_part(const Node* node, size_t count) const {
    return node && wants(count) && !wants(0) && node->pre_hooks().empty() && node->post_hooks().empty();
  }

  variable_list gradients_of(const MlpArguments& mlp, const Tensor& by_y, const std::vector<Tensor>& direction) {
    const at::TensorList w = mlp.weights;
    const size_t count = 2 + 2 * w.size();
    variable_list grads(count + (leaves_gradients ? 1 : 0));
    // A hook that was put on the network's output since is called: not with None.
    Node* const node = network(count);
    if (node && !node->tensor_pre_hooks().empty()) grads[count] = at::zeros_like(by_y);
    if (only_moves_input(direction) && !at::GradMode::is_enabled() && !in_transform() && is_for_jet(mlp)) {
      if (takes_part(node, count)) {
        leave_part(*node, direction[0], by_y);
        return grads;
      }
      auto [along, results] = gradients_by_jet(mlp, direction[0], {}, by_y, wanted(1, count));
      if (wants(0)) grads[0] = along;
      std::move(results.begin(), results.end(), grads.begin() + 1);
      return grads;
    }
    const Passes passes = recomputed_.get([&] { return passes_of(mlp, by_y); });
    const std::vector<Layer>& layers = passes.layers;

    // The derivatives in the direction of each layer's input and sums.
    std::vector<Tensor> dx(w.size() + 1), dz(w.size());
    dx[0] = direction[0];
    const bool ends_linear = output_activation.id == Activation::identity;
    for (size_t i = 0; i < w.size(); ++i) {
      if (i + 1 == w.size() && ends_linear && !wants(0)) break;
      dz[i] = add(times(dx[i], w[i]), times(layers[i].input, direction[1 + 2 * i]));
      if (const Tensor& d = direction[2 + 2 * i]; d.defined()) {
        dz[i] = dz[i].defined() ? dz[i] + d : d.expand_as(i + 1 < w.size() ? layers[i].point.at : by_y);
      }
      dx[i + 1] = layers[i].point.through(dz[i]);
    }
    if (wants(0)) grads[0] = dx.back();

    // The gradients of <grad_output, dx.back()>, from the last layer's output and its derivative down.
    Tensor by_x;
    for (size_t i = w.size(); i-- > 0;) {
      const auto& [x, point] = layers[i];
      const auto& [by_dx, by_dz] = passes.by_derivatives[i];
      const Tensor by_z = add(point.through(by_x), point.through_slope(by_dx, dz[i], dx[i + 1]));
      if (wants(2 + 2 * i)) grads[2 + 2 * i] = add(weight_gradient(by_z, x), weight_gradient(by_dz, dx[i]));
      if (wants(3 + 2 * i)) grads[3 + 2 * i] = bias_gradient(by_z);
      if (i > 0 || wants(1)) by_x = add(input_gradient(by_z, w[i]), input_gradient(by_dz, direction[1 + 2 * i]));
    }
    if (wants(1)) grads[1] = by_x;
    return grads;
  }

  static bool only_moves_input(const std::vector<Tensor>& direction) {
    return direction[0].defined() &&
           std::none_of(direction.begin() + 1, direction.end(), [](const Tensor& d) { return d.defined(); });
  }

  // What does not depend on the direction: the layers, and the gradients in the derivatives of each layer's value and
  // z.
  struct Passes {
    std::vector<Layer> layers;
    std::vector<std::pair<Tensor, Tensor>> by_derivatives;
  };
  Passes passes_of(const MlpArguments& mlp, const Tensor& by_y) const {
    // Under torch.func, also when what torch.func.vjp returned is called, what was kept may have lost its history at a
    // level outside.
    const bool transformed =
        in_transform() || is_of_transform(mlp.input) || is_of_transform(mlp.weights) || is_of_transform(mlp.biases);
    Passes passes{
        transformed ? layers_of(mlp) : layers_of(mlp, with_history(mlp, unpack("mlp_backward", "saved", kept))),
        std::vector<std::pair<Tensor, Tensor>>(mlp.layers())};
    Tensor by_dx = by_y;
    for (size_t i = mlp.layers(); i-- > 0;) {
      const Tensor by_dz = passes.layers[i].point.through(by_dx);
      passes.by_derivatives[i] = {by_dx, by_dz};
      if (i > 0) by_dx = input_gradient(by_dz, mlp.weights[i]);
    }
    return passes;
  }

  Recomputed<Passes> recomputed_;
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
    node->kept = save(op.saved);
    if (mlp.needs_output()) node->kept.push_back(save(value_or_undefined(op.output)));
    node->activation = mlp.activation;
    node->output_activation = mlp.output_activation;
    node->mask = op.output_mask.get().vec();
    set_history(grads, node);
  }
  return grads;
}

}  // namespace

bool is_for_jet(const MlpArguments& mlp) {
  const Tensor& x = mlp.input;
  const bool is_plain = x.device().is_cpu() && !x.key_set().has(c10::DispatchKey::Python) && !is_of_transform(x);
  return is_plain && x.dim() > 0 && !is_ensemble(mlp.weights) && are_few_for_jet(mlp.weights);
}

std::pair<Tensor, variable_list> gradients_by_jet(const MlpArguments& mlp, const Tensor& direction,
                                                  const Tensor& by_output, const Tensor& by_derivative,
                                                  const c10::List<bool>& mask) {
  const Tensor input = at::stack({mlp.input, direction}, -2);
  const Tensor by_rows =
      at::stack({by_output.defined() ? by_output : at::zeros_like(by_derivative), by_derivative}, -2);
  const OptionalTensors bias_list = as_optional(mlp.biases);
  const auto [hidden, last] = std::pair(info(mlp.activation.id).name, info(mlp.output_activation.id).name);
  const auto [params, last_params] = std::pair(parameters(mlp.activation), parameters(mlp.output_activation));
  const auto [output, saved] =
      call_op(MlpJetForward{input, 1, mlp.weights, bias_list, hidden, last, params, last_params, {}});
  variable_list grads =
      scatter(call_op(MlpJetBackward{
                  by_rows, input, 1, mlp.weights, bias_list, saved, hidden, last, params, last_params, {}, mask}),
              mask.vec());
  if (grads[0].defined()) grads[0] = grads[0].select(-2, 0);
  return {output.select(-2, 1), std::move(grads)};
}

bool leave_gradients_to(Node& network, const Tensor& grad_input) {
  auto* const node = dynamic_cast<MlpBackwardNode*>(grad_input.grad_fn().get());
  if (node == nullptr || node->leaves_gradients) return false;
  node->add_next_edge({network.getptr(), 0});
  node->leaves_gradients = true;
  return true;
}

TORCH_LIBRARY_IMPL(fastops, Autograd, m) { implement<MlpBackward, mlp_backward_autograd>(m); }

}  // namespace fastops
