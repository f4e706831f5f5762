// Products of float32 and of 16 bits by kernels of our own, with what comes before or after them, where those take less
// time than PyTorch's (product_time.h). Each function leaves the others to PyTorch: nullopt.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "backends/hip/launch.h"
#include "ops/mlp.h"

namespace fastops::hip {

// As LayerSteps::forward.
std::optional<LayerSteps::Forward> try_product_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                     const ActivationSpec& f, bool keeps_z);

// a @ b of matrices.
std::optional<Tensor> try_product(const Tensor& a, const Tensor& b);

// The whole backward pass, as mlp_backward returns it.
std::optional<std::vector<Tensor>> try_product_gradients(const MlpBackwardArguments& mlp);

// Whether products of this tensor and weights may be ours: of 16 bits, or of float32 that is not to be rounded to TF32,
// and weights whose rows are contiguous.
bool may_be_own_products(const Tensor& input, at::TensorList weights);

// Has PyTorch's library make its handle for this thread and device, if it has not: it cannot while a graph is captured.
void prepare_library(const Tensor& like);

// own_is_faster(in_graph) for the stream as it is. Where a graph of the same calls would have products of PyTorch's
// library, which these calls do not, the library is prepared.
template <class F>
bool choose_own(const Tensor& like, F own_is_faster) {
  const bool in_graph = is_captured(like);
  const bool own = own_is_faster(in_graph);
  if (own && !in_graph && !own_is_faster(true)) prepare_library(like);
  return own;
}

}  // namespace fastops::hip
