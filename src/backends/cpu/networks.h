// Whole networks as chains of matrix products. nullopt is a network that PyTorch's products are faster for.
#pragma once

#include <optional>
#include <vector>

#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"

namespace fastops::cpu {

// The output; fills `saved` where given.
std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved);
std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp);

std::optional<Tensor> try_mlp_jet(const MlpJetArguments& mlp, std::vector<Tensor>* saved);
std::optional<std::vector<Tensor>> try_mlp_jet_backward(const MlpJetBackwardArguments& mlp);

// The output, and gate and up if `saves`.
std::optional<GatedMlpForward::Result> try_gated_mlp(const GatedMlpArguments& mlp, bool saves);
std::optional<std::vector<Tensor>> try_gated_mlp_backward(const GatedMlpBackwardArguments& mlp);

}  // namespace fastops::cpu
