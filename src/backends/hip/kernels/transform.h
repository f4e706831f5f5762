// The elementwise kernels: two templates for all of them, and what they share with the others.
//
// A thread takes a piece of a row: as many elements as 16 bytes are. Each operand has its own way to them, the same for
// all threads: in one access where rows are contiguous and aligned, one element for all where they are the same, else
// one after another. Where no operand has 16 bytes at once, a thread takes one element: its neighbours then have the
// next ones. Where all operands are one row that is contiguous and aligned, as they mostly are, there is a kernel that
// has but this way to them. The arithmetic is the same (the compilers are told to fuse no products and sums of
// themselves), so a result never depends on its place in memory.
#pragma once

#include <algorithm>

#include "backends/hip/kernels.h"
#include "backends/hip/kernels/number.h"

// The activations that there are kernels for: all, but in some tests.
#ifndef FASTOPS_KERNEL_ACTIVATIONS
#define FASTOPS_KERNEL_ACTIVATIONS FASTOPS_ACTIVATIONS
#endif

namespace fastops::hip {

// The elements that 16 bytes have.
template <class Storage>
inline constexpr int packet_width = 16 / sizeof(Storage);

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
                     (rows == 1 || row_stride % packet_width<Storage> == 0));
  }

  // To what begins at a column.
  void move(int64_t column) {
    if (data) data += column * column_stride;
  }

  __device__ Storage& at(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }

  template <int width>
  __device__ Packet<Storage, width>& packet(int64_t row, int64_t column) const {
    Storage& first = width == 1 ? at(row, column) : data[row * row_stride + column];
    return reinterpret_cast<Packet<Storage, width>&>(first);
  }
};

// Some elements of a row beside each other in registers. They are set from the first to the last.
template <class Storage, int count, bool in_pairs = sizeof(Storage) == 2 && count % 2 == 0>
struct Piece {
  Storage element[count];

  __device__ Storage get(int k) const { return element[k]; }
  __device__ void set(int k, Storage value) { element[k] = value; }
};

// Of 16 bits, two in a register: where ways to a piece meet, compilers would keep one in each.
template <class Storage, int count>
struct Piece<Storage, count, true> {
  uint32_t pair[count / 2];

  __device__ Storage get(int k) const { return {static_cast<uint16_t>(pair[k / 2] >> (16 * (k % 2)))}; }
  __device__ void set(int k, Storage value) {
    const uint32_t bits = value.bits;
    pair[k / 2] = k % 2 == 0 ? bits : pair[k / 2] | bits << 16;
  }
};

// As what a piece is read and written: clang cuts packets of single numbers of 16 bits.
template <class Storage, int count>
using PieceBytes =
    std::conditional_t<sizeof(Storage) == 2 && count % 2 == 0, Packet<uint32_t, count / 2>, Packet<Storage, count>>;

template <class Storage, int count>
__device__ Piece<Storage, count> opaque(Piece<Storage, count> piece) {
  if constexpr (sizeof(Storage) == 2 && count > 1) {
    for (uint32_t& pair : piece.pair) pair = opaque(pair);
  } else if constexpr (sizeof(Storage) == 2) {
    piece.element[0].bits = static_cast<uint16_t>(opaque(uint32_t{piece.element[0].bits}));
  }
  return piece;
}

// How a thread accesses the elements of a piece: all at once, one that is each of them, or one after another.
enum class Access { packet, broadcast, elements };

// A matrix of which threads take pieces. The way is a value and not a template's argument, as there would be a kernel
// for each combination of ways; all threads branch alike.
template <class Storage>
struct Pieces : Operand<Storage> {
  Access access;

  Pieces() = default;
  Pieces(Matrix m, int64_t rows) : Operand<Storage>(m) {
    access = this->has_packets(rows) ? Access::packet : m.column_stride == 0 ? Access::broadcast : Access::elements;
  }

  // Whether threads should take pieces for its sake: it has packets, and more than a row that stays in cache.
  bool wants_pieces(int64_t rows) const {
    return this->data && access == Access::packet && (rows == 1 || this->row_stride != 0);
  }

  // The elements from (row, column) on, in two calls. Those for packets come first for all operands, so that none is
  // asked for only after another's have come: where ways meet, compilers wait. Single elements are accessed from the
  // last one on, as clang would have both ways share their last access, and cut the packet for it.
  template <int width>
  __device__ void load_packet(Piece<Storage, width>& piece, int64_t row, int64_t column) const {
    if (width > 1 && access != Access::packet) return;
    piece = bit_cast<Piece<Storage, width>>(this->template packet<width>(row, column));
  }
  template <int width>
  __device__ void load_others(Piece<Storage, width>& piece, int64_t row, int64_t column) const {
    if (width == 1 || access == Access::packet) return;
    const Storage* const from = this->data + opaque(row * this->row_stride + column * this->column_stride);
    Storage element[width];
    if (access == Access::broadcast) {
      element[0] = *from;
      for (int k = 1; k < width; ++k) element[k] = element[0];
    } else {
      for (int k = width - 1; k >= 0; --k) element[k] = from[k * this->column_stride];
    }
    for (int k = 0; k < width; ++k) piece.set(k, element[k]);
  }

  template <int width>
  __device__ void store(const Piece<Storage, width>& piece, int64_t row, int64_t column) const {
    if (width == 1 || access == Access::packet) {
      this->template packet<width>(row, column) = bit_cast<Packet<Storage, width>>(piece);
    } else {
      Storage* const to = &this->at(row, column);
      for (int k = width - 1; k >= 0; --k) to[k * this->column_stride] = piece.get(k);
    }
  }
};

// A row of aligned packets, and what is left of it.
template <class Storage>
struct PacketRow {
  Storage* data;

  PacketRow() = default;
  PacketRow(const Pieces<Storage>& pieces) : data(pieces.data) {}

  __device__ Storage& at(int64_t, int64_t column) const { return data[column]; }

  template <int width>
  __device__ void load_packet(Piece<Storage, width>& piece, int64_t row, int64_t column) const {
    piece = bit_cast<Piece<Storage, width>>(reinterpret_cast<const Packet<Storage, width>&>(at(row, column)));
  }
  template <int width>
  __device__ void load_others(Piece<Storage, width>&, int64_t, int64_t) const {}
  template <int width>
  __device__ void store(const Piece<Storage, width>& piece, int64_t row, int64_t column) const {
    reinterpret_cast<Packet<Storage, width>&>(at(row, column)) = bit_cast<Packet<Storage, width>>(piece);
  }
};

template <class Storage, int count, template <class> class Operand = Pieces>
struct Operands {
  Operand<Storage> of[count];

  Operands() = default;
  template <template <class> class Other>
  Operands(const Operands<Storage, count, Other>& others) {
    for (int i = 0; i < count; ++i) of[i] = others.of[i];
  }

  Operands from_column(int64_t column) const {
    Operands result = *this;
    for (Operand<Storage>& operand : result.of) operand.move(column);
    return result;
  }
};

// formula(in, out) for each element of a piece: `in` has its number of each input, `out` gets that of each output;
// outputs without data are not stored, but where there is one alone it has data. Inputs may be outputs.
template <int width, class Storage, int inputs, int outputs, template <class> class Operand, class Formula>
__device__ void transform_piece(Formula formula, const Operands<Storage, inputs, Operand>& input,
                                const Operands<Storage, outputs, Operand>& output, int64_t row, int64_t column) {
  using N = NumberOf<Storage>;
  Piece<Storage, width> in[inputs];
  Piece<Storage, width> out[outputs];
  for (int i = 0; i < inputs; ++i) input.of[i].load_packet(in[i], row, column);
  for (int i = 0; i < inputs; ++i) input.of[i].load_others(in[i], row, column);
#pragma unroll
  for (int k = 0; k < width; ++k) {
    N x[inputs];
    N y[outputs];
    for (int i = 0; i < inputs; ++i) x[i] = widen(in[i].get(k));
    formula(x, y);
    for (int i = 0; i < outputs; ++i) out[i].set(k, narrow<Storage>(y[i].v));
  }
  for (int i = 0; i < outputs; ++i) {
    if (outputs == 1 || output.of[i].data) output.of[i].store(out[i], row, column);
  }
}

// Of the blocks that nvcc is to find room for on a multiprocessor: 0 leaves the number to it. For float64 it would find
// room for one or two more by spilling a register.
template <class Storage>
inline constexpr int least_blocks = sizeof(Storage) == 8 ? 2 : 0;

// A thread takes one of the first `pieces` pieces of a row, or one element of what is left of it. Less than 2^32
// threads have a row (most_threads_x).
template <class Storage, int inputs, int outputs, class Formula>
__global__ void __launch_bounds__(block_threads, least_blocks<Storage>)
    transform(Formula formula, Operands<Storage, inputs> input, Operands<Storage, outputs> output, int64_t rows,
              int64_t columns, uint32_t pieces) {
  constexpr int width = packet_width<Storage>;
  const int64_t row = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * blockDim.y + threadIdx.y;
  const uint32_t place = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  if (place < pieces) {
    transform_piece<width>(formula, input, output, row, int64_t{place} * width);
  } else if (const int64_t column = int64_t{pieces} * (width - 1) + place; column < columns) {
    transform_piece<1>(formula, input, output, row, column);
  }
}

// The same for one row of packets.
template <class Storage, int inputs, int outputs, class Formula>
__global__ void __launch_bounds__(block_threads, least_blocks<Storage>)
    transform_row(Formula formula, Operands<Storage, inputs, PacketRow> input,
                  Operands<Storage, outputs, PacketRow> output, uint32_t pieces, uint32_t threads) {
  constexpr int width = packet_width<Storage>;
  const uint32_t place = blockIdx.x * block_threads + threadIdx.x;
  if (place < pieces) {
    transform_piece<width>(formula, input, output, 0, int64_t{place} * width);
  } else if (place < threads) {
    transform_piece<1>(formula, input, output, 0, int64_t{pieces} * (width - 1) + place);
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

// f(first, columns) for parts of so many columns; stops where there is an error.
template <class F>
Error for_each_part(int64_t columns, int64_t most, F f) {
  for (int64_t first = 0; first < columns; first += most) {
    if (Error error = f(first, std::min(most, columns - first))) return error;
  }
  return nullptr;
}

template <class Storage, int inputs, int outputs, class Formula>
Error launch_transform(const Call& call, Formula formula, const Matrix (&in)[inputs], const Matrix (&out)[outputs]) {
  if (call.rows == 0 || call.columns == 0) return nullptr;
  Operands<Storage, inputs> input;
  Operands<Storage, outputs> output;
  bool in_pieces = false;
  bool in_one_row = call.rows == 1;
  const auto add = [&](Pieces<Storage>& operand, Matrix matrix) {
    operand = {matrix, call.rows};
    in_pieces = in_pieces || operand.wants_pieces(call.rows);
    in_one_row = in_one_row && operand.access == Access::packet;
  };
  for (int i = 0; i < inputs; ++i) add(input.of[i], in[i]);
  for (int i = 0; i < outputs; ++i) add(output.of[i], out[i]);
  const int64_t width = in_pieces ? packet_width<Storage> : 1;
  return for_each_part(call.columns, most_threads_x * width, [&](int64_t first, int64_t columns) {
    const int64_t pieces = in_pieces ? columns / width : 0;
    const int64_t threads = columns - pieces * (width - 1);
    if (in_one_row) {
      const dim3 grid(divide_up(threads, block_threads)), block(block_threads);
      return launch(transform_row<Storage, inputs, outputs, Formula>, grid, block, 0, call.stream, formula,
                    Operands<Storage, inputs, PacketRow>(input.from_column(first)),
                    Operands<Storage, outputs, PacketRow>(output.from_column(first)), static_cast<uint32_t>(pieces),
                    static_cast<uint32_t>(threads));
    }
    const dim3 block = block_shape(threads, block_threads);
    const int64_t row_blocks = divide_up(call.rows, block.y);
    const int64_t layers = divide_up(row_blocks, most_blocks_y);
    const dim3 grid(divide_up(threads, block.x), divide_up(row_blocks, layers), layers);
    return launch(transform<Storage, inputs, outputs, Formula>, grid, block, 0, call.stream, formula,
                  input.from_column(first), output.from_column(first), call.rows, columns,
                  static_cast<uint32_t>(pieces));
  });
}

// The parameters in the type that is computed with.
template <class Storage>
Params<Compute<Storage>> compute_params(Params<double> params) {
  using S = Compute<Storage>;
  return {static_cast<S>(params.first), static_cast<S>(params.second)};
}

// f.template operator()<Storage>() for the dtype.
template <bool has_float64 = true, class F>
Error with_storage(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::float32:
      return f.template operator()<float>();
    case Dtype::float64:
      if constexpr (has_float64) return f.template operator()<double>();
      break;
    case Dtype::bfloat16:
      return f.template operator()<bfloat16>();
    case Dtype::float16:
      return f.template operator()<float16>();
  }
  return "no kernel for this dtype";
}

// f.template operator()<A, Storage>() for the call's activation and dtype.
template <class F>
Error dispatch(const Call& call, F f) {
#define FASTOPS_CASE(name, A, ...) \
  case Activation::name:           \
    return with_storage(call.dtype, [&]<class Storage>() { return f.template operator()<activations::A, Storage>(); });
  switch (call.activation) {
    FASTOPS_KERNEL_ACTIVATIONS(FASTOPS_CASE)
    default:
      return "unknown activation";
  }
#undef FASTOPS_CASE
}

// f(A()) with the struct A of the activation. All threads of a block take the same branch.
template <class F>
__device__ void with_activation(Activation id, F f) {
#define FASTOPS_CASE(name, A, ...) \
  case Activation::name:           \
    return f(activations::A());
  switch (id) {
    FASTOPS_KERNEL_ACTIVATIONS(FASTOPS_CASE)
    default:
      return;
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
