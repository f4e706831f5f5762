// Multi-layer perceptrons whose layers all go through one kernel.
#pragma once

#include "ops/mlp.h"

namespace fastops::hip {

// Whether the network is small enough for that, and the work so little that launching kernels is what takes time.
bool use_small_mlp(const MlpArguments& mlp);

// The output; fills `saved` where given.
Tensor small_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);

std::vector<Tensor> small_mlp_gradients(const MlpBackwardArguments& mlp);

}  // namespace fastops::hip
