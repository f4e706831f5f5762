// activation(self + bias) over rows, and its backward with the bias gradient summed in the same pass.
#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

// z = self + bias; pre = z, result = f(z).
template <class A, class T>
[[kernel]] void bias_act(
    device const T* self [[buffer(0)]],
    device const T* bias [[buffer(1)]],
    device T* pre [[buffer(2)]],
    device T* result [[buffer(3)]],
    constant RowArguments& to [[buffer(4)]],
    uint2 index [[thread_position_in_grid]]) {
  const uint column = index.x * quad;
  const uint count = metal::min(uint(quad), to.columns - column);
  const Params<float> params = {to.params[0], to.params[1]};
  Quad z = load(self + long(index.y) * to.strides[0] + column, count, to.vectors);
  if (to.flags & has_bias) {
    const Quad b = load(bias + column, count, to.vectors);
    for (int i = 0; i < quad; ++i) z.v[i] = z.v[i] + b.v[i];
  }
  if (to.flags & has_pre) store(z, pre + long(index.y) * to.strides[2] + column, count, to.vectors);
  for (int i = 0; i < quad; ++i) z.v[i] = A::value(z.v[i], params);
  store(z, result + long(index.y) * to.strides[3] + column, count, to.vectors);
}

// grad_self = grad_output * f'(saved + bias), or in terms of the output. Each threadgroup has block_columns columns of
// block_rows rows; their sums go into a row of `sums`, or into the bias gradient itself if there is one block only. The
// order of the additions depends on nothing but the tensor's shape.
template <class A, class T>
[[kernel]] void bias_act_backward(
    device const T* grad_output [[buffer(0)]],
    device const T* saved [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* grad_self [[buffer(3)]],
    device float* sums [[buffer(4)]],
    device T* grad_bias [[buffer(5)]],
    constant RowArguments& to [[buffer(6)]],
    uint2 thread_position [[thread_position_in_threadgroup]],
    uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup float partial[block_lanes][block_columns];
  const uint column = group.x * block_columns + thread_position.x * quad;
  const uint count = column < to.columns ? metal::min(uint(quad), to.columns - column) : 0;
  const uint first_row = group.y * to.block_rows;
  const uint end_row = metal::min(to.rows, first_row + to.block_rows);
  const Gradient<A> gradient = {{to.params[0], to.params[1]}, (to.flags & from_output) != 0};
  Quad total;
  for (int i = 0; i < quad; ++i) total.v[i] = Number(0.0f);
  if (count > 0) {
    Quad b;
    for (int i = 0; i < quad; ++i) b.v[i] = Number(0.0f);
    if (to.flags & has_bias) b = load(bias + column, count, to.vectors);
    for (uint row = first_row + thread_position.y; row < end_row; row += block_lanes) {
      Quad g = load(grad_output + long(row) * to.strides[0] + column, count, to.vectors);
      const Quad s = load(saved + long(row) * to.strides[1] + column, count, to.vectors);
      for (int i = 0; i < quad; ++i) {
        g.v[i] = gradient(g.v[i], s.v[i] + b.v[i]);
        total.v[i] = total.v[i] + g.v[i];
      }
      if (to.flags & has_grad_self) store(g, grad_self + long(row) * to.strides[3] + column, count, to.vectors);
    }
  }
  if (!(to.flags & has_grad_bias)) return;  // the same for all threads
  for (int i = 0; i < quad; ++i) partial[thread_position.y][thread_position.x * quad + i] = total.v[i].v;
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  const uint mine = thread_position.y * block_quads + thread_position.x;
  const uint result_column = group.x * block_columns + mine;
  if (mine >= uint(block_columns) || result_column >= to.columns) return;
  float sum = 0.0f;
  for (uint lane = 0; lane < uint(block_lanes); ++lane) sum += partial[lane][mine];
  if (to.block_rows >= to.rows) {
    grad_bias[result_column] = T(sum);
  } else {
    sums[ulong(group.y) * to.columns + result_column] = sum;
  }
}

#define FASTOPS_BIAS_ACT(name, A, T) FASTOPS_KERNEL("fastops_bias_" #name "_" #T, bias_act<A, T>)
#define FASTOPS_BIAS_ACT_BACKWARD(name, A, T) \
  FASTOPS_KERNEL("fastops_bias_" #name "_backward_" #T, bias_act_backward<A, T>)
#define FASTOPS_KERNELS(name, A, T) FASTOPS_BIAS_ACT(name, A, T) FASTOPS_BIAS_ACT_BACKWARD(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
