#include "backends/metal/elementwise.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "ops/axes.h"

namespace fastops::mps {
namespace {

using Tensors = c10::SmallVector<Tensor, most_operands>;

// Fills in the sizes and strides, innermost of the output first. The grid, or nothing if there are too many dimensions,
// or more elements than a dimension of the grid counts.
std::optional<Grid> fill_strides(const Tensors& tensors, ElementwiseArguments& to) {
  const Axes axes = joined_axes(tensors, dims_by_stride(tensors.back()));
  if (axes.size() > most_dims) return std::nullopt;
  to.dims = static_cast<uint32_t>(axes.size());
  to.count = static_cast<uint64_t>(axes[0].size);
  std::array<uint64_t, 3> grid = {1, 1, 1};
  std::array<int64_t, most_operands> reach{};
  for (size_t d = 0; d < axes.size(); ++d) {
    grid[std::min<size_t>(d, 2)] *= static_cast<uint64_t>(axes[d].size);
    if (grid[std::min<size_t>(d, 2)] > std::numeric_limits<uint32_t>::max() - quad) return std::nullopt;
    to.sizes[d] = static_cast<uint32_t>(axes[d].size);
    for (size_t i = 0; i < tensors.size(); ++i) {
      to.strides[i][d] = axes[d].strides[i];
      reach[i] += (axes[d].size - 1) * axes[d].strides[i];
    }
  }
  to.narrow =
      std::all_of(reach.begin(), reach.end(), [](int64_t r) { return r < std::numeric_limits<int32_t>::max(); });
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* const strides = to.strides[i];
    const bool aligned =
        tensors[i].storage_offset() % quad == 0 && strides[0] == 1 &&
        std::all_of(strides + 1, strides + most_dims, [](int64_t stride) { return stride % quad == 0; });
    to.vectors |= static_cast<uint32_t>(aligned) << i;
  }
  grid[0] = (grid[0] + quad - 1) / quad;
  return grid_of(grid);
}

// For tensors of one layout without gaps.
Grid fill_dense(const Tensors& tensors, ElementwiseArguments& to) {
  to.count = static_cast<uint64_t>(tensors.back().numel());
  const uint64_t pieces = (to.count + quad - 1) / quad;
  TORCH_CHECK(pieces <= std::numeric_limits<uint32_t>::max(), "fastops: on Apple GPUs a tensor may have up to 2^34 - ",
              quad, " elements, got ", to.count);
  for (size_t i = 0; i < tensors.size(); ++i) {
    to.strides[i][0] = 1;
    to.vectors |= static_cast<uint32_t>(tensors[i].storage_offset() % quad == 0) << i;
  }
  return grid_of({pieces, 1, 1});
}

}  // namespace

bool try_elementwise(const KernelId& kernel, const ActivationSpec& spec, bool from_output, at::TensorList inputs,
                     const Tensor& output) {
  if (output.numel() == 0) return true;
  own_memory(output);
  ElementwiseArguments to{};
  to.params[0] = static_cast<float>(spec.values[0]);
  to.params[1] = static_cast<float>(spec.values[1]);
  to.from_output = from_output;
  Tensors tensors(inputs.begin(), inputs.end());
  tensors.push_back(output);
  const bool dense =
      std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return same_layout(tensor, output); });
  const std::optional<Grid> grid = dense ? fill_dense(tensors, to) : fill_strides(tensors, to);
  if (!grid) return false;
  launch(kernel, *grid, tensors, to);
  return true;
}

}  // namespace fastops::mps
