// The sums of the columns of a contiguous matrix: what bias_act_backward leaves to do where it has several blocks.
#ifndef FASTOPS_ONLY
#define FASTOPS_ONLY FASTOPS_EACH_TYPE(identity, Identity)
#endif

#include "backends/metal/kernels/arguments.h"
#include "backends/metal/kernels/instances.h"

namespace fastops {
namespace mps {

template <class T>
[[kernel]] void column_sums(
    device const float* blocks [[buffer(0)]],
    device T* result [[buffer(1)]],
    constant RowArguments& to [[buffer(2)]],
    uint column [[thread_position_in_grid]]) {
  float sum = 0.0f;
  for (uint row = 0; row < to.rows; ++row) sum += blocks[ulong(row) * to.columns + column];
  result[column] = T(sum);
}

// Of no activation: its name is left out.
#define FASTOPS_COLUMN_SUMS(name, A, T) FASTOPS_KERNEL("fastops_column_sums_" #T, column_sums<T>)
#define FASTOPS_KERNELS(name, A, T) FASTOPS_COLUMN_SUMS(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
