// Whole networks as chains of matrix products. nullopt is a network that PyTorch's products are faster for.
#pragma once

#include <optional>
#include <vector>

#include "ops/gated_mlp.h"
#include "ops/mlp.h"

namespace fastops::cpu {

// The output; fills `saved` where given.
std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);
std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp);

// The output, and gate and up if `saves`.
std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves);
std::optional<std::vector<Tensor>> try_gated_mlp_backward(const GatedMlpBackwardArguments& mlp);

}  // namespace fastops::cpu
