// The kernels of kernels/*.metal and their launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "backends/metal/kernels/arguments.h"
#include "ops/activation_spec.h"

namespace fastops::mps {

using at::Tensor;

enum class KernelKind : int {
  activation,
  backward1,  // derivatives of each order
  backward2,
  backward3,
  bias_act,
  bias_act_backward,
  gated_act,
  gated_act_backward,
  linear_act,
  column_sums,  // of no activation
  rows_small,   // with less threadgroup memory
  rows_large,
  rows_backward_small,
  rows_backward_large,
};
inline constexpr int kernel_kinds = 14;

// 0 for float32, 1 for float16, 2 for bfloat16.
int dtype_index(at::ScalarType dtype);

// The kernel of an activation for a dtype, or that of `tensor`. Steps on rows have kernels for float32 alone, in which
// they compute, whatever the tensors are.
struct KernelId {
  KernelKind kind;
  Activation activation;
  int dtype;

  KernelId(KernelKind kind, Activation activation, at::ScalarType dtype);
  KernelId(KernelKind kind, Activation activation, const Tensor& tensor)
      : KernelId(kind, activation, tensor.scalar_type()) {}
};

// The sizes of a grid of threads and of its threadgroups.
struct Grid {
  std::array<uint64_t, 3> threads;
  std::array<uint64_t, 3> group;
};

// Threadgroups of 256 threads for a grid of these sizes, with neighbours along its first dimension as far as there are
// enough of them, then along the second.
inline Grid grid_of(const std::array<uint64_t, 3>& threads) {
  Grid grid{threads, {}};
  uint64_t left = 256;
  for (size_t d = 0; d < 3; ++d) {
    grid.group[d] = std::min(left, std::bit_ceil(threads[d]));
    left /= grid.group[d];
  }
  return grid;
}

// Gives a result that is a lazy clone (copy on write) memory of its own: a launch takes the buffer that is there.
inline void own_memory(const Tensor& result) { static_cast<void>(result.mutable_data_ptr()); }

// Puts a kernel into PyTorch's command stream. The tensors are its buffers, in order, and the arguments the last one.
// An undefined tensor is one that the arguments tell the kernel to leave alone.
void launch(const KernelId& kernel, const Grid& grid, at::TensorList tensors, const void* arguments, uint64_t size);

template <class Arguments>
void launch(const KernelId& kernel, const Grid& grid, at::TensorList tensors, const Arguments& arguments) {
  launch(kernel, grid, tensors, &arguments, sizeof arguments);
}

}  // namespace fastops::mps
