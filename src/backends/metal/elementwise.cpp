#include "backends/metal/elementwise.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

namespace fastops::mps {
namespace {

using Tensors = c10::SmallVector<Tensor, most_operands>;

bool same_layout(const Tensors& tensors) {
  const auto all = [&](auto condition) { return std::all_of(tensors.begin(), tensors.end(), condition); };
  if (all([](const Tensor& tensor) { return tensor.is_contiguous(); })) return true;
  return tensors[0].is_non_overlapping_and_dense() &&
         all([&](const Tensor& tensor) { return tensor.strides() == tensors[0].strides(); });
}

// Fills in the sizes and strides, innermost of the output first, with neighbouring dimensions put together where the
// strides of all tensors allow it. False if there are too many dimensions or elements.
bool fill_strides(const Tensors& tensors, ElementwiseArguments& to) {
  const Tensor& output = tensors.back();
  if (output.numel() > std::numeric_limits<uint32_t>::max()) return false;
  c10::SmallVector<int64_t, most_dims> order;
  for (int64_t d = output.dim(); d-- > 0;) {
    if (output.size(d) > 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return output.stride(a) < output.stride(b); });
  for (const int64_t d : order) {
    bool joins = to.dims > 0;
    for (size_t i = 0; joins && i < tensors.size(); ++i) {
      joins = tensors[i].stride(d) == to.strides[i][to.dims - 1] * to.sizes[to.dims - 1];
    }
    if (joins) {
      to.sizes[to.dims - 1] *= static_cast<uint32_t>(output.size(d));
      continue;
    }
    if (to.dims == most_dims) return false;
    to.sizes[to.dims] = static_cast<uint32_t>(output.size(d));
    for (size_t i = 0; i < tensors.size(); ++i) to.strides[i][to.dims] = tensors[i].stride(d);
    ++to.dims;
  }
  return true;
}

void run(const KernelId& kernel, const Tensors& tensors, const ElementwiseArguments& to) {
  launch(kernel, {{(to.count + quad - 1) / quad, 1}, {256, 1}}, tensors, to);
}

}  // namespace

void elementwise(const KernelId& kernel, const ActivationSpec& spec, bool from_output, at::TensorList inputs,
                 const Tensor& output) {
  if (output.numel() == 0) return;
  own_memory(output);
  ElementwiseArguments to{};
  to.params[0] = static_cast<float>(spec.values[0]);
  to.params[1] = static_cast<float>(spec.values[1]);
  to.from_output = from_output;
  to.count = static_cast<uint64_t>(output.numel());
  Tensors tensors(inputs.begin(), inputs.end());
  tensors.push_back(output);
  if (same_layout(tensors)) {
    to.vectors = std::all_of(tensors.begin(), tensors.end(),
                             [](const Tensor& tensor) { return tensor.storage_offset() % quad == 0; });
    return run(kernel, tensors, to);
  }
  if (fill_strides(tensors, to)) return run(kernel, tensors, to);
  for (Tensor& tensor : tensors) tensor = tensor.contiguous();
  elementwise(kernel, spec, from_output, at::TensorList(tensors).slice(0, inputs.size()), tensors.back());
  output.copy_(tensors.back());
}

}  // namespace fastops::mps
