// What the autograd kernels of mlp and of its backward share.
#pragma once

#include <utility>
#include <vector>

#include "autograd/node.h"
#include "ops/mlp.h"

namespace fastops {

// input, weights[0], biases[0], weights[1], ..., as in mlp_backward's output_mask.
inline std::vector<Tensor> differentiable_inputs(const MlpArguments& mlp) {
  std::vector<Tensor> inputs = {mlp.input};
  for (size_t i = 0; i < mlp.layers(); ++i) {
    inputs.push_back(mlp.weights[i]);
    inputs.push_back(mlp.biases[i]);
  }
  return inputs;
}

// Second derivatives in a direction of the input alone are a pass of mlp_jet's kernels, through which the direction
// goes as a row beside the input. Where a loss is of a value and its gradient (energies and forces), one such pass
// gives the gradients of both: the node of mlp_backward leaves its part, the direction and grad_output, to the
// network's node, which the engine runs after it.

// Whether that takes less time than the formulas of the nodes, though it computes the layers again. mlp_jacobian
// (Python) goes by it, too.
bool is_for_jet(const MlpArguments& mlp);

// The network's derivative along the direction and the gradients of <by_output, y> + <by_derivative, y'>, at the places
// of the mask, which is that of mlp_backward. by_output may be undefined.
std::pair<Tensor, variable_list> gradients_by_jet(const MlpArguments& mlp, const Tensor& direction,
                                                  const Tensor& by_output, const Tensor& by_derivative,
                                                  const c10::List<bool>& mask);

// Lets the node of mlp_backward whose result grad_input is leave its part to the network's node. False where there is
// no such node.
bool leave_gradients_to(Node& network, const Tensor& grad_input);

// Does so in this run of the engine.
void leave_part(Node& network, const Tensor& direction, const Tensor& by_derivative);

// Has that done where mlp_forward and mlp_backward were called one after the other: of mlp_forward's output and of
// grad_input, which mlp_backward made of the same input and parameters.
FASTOPS_API void leave_gradients(const Tensor& output, const Tensor& grad_input);

}  // namespace fastops
