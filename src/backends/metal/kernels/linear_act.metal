// activation(input @ weight.T + bias) in one kernel, with matrices of 8 x 8 elements that a SIMD-group multiplies.
#include <metal_simdgroup_matrix>

#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

// A tile of a matrix with the given origin in float; what lies outside of the matrix is 0.
template <class T>
void load_tile(
    device const T* matrix,
    long stride,
    uint2 size,  // columns, rows
    uint2 origin,
    threadgroup float (&tile)[product_tile][product_depth],
    uint thread_index) {
  for (uint i = thread_index; i < uint(product_tile * product_depth); i += product_threads) {
    const uint row = origin.y + i / product_depth;
    const uint column = origin.x + i % product_depth;
    tile[i / product_depth][i % product_depth] =
        row < size.y && column < size.x ? float(matrix[long(row) * stride + column]) : 0.0f;
  }
}

// A threadgroup makes a tile of product_tile x product_tile sums, each of its four SIMD-groups a quarter. pre = sum +
// bias, result = f(pre).
template <class A, class T>
[[kernel]] void linear_act(
    device const T* input [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* pre [[buffer(3)]],
    device T* result [[buffer(4)]],
    constant RowArguments& to [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd_group [[simdgroup_index_in_threadgroup]]) {
  threadgroup float left[product_tile][product_depth];
  threadgroup float right[product_tile][product_depth];
  threadgroup float sums[product_tile][product_tile];
  const uint2 origin = uint2(group.x * product_tile, group.y * product_tile);
  const uint top = simd_group / 2 * 16;
  const uint side = simd_group % 2 * 16;
  metal::simdgroup_float8x8 quarter[2][2];
  for (uint i = 0; i < 2; ++i) {
    for (uint j = 0; j < 2; ++j) quarter[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k = 0; k < to.depth; k += product_depth) {
    load_tile(input, to.strides[0], uint2(to.depth, to.rows), uint2(k, origin.y), left, thread_index);
    load_tile(weight, to.strides[1], uint2(to.depth, to.columns), uint2(k, origin.x), right, thread_index);
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint d = 0; d < uint(product_depth); d += 8) {
      metal::simdgroup_float8x8 a[2];
      metal::simdgroup_float8x8 b[2];
      for (uint i = 0; i < 2; ++i) {
        simdgroup_load(a[i], &left[top + 8 * i][d], product_depth);
        simdgroup_load(b[i], &right[side + 8 * i][d], product_depth, ulong2(0), true);
      }
      for (uint i = 0; i < 2; ++i) {
        for (uint j = 0; j < 2; ++j) simdgroup_multiply_accumulate(quarter[i][j], a[i], b[j], quarter[i][j]);
      }
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  for (uint i = 0; i < 2; ++i) {
    for (uint j = 0; j < 2; ++j) simdgroup_store(quarter[i][j], &sums[top + 8 * i][side + 8 * j], product_tile);
  }
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const Params<float> params = {to.params[0], to.params[1]};
  for (uint i = thread_index; i < uint(product_tile * product_tile); i += product_threads) {
    const uint row = origin.y + i / product_tile;
    const uint column = origin.x + i % product_tile;
    if (row >= to.rows || column >= to.columns) continue;
    Number z = Number(sums[i / product_tile][i % product_tile]);
    if (to.flags & has_bias) z = z + Number(float(bias[column]));
    if (to.flags & has_pre) pre[long(row) * to.strides[3] + column] = T(z.v);
    result[long(row) * to.strides[4] + column] = T(A::value(z, params).v);
  }
}

#define FASTOPS_LINEAR_ACT(name, A, T) FASTOPS_KERNEL("fastops_linear_" #name "_" #T, linear_act<A, T>)
#define FASTOPS_KERNELS(name, A, T) FASTOPS_LINEAR_ACT(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
