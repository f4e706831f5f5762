#include "backends/metal/elementwise.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

#include "ops/axes.h"

namespace fastops::mps {
namespace {

using Tensors = c10::SmallVector<Tensor, most_operands>;

// Fills in the sizes and strides, innermost of the output first. False if there are too many dimensions or elements.
bool fill_strides(const Tensors& tensors, ElementwiseArguments& to) {
  const Tensor& output = tensors.back();
  if (output.numel() > std::numeric_limits<uint32_t>::max()) return false;
  const Axes axes = joined_axes(tensors, dims_by_stride(output));
  if (axes.size() > most_dims) return false;
  to.dims = static_cast<uint32_t>(axes.size());
  for (size_t d = 0; d < axes.size(); ++d) {
    to.sizes[d] = static_cast<uint32_t>(axes[d].size);
    for (size_t i = 0; i < tensors.size(); ++i) to.strides[i][d] = axes[d].strides[i];
  }
  return true;
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
  to.count = static_cast<uint64_t>(output.numel());
  Tensors tensors(inputs.begin(), inputs.end());
  tensors.push_back(output);
  if (std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return same_layout(tensor, output); })) {
    to.vectors = std::all_of(tensors.begin(), tensors.end(),
                             [](const Tensor& tensor) { return tensor.storage_offset() % quad == 0; });
  } else if (!fill_strides(tensors, to)) {
    return false;
  }
  launch(kernel, {{(to.count + quad - 1) / quad, 1}, {256, 1}}, tensors, to);
  return true;
}

}  // namespace fastops::mps
