#include <algorithm>
#include <array>
#include <atomic>

#include "backends/hip/launch.h"
#include "ops/axes.h"

namespace fastops::hip {

namespace {

// What a device has. Asked for once: HIP's runtime takes its time.
template <int64_t (*ask)(int)>
int64_t once_of(const Tensor& tensor) {
  static std::array<std::atomic<int64_t>, 64> known{};
  const int device = std::max<int>(tensor.device().index(), 0);
  if (device >= static_cast<int>(known.size())) return ask(device);
  if (known[device] == 0) known[device] = ask(device);
  return known[device];
}

}  // namespace

int64_t multiprocessors_of(const Tensor& tensor) { return once_of<multiprocessors>(tensor); }
int64_t most_shared_bytes_of(const Tensor& tensor) { return once_of<most_shared_bytes>(tensor); }

std::optional<Grid> find_grid(at::ArrayRef<Tensor> outputs, at::ArrayRef<Tensor> inputs, bool keep_columns) {
  Grid grid{1, 1, {}};
  const Tensor* defined = nullptr;  // the first that is
  bool is_row = !keep_columns;      // one after another in memory, as far as was seen
  const auto add = [&](const Tensor& tensor, bool is_output) {
    Matrix matrix;
    if (tensor.defined()) {
      matrix.data = is_output ? tensor.mutable_data_ptr() : data_of(tensor);
      matrix.column_stride = 1;
      if (!defined) defined = &tensor;
      is_row = is_row && same_layout(*defined, tensor);
    }
    grid.matrices.push_back(matrix);
  };
  for (const Tensor& output : outputs) add(output, true);
  for (const Tensor& input : inputs) add(input, false);
  const Tensor& first = *defined;
  if (first.numel() == 0) {
    return Grid{0, keep_columns ? first.size(-1) : 0, c10::SmallVector<Matrix, 6>(grid.matrices.size(), Matrix())};
  }
  if (is_row) {  // most are: their dimensions need no look
    grid.columns = first.numel();
    return grid;
  }
  c10::SmallVector<Tensor, 6> tensors(outputs.begin(), outputs.end());
  tensors.append(inputs.begin(), inputs.end());
  c10::SmallVector<int64_t, 6> dims = dims_by_stride(first);
  Axes axes;
  if (keep_columns) {  // which join with no other dimension
    const int64_t columns = first.dim() - 1;
    dims.erase(std::remove(dims.begin(), dims.end(), columns), dims.end());
    axes = joined_axes(tensors, columns);
  }
  axes.append(joined_axes(tensors, dims));
  if (axes.size() > 2) return std::nullopt;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!axes.empty()) grid.matrices[i].column_stride = axes[0].strides[i];
    if (axes.size() > 1) grid.matrices[i].row_stride = axes[1].strides[i];
  }
  if (!axes.empty()) grid.columns = axes[0].size;
  if (axes.size() > 1) grid.rows = axes[1].size;
  return grid;
}

}  // namespace fastops::hip
