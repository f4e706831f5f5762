// The elementwise kernels: one template for all of them, and what they share with the others.
//
// Where rows are contiguous and aligned, a thread takes 16 bytes of a row at once, else single elements of any stride.
// The arithmetic is the same (the compilers are told to fuse no products and sums of themselves), so a result never
// depends on its place in memory.
#pragma once

#include <algorithm>

#include "backends/hip/kernels.h"
#include "backends/hip/kernels/number.h"

// The activations that there are kernels for: all, but in some tests.
#ifndef FASTOPS_KERNEL_ACTIVATIONS
#define FASTOPS_KERNEL_ACTIVATIONS FASTOPS_ACTIVATIONS
#endif

namespace fastops::hip {

inline constexpr int block_threads = 256;

// A matrix as the kernels see it, in elements or in packets of `width` elements that lie beside each other.
template <class Storage>
struct Operand {
  Storage* data;
  int64_t row_stride;
  int64_t column_stride;

  Operand() = default;
  Operand(Matrix m) : data(static_cast<Storage*>(m.data)), row_stride(m.row_stride), column_stride(m.column_stride) {}

  // Whether all packets are 16 aligned bytes.
  bool has_packets(int64_t rows) const {
    return !data || (column_stride == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
                     (rows == 1 || row_stride % Packet<Storage, 16 / sizeof(Storage)>::width == 0));
  }

  __device__ Storage at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }

  template <int width>
  __device__ Packet<Storage, width>& packet(int64_t row, int64_t column) const {
    return *reinterpret_cast<Packet<Storage, width>*>(data + row * row_stride + column * column_stride);
  }
};

template <class Storage, int count>
struct Operands {
  Operand<Storage> of[count];
};

// formula(in, out) for each element of a packet: `in` has its number of each input, `out` gets that of each output;
// outputs without data are not stored. Inputs may be outputs.
template <int width, class Storage, int inputs, int outputs, class Formula>
__device__ void transform_packet(Formula formula, const Operands<Storage, inputs>& input,
                                 const Operands<Storage, outputs>& output, int64_t row, int64_t column) {
  using N = Number<Compute<Storage>>;
  Packet<Storage, width> in[inputs];
  Packet<Storage, width> out[outputs];
  for (int i = 0; i < inputs; ++i) in[i] = input.of[i].template packet<width>(row, column);
#pragma unroll
  for (int k = 0; k < width; ++k) {
    N x[inputs];
    N y[outputs];
    for (int i = 0; i < inputs; ++i) x[i] = widen(in[i].element[k]);
    formula(x, y);
    for (int i = 0; i < outputs; ++i) out[i].element[k] = narrow<Storage>(y[i].v);
  }
  for (int i = 0; i < outputs; ++i) {
    if (output.of[i].data) output.of[i].template packet<width>(row, column) = out[i];
  }
}

// A thread takes one of the first `packets` packets of a row, or one element of what is left of it.
template <class Storage, int inputs, int outputs, class Formula>
__global__ void __launch_bounds__(block_threads)
    transform(Formula formula, Operands<Storage, inputs> input, Operands<Storage, outputs> output, int64_t rows,
              int64_t columns, int64_t packets) {
  constexpr int width = 16 / sizeof(Storage);
  const int64_t row = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * blockDim.y + threadIdx.y;
  const int64_t piece = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  if (piece < packets) {
    transform_packet<width>(formula, input, output, row, piece * width);
  } else if (const int64_t column = piece + packets * (width - 1); column < columns) {
    transform_packet<1>(formula, input, output, row, column);
  }
}

// The shape of blocks for rows of so many pieces of work: as wide as fills them, at most `widest`.
inline dim3 block_shape(int64_t pieces, int widest) {
  int best = 1;
  for (int width = 2; width <= widest && width < 2 * pieces; width *= 2) {
    if (width <= 32 || divide_up(pieces, width) * width <= divide_up(pieces, best) * best) best = width;
  }
  return dim3(best, block_threads / best);
}

template <class Storage, int inputs, int outputs, class Formula>
Error launch_transform(const Call& call, Formula formula, const Matrix (&in)[inputs], const Matrix (&out)[outputs]) {
  if (call.rows == 0 || call.columns == 0) return nullptr;
  Operands<Storage, inputs> input;
  Operands<Storage, outputs> output;
  bool has_packets = true;
  for (int i = 0; i < inputs; ++i) {
    input.of[i] = in[i];
    has_packets = has_packets && input.of[i].has_packets(call.rows);
  }
  for (int i = 0; i < outputs; ++i) {
    output.of[i] = out[i];
    has_packets = has_packets && output.of[i].has_packets(call.rows);
  }
  const int64_t width = 16 / sizeof(Storage);
  const int64_t packets = has_packets ? call.columns / width : 0;
  const int64_t pieces = call.columns - packets * (width - 1);
  const dim3 block = block_shape(pieces, block_threads);
  const int64_t row_blocks = divide_up(call.rows, block.y);
  const int64_t layers = divide_up(row_blocks, most_blocks_y);
  const dim3 grid(divide_up(pieces, block.x), divide_up(row_blocks, layers), layers);
  return launch(transform<Storage, inputs, outputs, Formula>, grid, block, 0, call.stream, formula, input, output,
                call.rows, call.columns, packets);
}

// The parameters in the type that is computed with.
template <class Storage>
Params<Compute<Storage>> compute_params(const Call& call) {
  using S = Compute<Storage>;
  return {static_cast<S>(call.params.first), static_cast<S>(call.params.second)};
}

// f.template operator()<A, Storage>() for the call's activation and dtype.
template <class A, class F>
Error dispatch_dtype(const Call& call, F f) {
  switch (call.dtype) {
    case Dtype::float32:
      return f.template operator()<A, float>();
    case Dtype::float64:
      return f.template operator()<A, double>();
    case Dtype::bfloat16:
      return f.template operator()<A, bfloat16>();
    case Dtype::float16:
      return f.template operator()<A, float16>();
  }
  return "unknown dtype";
}
template <class F>
Error dispatch(const Call& call, F f) {
#define FASTOPS_CASE(name, A, ...) \
  case Activation::name:           \
    return dispatch_dtype<activations::A>(call, f);
  switch (call.activation) {
    FASTOPS_KERNEL_ACTIVATIONS(FASTOPS_CASE)
    default:
      return "unknown activation";
  }
#undef FASTOPS_CASE
}

// The first derivative in terms of the input or, where the activation has that, of the output; for any number type.
template <class A, bool from_output, class S>
struct Gradient {
  Params<S> params;

  template <class G, class T>
  __device__ T operator()(G g, T s) const {
    if constexpr (from_output) {
      return A::template gradient_from_output<T>(g, s, params);
    } else {
      return A::template gradient<T>(g, s, params);
    }
  }
};

}  // namespace fastops::hip
