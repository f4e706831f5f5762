// The sums of the columns of a contiguous matrix: what bias_act_backward leaves to do where it has several blocks.
#include "backends/metal/kernels/arguments.h"

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

template [[host_name("fastops_column_sums_float")]] [[kernel]] decltype(column_sums<float>) column_sums<float>;
template [[host_name("fastops_column_sums_half")]] [[kernel]] decltype(column_sums<half>) column_sums<half>;
template [[host_name("fastops_column_sums_bfloat")]] [[kernel]] decltype(column_sums<bfloat>) column_sums<bfloat>;

}  // namespace mps
}  // namespace fastops
