// Multi-layer perceptrons whose layers all go through one kernel.
#pragma once

#include "ops/mlp.h"

namespace fastops::hip {

// Whether the network is small enough for that, and its layers one after another would take longer.
bool use_small_mlp(const MlpArguments& mlp, bool backward);

// The output; fills `saved` where given.
Tensor small_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);

std::vector<Tensor> small_mlp_gradients(const MlpBackwardArguments& mlp);

}  // namespace fastops::hip
