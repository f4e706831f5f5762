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
  c10::SmallVector<Tensor, 6> tensors(outputs.begin(), outputs.end());
  tensors.append(inputs.begin(), inputs.end());
  const Tensor& first = *std::find_if(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
  if (first.numel() == 0) {
    return Grid{0, keep_columns ? first.size(-1) : 0, c10::SmallVector<Matrix, 6>(tensors.size(), Matrix())};
  }
  c10::SmallVector<int64_t, 6> dims = dims_by_stride(first);
  Axes axes;
  if (keep_columns) {  // which join with no other dimension
    const int64_t columns = first.dim() - 1;
    dims.erase(std::remove(dims.begin(), dims.end(), columns), dims.end());
    axes = joined_axes(tensors, columns);
  }
  axes.append(joined_axes(tensors, dims));
  if (axes.size() > 2) return std::nullopt;
  Grid grid{axes.size() > 1 ? axes[1].size : 1, axes.empty() ? 1 : axes[0].size, {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    Matrix matrix;
    if (tensors[i].defined()) matrix.data = i < outputs.size() ? tensors[i].mutable_data_ptr() : data_of(tensors[i]);
    matrix.row_stride = axes.size() > 1 ? axes[1].strides[i] : 0;
    matrix.column_stride = axes.empty() ? 1 : axes[0].strides[i];
    grid.matrices.push_back(matrix);
  }
  return grid;
}

}  // namespace fastops::hip
