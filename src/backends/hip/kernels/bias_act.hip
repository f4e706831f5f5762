// activation(x + bias), and its backward with the bias gradient summed in the same pass.
#include <bit>

#include "backends/hip/kernels/block_sums.h"
#include "backends/hip/kernels/transform.h"

namespace fastops::hip {
namespace {

template <class A, class S>
struct Forward {
  Params<S> params;
  template <class N>
  __device__ void operator()(const N (&x)[2], N (&y)[1]) const {
    y[0] = A::value(x[0] + x[1], params);
  }
};

// One block takes `block_rows` rows of a strip of columns, a thread `width` columns. With `block_sums` the sums are
// written there, else to `bias_grad`, if to anything. The more blocks a multiprocessor has room for, the more bytes are
// on their way: nvcc gives GELU's fewer registers for a third one. Of float64 that would spill some.
template <int width, class Storage, class Gradient>
__global__ void __launch_bounds__(block_threads, sizeof(Storage) == 8 ? 2 : 3)
    backward(Gradient gradient, Pieces<Storage> grad, Pieces<Storage> saved, Pieces<Storage> bias, Operand<Storage> dx,
             Compute<Storage>* block_sums, Storage* bias_grad, int64_t rows, int64_t columns, int64_t block_rows) {
  using N = NumberOf<Storage>;
  using P = Piece<Storage, width>;
  using Result = Packet<Storage, width>;
  using S = Compute<Storage>;
  const int64_t first_column = int64_t{blockIdx.x} * blockDim.x * width;
  const int64_t column = first_column + threadIdx.x * width;
  const int64_t begin = blockIdx.y * block_rows;
  const int64_t end = begin + block_rows < rows ? begin + block_rows : rows;
  S sums[width] = {};
  if (column < columns) {
    P added = {};
    if (bias.data) {
      bias.load_packet(added, 0, column);
      bias.load_others(added, 0, column);
    }
    P next_grad = {}, next_saved = {};
    const auto load = [&](int64_t row) {
      if (row >= end) return;
      grad.load_packet(next_grad, row, column);
      saved.load_packet(next_saved, row, column);
      grad.load_others(next_grad, row, column);
      saved.load_others(next_saved, row, column);
    };
    load(begin + threadIdx.y);
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
      const P g = next_grad, s = next_saved;
      load(row + blockDim.y);  // on its way while this row is computed
      P out;
#pragma unroll
      for (int k = 0; k < width; ++k) {
        N at = widen(s.get(k));
        if (bias.data) at = at + N(widen(added.get(k)));
        const N d = gradient(N(widen(g.get(k))), at);
        sums[k] += d.v;
        out.set(k, narrow<Storage>(d.v));
      }
      // By the stride of columns, though it is 1: nvcc would cut what packet() stores into elements.
      if (dx.data) reinterpret_cast<Result&>(dx.at(row, column)) = bit_cast<Result>(out);
    }
  }
  if (!block_sums && !bias_grad) return;
  sum_over_block_rows(sums, [&](int c, S sum) {
    if (first_column + c >= columns) return;
    if (block_sums) {
      block_sums[blockIdx.y * columns + first_column + c] = sum;
    } else {
      bias_grad[first_column + c] = narrow<Storage>(sum);
    }
  });
}

template <class Storage>
__global__ void __launch_bounds__(block_threads)
    add_blocks(const Compute<Storage>* block_sums, int64_t blocks, int64_t columns, Storage* bias_grad) {
  sum_over_blocks(block_sums, blocks, columns,
                  [&](int64_t column, auto sum) { bias_grad[column] = narrow<Storage>(sum); });
}

// So few rows a block has all of, of some columns: that is one kernel.
constexpr int64_t few_rows = block_threads;

// The rows of a block: enough work for its threads, and no more blocks than the GPU has at once, or twice as many where
// the formula takes most registers. They follow from the sizes and the GPU, so that a sum is made of the same parts on
// every run.
int64_t rows_per_block(const Call& call) {
  if (call.rows <= few_rows) return std::max<int64_t>(call.rows, 1);
  constexpr int64_t strip = 256;  // the most columns that a block takes
  constexpr int64_t enough_elements = 4096;
  constexpr int64_t blocks_of_multiprocessor = 4;
  const int64_t enough_blocks = blocks_of_multiprocessor * call.multiprocessors;
  const int64_t enough_rows = divide_up(enough_elements, std::min(call.columns, strip));
  return std::max(enough_rows, divide_up(call.rows, divide_up(enough_blocks, divide_up(call.columns, strip))));
}

// A thread for each of few rows, where a warp's packets of a row are the 32 bytes at least that come from memory at
// once.
template <int width, class Storage>
dim3 backward_block(int64_t rows, int64_t packets) {
  if (rows > few_rows) return block_shape(packets, 32);
  constexpr unsigned least = std::max<unsigned>(1, 32 / (width * sizeof(Storage)));
  const unsigned across = std::max(least, block_threads / std::bit_ceil(std::max<unsigned>(rows, 8)));
  return dim3(across, block_threads / across);
}

template <int width, class Storage, class Gradient>
Error run_backward(const Call& call, Gradient gradient, const Operands<Storage, 4>& operands, void* block_sums,
                   Storage* bias_grad) {
  using S = Compute<Storage>;
  const int64_t blocks = bias_backward_blocks(call);
  S* const sums = bias_grad && blocks > 1 ? static_cast<S*>(block_sums) : nullptr;
  const size_t shared = bias_grad ? block_threads * width * sizeof(S) : 0;
  // Where there are parts, there is but one block for the rows of each.
  const auto run_part = [&](int64_t first, int64_t columns) {
    const auto [grad, saved, bias, dx] = operands.from_column(first).of;
    const dim3 block = backward_block<width, Storage>(call.rows, columns / width);
    const dim3 grid(divide_up(columns / width, block.x), blocks);
    return launch(backward<width, Storage, Gradient>, grid, block, shared, call.stream, gradient, grad, saved, bias,
                  static_cast<Operand<Storage>>(dx), sums, sums || !bias_grad ? nullptr : bias_grad + first, call.rows,
                  columns, rows_per_block(call));
  };
  if (Error error = for_each_part(call.columns, most_threads_x * width, run_part)) return error;
  if (!sums) return nullptr;
  return launch_sum_over_blocks<S>(add_blocks<Storage>, sums, blocks, call.columns, call.stream, bias_grad);
}

template <class Storage, class Gradient>
Error choose_width(const Call& call, Gradient gradient, const Matrix (&matrices)[4], void* block_sums,
                   void* bias_grad) {
  constexpr int width = packet_width<Storage>;
  if (call.columns == 0 || (call.rows == 0 && !bias_grad)) return nullptr;
  Operands<Storage, 4> operands;
  bool in_pieces = false;
  for (int i = 0; i < 4; ++i) {
    operands.of[i] = {matrices[i], call.rows};
    in_pieces = in_pieces || operands.of[i].wants_pieces(call.rows);
  }
  // dx, which the kernel writes in packets, is a tensor of its own.
  in_pieces = in_pieces && call.columns % width == 0 && operands.of[3].has_packets(call.rows);
  Storage* result = static_cast<Storage*>(bias_grad);
  return in_pieces ? run_backward<width>(call, gradient, operands, block_sums, result)
                   : run_backward<1>(call, gradient, operands, block_sums, result);
}

}  // namespace

Error bias_forward(const Call& call, Matrix x, Matrix bias, Matrix y) {
  return dispatch(call, [&]<class A, class Storage>() {
    const Forward<A, Compute<Storage>> formula{compute_params<Storage>(call.params)};
    return launch_transform<Storage>(call, formula, {x, bias}, {y});
  });
}

int64_t bias_backward_blocks(const Call& call) {
  if (call.rows == 0 || call.columns == 0) return 1;
  return divide_up(call.rows, rows_per_block(call));
}

Error bias_backward(const Call& call, bool from_output, Matrix grad, Matrix saved, Matrix bias, Matrix dx,
                    void* block_sums, void* bias_grad) {
  const Matrix matrices[4] = {grad, saved, bias, dx};
  return dispatch(call, [&]<class A, class Storage>() {
    using S = Compute<Storage>;
    const auto params = compute_params<Storage>(call.params);
    if constexpr (A::has_gradient_from_output) {
      if (from_output) {
        return choose_width<Storage>(call, Gradient<A, true, S>{params}, matrices, block_sums, bias_grad);
      }
    }
    return choose_width<Storage>(call, Gradient<A, false, S>{params}, matrices, block_sums, bias_grad);
  });
}

}  // namespace fastops::hip
