// The nodes of mlp and linear_act. Training goes through mlp_forward, which also returns what the backward pass keeps.
#include "autograd/mlp.h"

#include <ATen/ops/_make_dual.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>

#include "ops/matrix.h"
#include "ops/mlp_jet.h"

namespace fastops {
namespace {

struct MlpNode : OpNode<MlpNode> {
  SavedVariable input, output;
  std::vector<SavedVariable> weights, biases, saved;
  ActivationSpec activation, output_activation;
  bool needs_output = false;
  bool checkpoint = false;  // neither output nor saved is kept

  auto fields() {
    return std::tie(input, output, weights, biases, saved, activation, output_activation, needs_output, checkpoint);
  }
  std::string name() const override { return "FastopsMlpBackward"; }

  // The inputs are input, weights[0], biases[0], weights[1], ..., as in mlp_backward's output_mask.
  variable_list gradients(variable_list&& grads) override {
    const size_t count = 1 + 2 * weights.size();
    const Part part = part_left();
    if (!grads[0].defined() && !part.direction.defined()) return variable_list(count);
    const c10::List<bool> mask = wanted(0, count);
    const Tensor x = input.unpack();
    const std::vector<Tensor> w = unpack(weights);
    if (part.direction.defined()) {
      const MlpArguments mlp{x, w, unpack(biases), activation, output_activation};
      return gradients_by_jet(mlp, part.direction, grads[0], part.by_derivative, mask).second;
    }
    const OptionalTensors bias_list = as_optional(unpack(biases));
    const auto [out, hidden] = checkpoint ? forward_again(x, w, bias_list) : kept();
    const Tensor grad_output = with_even_rows(MlpBackward::name, "grad_output", grads[0], is_ensemble(w));
    variable_list results = scatter(call_op(MlpBackward{grad_output, x, w, bias_list, out, hidden,
                                                        info(activation.id).name, info(output_activation.id).name,
                                                        parameters(activation), parameters(output_activation), mask}),
                                    mask.vec());
    if (results[0].defined()) take_left_of(results[0]);
    return results;
  }

  // Lets second derivatives leave their part to this node.
  void take_left() { takes_left_ = true; }

  // Those of this gradient with respect to the input.
  void take_left_of(const Tensor& grad_input) {
    // A hook on the output or on this node is to be called for the output's gradients alone.
    if (!takes_left_ || !tensor_pre_hooks().empty() || !pre_hooks().empty()) return;
    takes_left_ = !leave_gradients_to(*this, grad_input);
  }

  void add_part(const Tensor& direction, const Tensor& by_derivative) {
    const std::lock_guard lock(parts_lock_);
    parts_.push_back({get_current_graph_task_id(), direction, by_derivative});
  }

  void release_saved() override {
    OpNode::release_saved();
    const std::lock_guard lock(parts_lock_);
    parts_.clear();
  }

 private:
  // What second derivatives leave, in one of the runs of the engine that may go on at once.
  struct Part {
    int run = 0;
    Tensor direction, by_derivative;
  };
  bool takes_left_ = false;  // no node leaves anything yet
  std::mutex parts_lock_;
  std::vector<Part> parts_;

  // That of this run, if there is one.
  Part part_left() {
    const std::lock_guard lock(parts_lock_);
    const auto found = std::find_if(parts_.begin(), parts_.end(),
                                    [run = get_current_graph_task_id()](const Part& part) { return part.run == run; });
    if (found == parts_.end()) return {};
    const Part part = std::move(*found);
    parts_.erase(found);
    return part;
  }

  // The arguments `output` and `saved` of mlp_backward.
  using Kept = std::pair<std::optional<Tensor>, std::vector<Tensor>>;

  Kept kept() { return {needs_output ? std::optional(output.unpack(getptr())) : std::nullopt, unpack(saved)}; }

  // Derivatives of the backward pass do not need the history of what this computes. The last layer is left out where
  // nothing of it is wanted.
  Kept forward_again(const Tensor& x, at::TensorList all_weights, const OptionalTensors& all_biases) const {
    const at::AutoGradMode no_grad(false);
    const bool whole = needs_output || !output_suffices(output_activation, x.scalar_type());
    const size_t layers = all_weights.size() - (whole ? 0 : 1);
    if (layers == 0) return {};
    OptionalTensors some_biases;
    for (size_t i = 0; i < layers; ++i) some_biases.push_back(all_biases.get(i));
    const ActivationSpec& last = whole ? output_activation : activation;
    auto [out, hidden] = call_op(MlpForward{x, all_weights.slice(0, layers), some_biases, info(activation.id).name,
                                            info(last.id).name, parameters(activation), parameters(last)});
    if (!whole && output_suffices(activation, x.scalar_type())) hidden.push_back(std::move(out));
    return {needs_output ? std::optional(std::move(out)) : std::nullopt, std::move(hidden)};
  }
};
const RegisterNode<MlpNode> mlp_node;

NodePtr<MlpNode> make_mlp_node(const MlpArguments& mlp) {
  const auto node = make_node<MlpNode>();
  node->set_next_edges(collect_next_edges(differentiable_inputs(mlp)));
  node->input = save(mlp.input);
  node->weights = save(mlp.weights);
  node->biases = save(at::TensorList(mlp.biases));
  node->activation = mlp.activation;
  node->output_activation = mlp.output_activation;
  node->needs_output = mlp.needs_output();
  return node;
}

// Whether the input has a tangent and no parameter has one. Of ensembles, formulas are as good.
bool only_input_has_tangent(const MlpForward& op) {
  return any_tangent(op.input) && !any_tangent(op.weights, op.biases) && op.input.get().dim() > 0 &&
         !is_ensemble(op.weights);
}

// What mlp_forward gives where gradients are recorded.
MlpForward::Result recorded_forward(c10::DispatchKeySet keys, const MlpForward& op) {
  MlpForward::Result result = call_below_autograd(keys, op);
  auto& [output, saved] = result;
  const MlpArguments mlp = op.resolved();
  const auto node = make_mlp_node(mlp);
  set_history(output, node);
  node->saved = save(saved);
  if (node->needs_output) node->output = save(output, /*is_output=*/true);
  if (needs_grad(op.input) && is_for_jet(mlp)) node->take_left();
  return result;
}

// The output with its tangent, which goes through the layers beside it.
Tensor mlp_with_tangent(c10::DispatchKeySet keys, const MlpForward& op) {
  const Tensor& input = op.input;
  const Tensor tangent = input._fw_grad(0);
  const Tensor point_and_tangent = at::stack({input._fw_primal(0), tangent}, -2);
  const Tensor results = call_op(MlpJet{point_and_tangent,
                                        1,
                                        op.weights,
                                        op.biases,
                                        op.activation,
                                        op.output_activation,
                                        op.params,
                                        op.output_params,
                                        {}});
  const Tensor output_tangent = results.select(-2, 1).contiguous();
  const bool grad = needs_grad(input, op.weights, op.biases);
  if (!grad && !tangent.key_set().has(c10::DispatchKey::Batched)) {
    return at::_make_dual(results.select(-2, 0).contiguous(), output_tangent, 0);
  }
  // A backward pass in the same level needs what is kept with its tangent, which that of the rows does not have. And
  // where the tangent alone is a batch (torch.autograd.functional), the output is none.
  Tensor output = std::get<0>(grad ? recorded_forward(keys, op) : call_below_autograd(keys, op));
  output._set_fw_grad(output_tangent, /*level=*/0, /*is_inplace_op=*/false);
  return output;
}

Tensor mlp_autograd(c10::DispatchKeySet keys, Mlp op) {
  Tensor even;
  const bool ensemble = is_ensemble(op.weights);
  const bool grad = needs_grad(op.input, op.weights, op.biases);
  const bool one_pass = op.checkpoint || !(grad || any_tangent(op.input));
  if (!one_pass && !has_even_rows(op.input, ensemble)) {
    op.input = even = with_even_rows(Mlp::name, "input", op.input, ensemble);
  }
  if (only_input_has_tangent(op)) return mlp_with_tangent(keys, op);
  if (any_tangent(op.input, op.weights, op.biases) || (grad && !op.checkpoint)) {
    return std::get<0>(call_op<MlpForward>(op));
  }
  Tensor output = call_below_autograd(keys, op);
  if (grad) {
    const auto node = make_mlp_node(op.resolved());
    node->checkpoint = true;
    set_history(output, node);
  }
  return output;
}

MlpForward::Result mlp_forward_autograd(c10::DispatchKeySet keys, const MlpForward& op) {
  if (any_tangent(op.input, op.weights, op.biases)) {
    std::vector<Tensor> saved;
    Tensor output = composite_mlp(op.checked(), &saved);
    return {std::move(output), std::move(saved)};
  }
  return needs_grad(op.input, op.weights, op.biases) ? recorded_forward(keys, op) : call_below_autograd(keys, op);
}

Tensor linear_act_autograd(c10::DispatchKeySet keys, LinearAct op) {
  const bool tangents = any_tangent(op.input, op.weight, op.bias);
  if (!tangents && !needs_grad(op.input, op.weight, op.bias)) return call_below_autograd(keys, op);
  Tensor even;
  if (!has_even_rows(op.input)) op.input = even = with_even_rows(LinearAct::name, "input", op.input);
  const MlpArguments layer = op.checked();
  if (tangents) return composite_mlp(layer, nullptr);
  const OptionalTensors biases({op.bias.get()});
  return std::get<0>(call_op(MlpForward{op.input, layer.weights, biases, "identity", op.activation, {}, op.params}));
}

}  // namespace

void leave_gradients(const Tensor& output, const Tensor& grad_input) {
  auto* const node = dynamic_cast<MlpNode*>(output.grad_fn().get());
  if (node == nullptr || !output.device().is_cpu()) return;
  node->take_left();
  node->take_left_of(grad_input);
}

void leave_part(Node& network, const Tensor& direction, const Tensor& by_derivative) {
  static_cast<MlpNode&>(network).add_part(direction, by_derivative);
}

TORCH_LIBRARY_IMPL(fastops, Autograd, m) {
  implement<Mlp, mlp_autograd>(m);
  implement<MlpForward, mlp_forward_autograd>(m);
  implement<LinearAct, linear_act_autograd>(m);
}

}  // namespace fastops
