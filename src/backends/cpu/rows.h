// Steps on the rows of CPU tensors: members of SequentialSteps, and whole networks with them.
#pragma once

#include <optional>

#include "ops/sequential.h"

namespace fastops::cpu {

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype);
SequentialSteps::RowGradients steps_on_rows_backward(std::span<const Step> steps, const Tensor& seed, const Tensor& x,
                                                     const Tensor& grad, const Tensor& added,
                                                     const SequentialSteps::Wanted& wanted);

// The output of a network that goes unpacked; fills `saved` where given. nullopt is a network that goes step by step.
std::optional<Tensor> try_sequential(const SequentialArguments& network, std::vector<Tensor>* saved);
std::optional<std::vector<Tensor>> try_sequential_backward(const SequentialBackwardArguments& network);

}  // namespace fastops::cpu
