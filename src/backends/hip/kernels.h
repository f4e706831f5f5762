// The GPU kernels' launchers: raw pointers, sizes and a stream, no tensors and no GPU headers. kernels/*.hip implement
// them for HIP, CUDA and the emulator; the binding files beside this one unwrap tensors and call them.
//
// A launcher returns what went wrong, null if nothing did. It only puts work on the stream.
#pragma once

#include <cstdint>

#include "activations/activations.h"
#include "activations/jet.h"
#include "activations/table.h"
#include "dtype.h"
#include "export.h"

namespace fastops::hip {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A matrix in device memory; strides count elements. Without data there is none.
struct Matrix {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// What every launcher is told: all matrices are of one dtype, and [rows, columns] unless it says otherwise. 16-bit
// types are computed with, and their sums kept, in float32.
struct Call {
  Activation activation;
  Params<double> params;
  Dtype dtype;
  int64_t rows;
  int64_t columns;
  void* stream;
  int64_t multiprocessors = 1;  // of the device, where the number of blocks depends on it
};

using Error = const char*;

// Where the kernels are a library that torch's device is needed for when it runs (libraries.cmake): why they cannot be
// launched on this machine, or null.
FASTOPS_KERNELS_API Error unusable();

// How many multiprocessors (compute units) the device has; 1 where the runtime does not say.
FASTOPS_KERNELS_API int64_t multiprocessors(int device);

// Whether what is put on the stream is captured into a graph, or may be: where the runtime does not say.
FASTOPS_KERNELS_API bool is_captured(void* stream);

// The bytes of shared memory that a block may have on every GPU, and those on the device.
inline constexpr int64_t shared_bytes_everywhere = 48 * 1024;
FASTOPS_KERNELS_API int64_t most_shared_bytes(int device);

// y = f(x); y may be x.
FASTOPS_KERNELS_API Error activation_forward(const Call&, Matrix x, Matrix y);

// dx = grad * d(saved), d the derivative of that order in terms of the input or of the output
FASTOPS_KERNELS_API Error activation_backward(const Call&, int order, bool from_output, Matrix grad, Matrix saved,
                                              Matrix dx);

// y = f(x + bias); bias is a row for each row: its row stride is 0.
FASTOPS_KERNELS_API Error bias_forward(const Call&, Matrix x, Matrix bias, Matrix y);

// dx = grad * f'(saved + bias), or in terms of the output; bias_grad[c] = sum of dx[:, c]. `bias`, `dx` and `bias_grad`
// may be absent. Blocks of rows have their own sums, [bias_backward_blocks(call), columns] in `block_sums`, in the type
// that is computed with; they are added up in order, so the result has the same bits on every run.
FASTOPS_KERNELS_API int64_t bias_backward_blocks(const Call&);
FASTOPS_KERNELS_API Error bias_backward(const Call&, bool from_output, Matrix grad, Matrix saved, Matrix bias,
                                        Matrix dx, void* block_sums, void* bias_grad);

// y = f(gate) * up
FASTOPS_KERNELS_API Error gated_forward(const Call&, Matrix gate, Matrix up, Matrix y);

// dgate = grad * up * f'(gate), dup = grad * f(gate); y = f(gate) * up once more. Any of them may be absent.
FASTOPS_KERNELS_API Error gated_backward(const Call&, Matrix grad, Matrix gate, Matrix up, Matrix dgate, Matrix dup,
                                         Matrix y);

// ---- steps on rows (ops/sequential.h) ----

inline constexpr int most_row_steps = 8;

// Contiguous numbers in device memory; without data there are none.
struct Numbers {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
};

struct RowStep {
  enum class Kind { activation, norm, scale, dropout };
  Kind kind = Kind::activation;
  Activation activation{};
  Params<double> params{};
  bool centered = false;  // of a norm
  double eps = 0;
  Numbers weight{}, bias{};  // [columns]
  uint32_t stream = 0;       // of a dropout: numbers of its stream below the threshold drop an element
  uint32_t threshold = 0;
  double scale = 0;
  bool wants_weight_grad = false;
  bool wants_bias_grad = false;
};

struct RowsCall {
  RowStep steps[most_row_steps];
  int count = 0;
  const void* seed = nullptr;  // an int64 in device memory
  Dtype computed{};            // float32 or float64
  int64_t rows = 0;
  int64_t columns = 0;
  void* stream = nullptr;
  int64_t multiprocessors = 1;
  int64_t most_shared_bytes = shared_bytes_everywhere;  // of the device
};

// Whether a block's shared memory has room for the rows.
FASTOPS_KERNELS_API bool rows_fit(const RowsCall&, bool backward);

// y = the steps' result for x, + added. Matrices of [rows, columns] each of a dtype of its own.
FASTOPS_KERNELS_API Error rows_forward(const RowsCall&, Numbers x, Numbers added, Numbers y);

// dx = the gradient of x, + added; value = the steps' result for x. `vector_grads` gets the gradients of the steps'
// weights and biases that are wanted, one after another. Blocks of rows have their own sums, rows_backward_sums(call)
// numbers in `block_sums`, of the type that is computed with, which are added up in order. x may be absent where there
// are dropouts alone; added, dx and value always.
FASTOPS_KERNELS_API int64_t rows_backward_sums(const RowsCall&);
FASTOPS_KERNELS_API Error rows_backward(const RowsCall&, Numbers x, Numbers grad, Numbers added, Numbers dx,
                                        Numbers value, void* block_sums, Numbers vector_grads);

// ---- products of float32 and of 16 bits ----

// left @ right.T for matrices [rows, depth] and [columns, depth]; sums are float32. Results are contiguous.
struct Product {
  Matrix left{};
  Matrix right{};
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  Dtype dtype = Dtype::float32;
  int64_t multiprocessors = 1;
  void* stream = nullptr;
};

// The most rows and columns: a grid has no more blocks in the one direction, and on AMD's GPUs no more threads, 256 for
// 16 columns, in the other.
inline constexpr int64_t most_product_rows = int64_t{65535} * 16;
inline constexpr int64_t most_product_columns = (int64_t{1} << 28) - 16;

// y = f(z), z = left @ right.T + bias; the numbers of a row of left and right lie beside each other. `bias` and `z` may
// be absent.
FASTOPS_KERNELS_API Error product_forward(const Product&, Activation, Params<double>, const void* bias,
                                          int64_t bias_stride, void* z, void* y);

// dz = (left @ right.T) * f'(saved), or in terms of the output; value = f(saved). Those of a row of left, and of a
// column of right, lie beside each other. `value` may be absent, and `saved` where f is the identity.
FASTOPS_KERNELS_API Error product_backward(const Product&, Activation, Params<double>, bool from_output, Matrix saved,
                                           void* dz, void* value);

// result = left @ right.T, sums = left's sums over the depth; those of a column of left and of right lie beside each
// other. `sums` may be absent.
FASTOPS_KERNELS_API Error product_weights(const Product&, void* result, void* sums);

// ---- multi-layer perceptrons in one kernel ----

inline constexpr int64_t most_small_features = 128;
inline constexpr int64_t most_small_layers = 8;

// How many rows a block has at a time.
constexpr int64_t small_tile_rows(Dtype dtype) { return dtype == Dtype::float64 ? 16 : 32; }

// A layer z = h @ weight.T + bias, f(z). Its vectors and matrices of results are contiguous; null where absent.
struct SmallLayer {
  const void* weight;  // [out_features, in_features]
  int64_t weight_row_stride;
  int64_t weight_column_stride;
  const void* bias;
  int64_t bias_stride;
  int64_t in_features;
  int64_t out_features;
  Activation activation;
  Params<double> params;
  bool keeps_output;  // whether `kept` is f(z), else it is z
  void* kept;         // [rows, out_features]: written by the forward pass, read by the backward pass
  void* weight_grad;
  void* bias_grad;
};

struct SmallMlp {
  SmallLayer layers[most_small_layers];
  int64_t count;
  Dtype dtype;
  int64_t rows;
  void* stream;
  int64_t multiprocessors;  // of the device, which the number of blocks backward depends on
};

FASTOPS_KERNELS_API Error small_mlp_forward(const SmallMlp&, Matrix input, void* output);

// The gradients that are not null. Blocks of rows have their own sums, small_mlp_sums(mlp) numbers of the type that is
// computed with in `block_sums`; they are added up in order.
FASTOPS_KERNELS_API int64_t small_mlp_sums(const SmallMlp&);
FASTOPS_KERNELS_API Error small_mlp_backward(const SmallMlp&, Matrix grad_output, Matrix input, void* input_grad,
                                             void* block_sums);

}  // namespace fastops::hip
