// The registration of an op's schema, with the kernels that every op needs and none has to think of.
#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace fastops {

// Defines an op of the library, with the tag pt2_compliant_tag and others.
//
// Nested tensors, for which PyTorch looks for kernels of their own, are a TypeError that names the argument; ops with
// the tag pointwise take those with the layout torch.jagged.
// Tensors with a negative or conjugate bit, and those that stand for zeros, have numbers that are not those in memory;
// PyTorch's fallbacks replace them by plain ones, but do not look into lists of optional tensors. Ops with such lists
// get kernels that do.
void define(torch::Library& m, const std::string& schema, std::vector<at::Tag> tags = {});

}  // namespace fastops
