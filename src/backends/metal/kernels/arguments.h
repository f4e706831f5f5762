// The arguments of the kernels beside their buffers, the same text for the host and for Metal.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#else
#include <cstdint>
#endif

namespace fastops {
namespace mps {

enum : int {
  quad = 4,           // elements that a thread computes at a time, and that a vector access moves
  most_operands = 3,  // tensors of an elementwise kernel
  most_dims = 8,
};

// An elementwise kernel: a thread has a quad of the innermost dimension. Where there are others, the grid's second
// dimension is the next one, and its third all that remain. Without dims, the tensors are dense and of one layout.
struct ElementwiseArguments {
  float params[2];
  uint32_t from_output;  // whether a derivative is in terms of the output
  uint32_t vectors;      // a bit for each tensor: whether its quads are aligned for vector accesses
  uint64_t count;        // the elements of the innermost dimension, or all
  uint32_t dims;
  uint32_t narrow;            // whether 32 bits count the elements between any two of a tensor
  uint32_t sizes[most_dims];  // innermost first
  int64_t strides[most_operands][most_dims];
};

// A kernel over rows, each of contiguous elements. strides[b] is that from row to row of buffer b.
struct RowArguments {
  float params[2];
  uint32_t rows;
  uint32_t columns;
  uint32_t vectors;     // whether all rows are aligned for vector accesses
  uint32_t flags;       // which of the optional tensors there are: the kernels say what each bit means
  uint32_t block_rows;  // of bias_act_backward
  uint32_t depth;       // of linear_act: the columns of its input
  int64_t strides[5];
};

enum BiasActFlags : int { has_bias = 1, has_pre = 2, from_output = 4, has_grad_self = 8, has_grad_bias = 16 };
enum GatedActFlags : int { has_gate_bias = 1, has_up_bias = 2, has_saved = 4, has_grad_gate = 8, has_grad_up = 16 };

// The threadgroup of bias_act_backward: each thread has a quad of columns and goes down every `block_lanes`-th row.
enum : int { block_quads = 8, block_columns = 32, block_lanes = 32 };

// A threadgroup of linear_act makes a tile of that many rows and columns, and takes that much of the sum at a time.
enum : int { product_tile = 32, product_depth = 16, product_threads = 128 };

}  // namespace mps
}  // namespace fastops
