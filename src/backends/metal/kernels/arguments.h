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

// ---- steps on rows (ops/sequential.h) ----

enum : int {
  most_row_steps = 8,
  most_row_vectors = 8,  // weights and biases of the steps
  row_threads = 256,     // of a threadgroup, at most
  // Of 64 neighbours, 16 calls of Philox have four numbers each.
  row_calls = 16,
  row_numbers = 4,
  row_group = 64,
  // Floats of a threadgroup's memory, of which Metal has 32 KiB: the less a kernel has, the more of its threadgroups a
  // GPU's core has at a time.
  row_memory_small = 2048,
  row_memory_large = 8192,
  numbers_beside_tiles = 28,  // and one for each of the row's threads: for sums, and what norms found
};

enum RowStepKind : int { step_activation, step_norm, step_scale, step_dropout };

// Where the way back finds what a step's gradient is made of, unless it is the number of a tile.
enum KeptPlace : int { kept_nowhere = -1, kept_in_x = 0 };

struct RowStep {
  uint32_t kind;
  float params[2];    // of an activation
  uint32_t centered;  // of a norm
  float eps;
  uint32_t stream;  // of a dropout: numbers of its stream below the threshold drop an element
  uint32_t threshold;
  float scale;
  int32_t weight, bias;  // their places among the vectors, or -1
  uint32_t wants_weight_grad, wants_bias_grad;
  int32_t kept;
};

// The tensors of rows, all contiguous: the places of their dtypes, and their bits in `flags`; the seed has one, too.
enum RowTensor : int { row_x, row_grad, row_added, row_result, row_value, row_seed };

struct RowStepsArguments {
  uint32_t rows, columns;
  uint32_t slots;      // a thread's elements in a row, with those past the last column
  uint32_t groups;     // of threads: each takes every `groups`-th piece of the rows
  uint32_t flags;      // which of the optional tensors there are
  uint32_t dtypes[5];  // 0 is float, 1 half, 2 bfloat
  uint32_t vector_dtypes[most_row_vectors];
  uint32_t count;
  uint32_t forward_steps;  // that the way back computes again
  uint32_t sums;           // vectors whose gradients are wanted
  uint32_t first_sum;      // the first of their tiles
  RowStep steps[most_row_steps];
};

}  // namespace mps
}  // namespace fastops
