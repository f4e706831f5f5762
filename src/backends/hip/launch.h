// From tensors to the launchers' arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "backends/hip/kernels.h"
#include "ops/activation_spec.h"
#include "ops/dtype_of.h"

// The dispatch key that the kernels are registered under: PyTorch built for ROCm uses CUDA's, too.
#ifndef FASTOPS_GPU_KEY
#define FASTOPS_GPU_KEY CUDA
#endif

namespace fastops::hip {

using at::Tensor;

inline void check(Error error) { TORCH_CHECK(!error, "fastops: a GPU kernel could not be launched: ", error); }

// The current stream of the tensor's device; the emulator, whose tensors are the CPU's, has none.
inline void* stream_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  return device.getStream(tensor.device()).native_handle();
}

// Whether that stream is being captured into a graph, or may be.
inline bool is_captured(const Tensor& tensor) { return is_captured(stream_of(tensor)); }

// The memory of a tensor that kernels read only.
inline void* data_of(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// The memory of a tensor that kernels write to; null where there is none.
inline void* result_data(const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }

// Of two dimensions.
inline Matrix matrix_of(const Tensor& tensor) { return {data_of(tensor), tensor.stride(0), tensor.stride(1)}; }

// Of the tensor's device.
int64_t multiprocessors_of(const Tensor& tensor);
int64_t most_shared_bytes_of(const Tensor& tensor);

// Tensors of one size as matrices of one size, an element having the same row and column in all of them.
struct Grid {
  int64_t rows;
  int64_t columns;
  c10::SmallVector<Matrix, 6> matrices;  // of the outputs and the inputs, in order; absent for undefined tensors
};

// The grid of fewest rows, if there is one. Dimensions may change places, but with `keep_columns` the last one stays
// the columns. The kernels access memory best where the first tensor's elements lie one after another.
std::optional<Grid> find_grid(at::ArrayRef<Tensor> outputs, at::ArrayRef<Tensor> inputs, bool keep_columns = false);

inline Call call_for(const ActivationSpec& spec, const Tensor& tensor, const Grid& grid) {
  return {spec.id, spec.params(), dtype_of(tensor), grid.rows, grid.columns, stream_of(tensor)};
}

}  // namespace fastops::hip
