// Steps on rows: normalization, scales, dropout and activations one after another, in one pass over memory, forward and
// backward. They are computed in float32, whatever the tensors' dtypes; the activations of a kernel are one.
//
// A threadgroup takes some rows at a time, which are in its memory from the first step to the last.
#define FASTOPS_EACH_TYPE(name, A, ...) FASTOPS_KERNELS(name, activations::A, float)

#include "backends/metal/kernels/row_tile.h"

namespace fastops {
namespace mps {

// ---- a step ----

struct Vectors {
  device const void* of[most_row_vectors];
};

// h = h * weight + bias, as far as the step has them.
inline void affine(
    constant RowStepsArguments& to, constant RowStep& step, thread const Row& row, thread const Vectors& vectors) {
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    float h = row.at(0, slot);
    if (step.weight >= 0) h *= load_number(vectors.of[step.weight], to.vector_dtypes[step.weight], c);
    if (step.bias >= 0) h += load_number(vectors.of[step.bias], to.vector_dtypes[step.bias], c);
    row.at(0, slot) = h;
  }
}

// h = (h - mean) * multiplier, which is 1 / sqrt(variance + eps)
inline void normalize(constant RowStepsArguments& to, uint i, thread const Row& row) {
  constant RowStep& step = to.steps[i];
  const float n = float(to.columns);
  float mean = 0.0f;
  if (step.centered) {
    float sum = 0.0f;
    for (uint slot = 0; slot < row.slots; ++slot) {
      if (row.column(slot) < row.columns) sum += row.at(0, slot);
    }
    mean = row.sum(sum) / n;
  }
  float squares = 0.0f;
  for (uint slot = 0; slot < row.slots; ++slot) {
    if (row.column(slot) >= row.columns) continue;
    const float centered = row.at(0, slot) - mean;
    squares += centered * centered;
  }
  const float multiplier = 1.0f / metal::sqrt(row.sum(squares) / n + step.eps);
  for (uint slot = 0; slot < row.slots; ++slot) {
    if (row.column(slot) < row.columns) row.at(0, slot) = (row.at(0, slot) - mean) * multiplier;
  }
  if (row.thread_index > 0) return;
  row.multiplier(i) = multiplier;
  if (i == 0) row.first_mean() = mean;
}

// h = h * (0 or scale); the gradient goes the same way.
inline void drop(constant RowStep& step, thread const Row& row, ulong seed) {
  for (uint slot = 0; slot < row.slots; slot += row_numbers) {
    const uint first = row.first_column(slot);
    if (first >= row.columns) return;
    const uint call = first / row_group * row_calls + first % row_calls;
    const FourNumbers numbers = philox(seed, call, row.row, step.stream);
    for (uint k = 0; k < uint(row_numbers); ++k) {
      if (first + k * row_calls >= row.columns) break;
      row.at(0, slot + k) *= numbers.of[k] >= step.threshold ? step.scale : 0.0f;
    }
  }
}

template <class A>
void activate(constant RowStep& step, thread const Row& row) {
  const Params<float> params = {step.params[0], step.params[1]};
  for (uint slot = 0; slot < row.slots; ++slot) {
    if (row.column(slot) < row.columns) row.at(0, slot) = A::value(Number(row.at(0, slot)), params).v;
  }
}

// Puts h into the step's tile, where it has one.
inline void keep(constant RowStep& step, thread const Row& row) {
  if (step.kept <= 0) return;
  for (uint slot = 0; slot < row.slots; ++slot) {
    if (row.column(slot) < row.columns) row.at(uint(step.kept), slot) = row.at(0, slot);
  }
}

// The first `count` steps on h, with what the way back looks at put aside.
template <class A>
void go_forward(
    constant RowStepsArguments& to, uint count, thread const Row& row, thread const Vectors& vectors, ulong seed) {
  for (uint i = 0; i < count; ++i) {
    constant RowStep& step = to.steps[i];
    if (step.kind == uint(step_norm)) normalize(to, i, row);
    keep(step, row);
    if (step.kind == uint(step_activation)) {
      activate<A>(step, row);
    } else if (step.kind == uint(step_dropout)) {
      drop(step, row, seed);
    } else {
      affine(to, step, row, vectors);
    }
  }
}

inline bool has(constant RowStepsArguments& to, int tensor) { return (to.flags >> tensor & 1) != 0; }

// h = a row of a tensor
inline void load_row(constant RowStepsArguments& to, thread const Row& row, device const void* from, int tensor) {
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    row.at(0, slot) = has(to, tensor) ? load_number(from, to.dtypes[tensor], row.place(c, to.columns)) : 0.0f;
  }
}

// A row of a tensor = h, + added where there is such a tensor
inline void store_row(
    constant RowStepsArguments& to,
    thread const Row& row,
    device void* result,
    int tensor,
    device const void* added,
    bool adds) {
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    const ulong place = row.place(c, to.columns);
    float value = row.at(0, slot);
    if (adds) value += load_number(added, to.dtypes[row_added], place);
    store_number(value, result, to.dtypes[tensor], place);
  }
}

// result = the steps' result for x, + added
template <class A, int numbers>
[[kernel]] void rows(
    device const void* x [[buffer(0)]],
    device const void* added [[buffer(1)]],
    device void* result [[buffer(2)]],
    device const long* seed [[buffer(3)]],
    device const void* v0 [[buffer(4)]],
    device const void* v1 [[buffer(5)]],
    device const void* v2 [[buffer(6)]],
    device const void* v3 [[buffer(7)]],
    device const void* v4 [[buffer(8)]],
    device const void* v5 [[buffer(9)]],
    device const void* v6 [[buffer(10)]],
    device const void* v7 [[buffer(11)]],
    constant RowStepsArguments& to [[buffer(12)]],
    uint2 thread_position [[thread_position_in_threadgroup]],
    uint2 group_size [[threads_per_threadgroup]],
    uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup float memory[numbers];
  const Vectors vectors = {{v0, v1, v2, v3, v4, v5, v6, v7}};
  const ulong key = has(to, row_seed) ? ulong(*seed) : 0;
  for (uint first = group.y * group_size.y; first < to.rows; first += to.groups * group_size.y) {
    const Row row = row_of(memory, to, thread_position, group_size, first + thread_position.y);
    load_row(to, row, x, row_x);
    go_forward<A>(to, to.count, row, vectors, key);
    store_row(to, row, result, row_result, added, has(to, row_added));
  }
}

// ---- backward ----

// What the gradient of step i is made of: its input, of a norm the normalized one.
inline float kept_at(
    constant RowStepsArguments& to, uint i, thread const Row& row, device const void* x, uint slot, uint column) {
  constant RowStep& step = to.steps[i];
  if (step.kept != kept_in_x) return row.at(uint(step.kept), slot);
  const float value = load_number(x, to.dtypes[row_x], row.place(column, to.columns));
  return step.kind == uint(step_norm) ? (value - row.first_mean()) * row.multiplier(i) : value;
}

// Adds to the sums of the vectors of step i that are wanted, the weight's before the bias'; `sum` is behind them.
inline void add_to_sums(
    constant RowStepsArguments& to, uint i, thread const Row& row, device const void* x, uint sum) {
  constant RowStep& step = to.steps[i];
  const uint bias = sum - 1;
  const uint weight = bias - step.wants_bias_grad;
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    const float h = row.at(0, slot);
    if (step.wants_bias_grad) row.at(bias, slot) += h;
    if (step.wants_weight_grad) row.at(weight, slot) += h * kept_at(to, i, row, x, slot, c);
  }
}

// h, the gradient of a norm's result, becomes that of its input.
inline void through_norm(constant RowStepsArguments& to, uint i, thread const Row& row, device const void* x) {
  const float n = float(to.columns);
  float sum = 0.0f;
  float products = 0.0f;
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    sum += row.at(0, slot);
    products += row.at(0, slot) * kept_at(to, i, row, x, slot, c);
  }
  float mean = 0.0f;
  if (to.steps[i].centered) mean = row.sum(sum) / n;
  const float along = row.sum(products) / n;
  for (uint slot = 0; slot < row.slots; ++slot) {
    const uint c = row.column(slot);
    if (c >= row.columns) continue;
    row.at(0, slot) = (row.at(0, slot) - mean - kept_at(to, i, row, x, slot, c) * along) * row.multiplier(i);
  }
}

// h, the gradient of the result of step i, becomes that of its input.
template <class A>
void go_back(
    constant RowStepsArguments& to,
    uint i,
    thread const Row& row,
    device const void* x,
    thread const Vectors& vectors,
    ulong seed) {
  constant RowStep& step = to.steps[i];
  if (step.kind == uint(step_activation)) {
    const Params<float> params = {step.params[0], step.params[1]};
    for (uint slot = 0; slot < row.slots; ++slot) {
      const uint c = row.column(slot);
      if (c >= row.columns) continue;
      const Number input = Number(kept_at(to, i, row, x, slot, c));
      row.at(0, slot) = A::template gradient<Number>(Number(row.at(0, slot)), input, params).v;
    }
  } else if (step.kind == uint(step_dropout)) {
    drop(step, row, seed);
  } else {
    if (step.weight >= 0) {
      for (uint slot = 0; slot < row.slots; ++slot) {
        const uint c = row.column(slot);
        if (c >= row.columns) continue;
        row.at(0, slot) *= load_number(vectors.of[step.weight], to.vector_dtypes[step.weight], c);
      }
    }
    if (step.kind == uint(step_norm)) through_norm(to, i, row, x);
  }
}

// result = the gradient of x, + added; value = the steps' result for x; sums = the gradients of the steps' weights and
// biases, as far as each threadgroup's rows go. The order of the additions depends on nothing but the tensors' shape.
template <class A, int numbers>
[[kernel]] void rows_backward(
    device const void* x [[buffer(0)]],
    device const void* grad [[buffer(1)]],
    device const void* added [[buffer(2)]],
    device void* result [[buffer(3)]],
    device void* value [[buffer(4)]],
    device float* sums [[buffer(5)]],
    device const long* seed [[buffer(6)]],
    device const void* v0 [[buffer(7)]],
    device const void* v1 [[buffer(8)]],
    device const void* v2 [[buffer(9)]],
    device const void* v3 [[buffer(10)]],
    device const void* v4 [[buffer(11)]],
    device const void* v5 [[buffer(12)]],
    device const void* v6 [[buffer(13)]],
    device const void* v7 [[buffer(14)]],
    constant RowStepsArguments& to [[buffer(15)]],
    uint2 thread_position [[thread_position_in_threadgroup]],
    uint2 group_size [[threads_per_threadgroup]],
    uint2 group [[threadgroup_position_in_grid]]) {
  threadgroup float memory[numbers];
  const Vectors vectors = {{v0, v1, v2, v3, v4, v5, v6, v7}};
  const ulong key = has(to, row_seed) ? ulong(*seed) : 0;
  const Row places = row_of(memory, to, thread_position, group_size, 0);
  for (uint sum = 0; sum < to.sums; ++sum) {
    for (uint slot = 0; slot < to.slots; ++slot) places.at(to.first_sum + sum, slot) = 0.0f;
  }
  for (uint first = group.y * group_size.y; first < to.rows; first += to.groups * group_size.y) {
    const Row row = row_of(memory, to, thread_position, group_size, first + thread_position.y);
    if (to.forward_steps > 0 || has(to, row_value)) load_row(to, row, x, row_x);
    go_forward<A>(to, to.forward_steps, row, vectors, key);
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // what norms found can be read
    if (has(to, row_value)) store_row(to, row, value, row_value, added, false);
    load_row(to, row, grad, row_grad);
    uint sum = to.first_sum + to.sums;
    for (uint i = to.count; i > 0; --i) {
      constant RowStep& step = to.steps[i - 1];
      add_to_sums(to, i - 1, row, x, sum);
      sum -= step.wants_weight_grad + step.wants_bias_grad;
      go_back<A>(to, i - 1, row, x, vectors, key);
    }
    if (has(to, row_result)) store_row(to, row, result, row_result, added, has(to, row_added));
  }
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  if (thread_position.y > 0) return;
  for (uint i = 0; i < to.sums; ++i) {
    for (uint slot = 0; slot < to.slots; ++slot) {
      const uint c = places.column(slot);
      if (c >= to.columns) continue;
      float sum = 0.0f;
      for (uint r = 0; r < group_size.y; ++r) {
        sum += places.at(to.first_sum + i, slot + r * to.slots);
      }
      sums[(ulong(group.y) * to.sums + i) * to.columns + c] = sum;
    }
  }
}

#define FASTOPS_ROWS_SMALL(name, A, T) FASTOPS_KERNEL("fastops_rows_" #name "_small_" #T, rows<A, row_memory_small>)
#define FASTOPS_ROWS_LARGE(name, A, T) FASTOPS_KERNEL("fastops_rows_" #name "_large_" #T, rows<A, row_memory_large>)
#define FASTOPS_ROWS_BACKWARD_SMALL(name, A, T) \
  FASTOPS_KERNEL("fastops_rows_" #name "_backward_small_" #T, rows_backward<A, row_memory_small>)
#define FASTOPS_ROWS_BACKWARD_LARGE(name, A, T) \
  FASTOPS_KERNEL("fastops_rows_" #name "_backward_large_" #T, rows_backward<A, row_memory_large>)
#define FASTOPS_KERNELS(name, A, T)      \
  FASTOPS_ROWS_SMALL(name, A, T)         \
  FASTOPS_ROWS_LARGE(name, A, T)         \
  FASTOPS_ROWS_BACKWARD_SMALL(name, A, T) \
  FASTOPS_ROWS_BACKWARD_LARGE(name, A, T)
FASTOPS_ONLY

}  // namespace mps
}  // namespace fastops
