// The activations, bias and gates: the work shared among threads by elements or by rows.
#include <cstring>
#include <initializer_list>

#include "backends/cpu/launchers/strided.h"

namespace fastops::cpu {
namespace {

const Kernels& kernels_of(const Call& call) { return kernels(call.activation, call.dtype); }

// Whether to write a result past the caches: one so large that it would drive everything else out of them, itself
// included. Measured: from 16 MiB on, a result that is read again right away is ready sooner so, too. The kernels come
// to whole vectors by whole elements: at an address that is no multiple of their size, never.
bool worth_streaming(const void* result, int64_t n, int64_t size) {
  return n * size >= int64_t{16} << 20 && reinterpret_cast<uintptr_t>(result) % size == 0;
}

// Whether rows follow each other without gaps. `strides` are those of all matrices.
bool without_gaps(int64_t columns, std::initializer_list<int64_t> strides) {
  return std::all_of(strides.begin(), strides.end(), [=](int64_t stride) { return stride == columns; });
}

// Rows of few columns, of which there are many side by side, are taken so many at a time as one: alone, each would take
// a vector for itself.
int64_t rows_at_once(int64_t rows, int64_t columns, std::initializer_list<int64_t> strides) {
  constexpr int64_t wide = 64;
  if (columns == 0 || columns > wide / 4 || rows * columns < 4 * wide) return 1;
  return without_gaps(columns, strides) ? wide / columns : 1;
}

template <class AnyRows>
AnyRows joined(AnyRows rows, int64_t count) {
  return {rows.data, rows.stride * count};
}

// A row `count` times, one after another; null if it is.
const void* repeated(Caller& caller, const void* row, int64_t bytes, int64_t count) {
  if (!row || count == 1) return row;
  char* const rows = static_cast<char*>(caller.take(bytes * count));
  for (int64_t i = 0; i < count; ++i) std::memcpy(rows + i * bytes, row, bytes);
  return rows;
}

// Rows are dealt out in blocks whose number does not depend on the threads, each with its own column sums; the sums are
// added in order. So they have the same bits for every number of threads.
constexpr int64_t most_blocks = 64;

// to[c] += from[c]
void add(Dtype dtype, void* to, const void* from, int64_t n) {
  const auto add_all = [n](auto* sums, const auto* values) {
    for (int64_t c = 0; c < n; ++c) sums[c] += values[c];
  };
  if (dtype == Dtype::float64) {
    add_all(static_cast<double*>(to), static_cast<const double*>(from));
  } else {
    add_all(static_cast<float*>(to), static_cast<const float*>(from));
  }
}

// run(at, rows, columns) for parts of the rows, or of all elements as one row; at(matrix) is the matrix there.
template <class Run>
void share_gated(Caller& caller, Dtype dtype, int64_t rows, int64_t columns, bool in_one_row, Run run) {
  if (in_one_row) {
    return share_elements(caller, rows * columns, [&](int64_t begin, int64_t end) {
      run([&](auto matrix) { return from_row(decltype(matrix){matrix.data, 1}, begin, dtype); }, 1, end - begin);
    });
  }
  share_rows(caller, rows, columns, [&](int64_t begin, int64_t end) {
    run([&](auto matrix) { return from_row(matrix, begin, dtype); }, end - begin, columns);
  });
}

}  // namespace

void activation_forward(Caller& caller, const Call& call, const void* x, void* y, int64_t n) {
  const auto kernel = kernels_of(call).forward;
  const bool stream = y != x && worth_streaming(y, n, element_size(call.dtype));
  share_elements(caller, n, [&](int64_t begin, int64_t end) {
    const auto at = [&](auto elements) { return from_row(elements, begin, call.dtype).data; };
    kernel(at(ConstRows{x, 1}), at(Rows{y, 1}), end - begin, call.params, stream);
  });
}

void activation_backward(Caller& caller, const Call& call, int64_t order, bool from_output, const void* grad,
                         const void* saved, void* dx, int64_t n) {
  const Kernels& table = kernels_of(call);
  const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
  const bool stream = worth_streaming(dx, n, element_size(call.dtype));
  share_elements(caller, n, [&](int64_t begin, int64_t end) {
    const auto at = [&](auto elements) { return from_row(elements, begin, call.dtype).data; };
    kernel(at(ConstRows{grad, 1}), at(ConstRows{saved, 1}), at(Rows{dx, 1}), end - begin, call.params, stream);
  });
}

void activation_forward(Caller& caller, const Call& call, const Walk& walk, const ConstStrided& x, const Strided& y) {
  const auto kernel = kernels_of(call).forward;
  for_each_piece<1>(caller, walk, element_size(call.dtype), {x}, y, [&](const auto& from, void* to, int64_t n) {
    kernel(from[0], to, n, call.params, /*stream=*/false);
  });
}

void activation_backward(Caller& caller, const Call& call, int64_t order, bool from_output, const Walk& walk,
                         const ConstStrided& grad, const ConstStrided& saved, const Strided& dx) {
  const Kernels& table = kernels_of(call);
  const auto kernel = (from_output ? table.backward_from_output : table.backward)[order - 1];
  for_each_piece<2>(
      caller, walk, element_size(call.dtype), {grad, saved}, dx,
      [&](const auto& from, void* to, int64_t n) { kernel(from[0], from[1], to, n, call.params, /*stream=*/false); });
}

void copy_elements(Caller& caller, Dtype dtype, const Walk& walk, const ConstStrided& from, void* to) {
  const int64_t bytes = element_size(dtype);
  const auto target = [&](int64_t element) -> void* { return static_cast<char*>(to) + element * bytes; };
  // Where elements lie side by side along another axis, there is a matrix to transpose for each place along the rest.
  const auto axes = std::span(from.stride).first(walk.axes);
  const int64_t side = axes[0] == 1 ? walk.axes : std::find(axes.begin(), axes.end(), 1) - axes.begin();
  if (side == walk.axes) {
    return share_elements(caller, elements_of(walk), [&](int64_t begin, int64_t end) {
      gather(walk, from, bytes, begin, end - begin, target(begin));
    });
  }
  constexpr int64_t columns = 64, rows = 1024;  // of a part of a matrix
  const auto kernel = row_kernels(dtype).transpose;
  const int64_t parts_across = (walk.size[side] + columns - 1) / columns;
  const int64_t parts = (walk.size[0] + rows - 1) / rows * parts_across;
  const int64_t part_size = std::min(rows, walk.size[0]) * columns;
  share(caller, elements_of(walk) / walk.size[0] / walk.size[side] * parts,
        std::max<int64_t>(1, grain_size / part_size), [&](int64_t begin, int64_t end) {
          for (; begin < end; ++begin) {
            const int64_t row = begin % parts / parts_across * rows;
            const int64_t column = begin % parts_across * columns;
            int64_t read = row * axes[0] + column, written = row, stride = 0;
            for (int64_t axis = 1, rest = begin / parts, step = walk.size[0]; axis < walk.axes; ++axis) {
              if (axis == side) {
                stride = step;
                written += column * step;
              } else {
                read += rest % walk.size[axis] * axes[axis];
                written += rest % walk.size[axis] * step;
                rest /= walk.size[axis];
              }
              step *= walk.size[axis];
            }
            kernel({static_cast<const char*>(from.data) + read * bytes, axes[0]}, std::min(rows, walk.size[0] - row),
                   std::min(columns, walk.size[side] - column), {target(written), stride});
          }
        });
}

void bias_forward(Caller& caller, const Call& call, ConstRows x, const void* bias, Rows z, Rows y, int64_t rows,
                  int64_t columns) {
  const auto kernel = kernels_of(call).bias_forward;
  const Dtype dtype = call.dtype;
  const int64_t at_once = rows_at_once(rows, columns, {x.stride, y.stride, z.data ? z.stride : columns});
  const void* const bias_row = repeated(caller, bias, columns * element_size(dtype), at_once);
  const auto run = [&](int64_t begin, int64_t end, int64_t count) {
    kernel(joined(from_row(x, begin, dtype), count), bias_row, joined(from_row(z, begin, dtype), count),
           joined(from_row(y, begin, dtype), count), (end - begin) / count, columns * count, call.params);
  };
  const int64_t whole = rows / at_once;
  share_rows(caller, whole, columns * at_once,
             [&](int64_t begin, int64_t end) { run(begin * at_once, end * at_once, at_once); });
  if (whole * at_once < rows) run(whole * at_once, rows, 1);
}

void bias_backward(Caller& caller, const Call& call, bool from_output, ConstRows grad, ConstRows saved,
                   const void* bias, Rows dx, void* sums, Rows y, int64_t rows, int64_t columns) {
  const Kernels& table = kernels_of(call);
  const auto kernel = from_output ? table.bias_backward_from_output : table.bias_backward;
  const Dtype dtype = call.dtype;
  const int64_t at_once = rows_at_once(
      rows, columns, {grad.stride, saved.stride, dx.data ? dx.stride : columns, y.data ? y.stride : columns});
  const void* const bias_row = repeated(caller, bias, columns * element_size(dtype), at_once);
  const int64_t wide_rows = rows / at_once;  // of `at_once` rows each
  const int64_t wide_columns = columns * at_once;
  const bool has_rest = wide_rows * at_once < rows;
  const int64_t least_rows = std::max<int64_t>(1, grain_size / std::max<int64_t>(1, wide_columns));
  const int64_t rows_of_block = std::max(least_rows, (wide_rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = std::max<int64_t>(1, (wide_rows + rows_of_block - 1) / rows_of_block);

  // Where the first block's sums are the result's, they are written there at once.
  const int64_t sum_size = accumulator_size(dtype);
  char* const first_sums =
      at_once == 1 || !sums ? static_cast<char*>(sums) : static_cast<char*>(caller.take(wide_columns * sum_size));
  char* const more_sums =
      sums && blocks > 1 ? static_cast<char*>(caller.take((blocks - 1) * wide_columns * sum_size)) : nullptr;
  char* const rest_sums = sums && has_rest ? static_cast<char*>(caller.take(columns * sum_size)) : nullptr;
  const auto sums_of = [&](int64_t block) {
    return block == 0 || !sums ? first_sums : more_sums + (block - 1) * wide_columns * sum_size;
  };

  const auto run = [&](int64_t begin, int64_t end, int64_t count, void* to) {
    kernel(joined(from_row(grad, begin, dtype), count), joined(from_row(saved, begin, dtype), count), bias_row,
           joined(from_row(dx, begin, dtype), count), to, joined(from_row(y, begin, dtype), count),
           (end - begin) / count, columns * count, call.params);
  };
  share(caller, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t end = std::min(wide_rows, (block + 1) * rows_of_block);
      run(block * rows_of_block * at_once, end * at_once, at_once, sums_of(block));
    }
  });
  if (has_rest) run(wide_rows * at_once, rows, 1, rest_sums);
  if (!sums) return;
  for (int64_t block = 1; block < blocks; ++block) add(dtype, first_sums, sums_of(block), wide_columns);
  if (at_once > 1) {
    std::memcpy(sums, first_sums, columns * sum_size);
    for (int64_t i = 1; i < at_once; ++i) add(dtype, sums, first_sums + i * columns * sum_size, columns);
  }
  if (has_rest) add(dtype, sums, rest_sums, columns);
}

void gated_forward(Caller& caller, const Call& call, ConstRows gate, ConstRows up, Rows y, int64_t rows,
                   int64_t columns) {
  const auto kernel = kernels_of(call).gated_forward;
  share_gated(caller, call.dtype, rows, columns, without_gaps(columns, {gate.stride, up.stride, y.stride}),
              [&](auto at, int64_t rows_here, int64_t columns_here) {
                kernel(at(gate), at(up), at(y), rows_here, columns_here, call.params);
              });
}

void gated_backward(Caller& caller, const Call& call, ConstRows grad, ConstRows gate, ConstRows up, Rows dgate,
                    Rows dup, Rows y, int64_t rows, int64_t columns) {
  const auto kernel = kernels_of(call).gated_backward;
  const auto stride_of = [&](Rows result) { return result.data ? result.stride : columns; };
  const bool in_one_row =
      without_gaps(columns, {grad.stride, gate.stride, up.stride, stride_of(dgate), stride_of(dup), stride_of(y)});
  share_gated(caller, call.dtype, rows, columns, in_one_row, [&](auto at, int64_t rows_here, int64_t columns_here) {
    kernel(at(grad), at(gate), at(up), at(dgate), at(dup), at(y), rows_here, columns_here, call.params);
  });
}

}  // namespace fastops::cpu
