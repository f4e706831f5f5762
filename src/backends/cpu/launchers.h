// What runs the CPU kernels: pointers, sizes, and the threads and the memory of a caller; no tensors. Launchers and
// kernels are a library of their own, which needs nothing of torch.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backends/cpu/kernels.h"

namespace fastops::cpu {

// What a launcher has of its caller, for one call.
class Caller {
 public:
  using Work = void (*)(const void* context);
  using Part = void (*)(const void* context, int64_t begin, int64_t end);

  // How many threads parallel_for can use.
  virtual int64_t threads() = 0;
  // part(context, begin, end) for parts of 0..n, on several threads; only the last may be smaller than `grain`.
  virtual void parallel_for(int64_t n, int64_t grain, Part part, const void* context) = 0;
  // Memory until the call is over: `bytes` bytes, aligned to 64, not initialized. Not for use by several threads.
  virtual void* take(int64_t bytes) = 0;
  // work(context), under a name in a profile.
  virtual void profile(const char* name, Work work, const void* context) = 0;

 protected:
  ~Caller() = default;
};

// ---- elementwise ----

// The function, and the type of all elements.
struct Call {
  Activation activation;
  ActivationParams params;
  Dtype dtype;
};

// y[i] = f(x[i]) for n elements; y may be x.
FASTOPS_KERNELS_API void activation_forward(Caller&, const Call&, const void* x, void* y, int64_t n);

// dx[i] = grad[i] * d(saved[i]), d the derivative of that order in terms of the input or of the output
FASTOPS_KERNELS_API void activation_backward(Caller&, const Call&, int64_t order, bool from_output, const void* grad,
                                             const void* saved, void* dx, int64_t n);

// The elements of tensors of one size, in an order that all of them are visited in: along the first of at most four
// axes first.
struct Walk {
  static constexpr int64_t most_axes = 4;
  int64_t axes;  // one or more
  int64_t size[most_axes];
};
// From one element to the next along each axis.
using Strides = std::array<int64_t, Walk::most_axes>;
struct Strided {
  void* data;
  Strides stride;
};
struct ConstStrided {
  const void* data;
  Strides stride;
};
// The same, of elements with strides.
FASTOPS_KERNELS_API void activation_forward(Caller&, const Call&, const Walk&, const ConstStrided& x, const Strided& y);
FASTOPS_KERNELS_API void activation_backward(Caller&, const Call&, int64_t order, bool from_output, const Walk&,
                                             const ConstStrided& grad, const ConstStrided& saved, const Strided& dx);

// Copies the elements to where they lie side by side in the order of the walk.
FASTOPS_KERNELS_API void copy_elements(Caller&, Dtype, const Walk&, const ConstStrided& from, void* to);

// z = x + bias, y = f(z), for rows of `columns` elements. `z.data` may be null; z or y may be x.
FASTOPS_KERNELS_API void bias_forward(Caller&, const Call&, ConstRows x, const void* bias, Rows z, Rows y, int64_t rows,
                                      int64_t columns);

// dx = grad * f'(saved + bias), or in terms of the output; sums[c] = sum of dx[:, c], in the type that is computed
// with; y = f(saved + bias), not in terms of the output. `bias`, `dx.data`, `sums` and `y.data` may be null; dx may be
// grad. The sums have the same bits for every number of threads.
FASTOPS_KERNELS_API void bias_backward(Caller&, const Call&, bool from_output, ConstRows grad, ConstRows saved,
                                       const void* bias, Rows dx, void* sums, Rows y, int64_t rows, int64_t columns);

// y = f(gate) * up; y may be one of the two.
FASTOPS_KERNELS_API void gated_forward(Caller&, const Call&, ConstRows gate, ConstRows up, Rows y, int64_t rows,
                                       int64_t columns);

// dgate = grad * up * f'(gate), dup = grad * f(gate), y = f(gate) * up. The data of each of the three may be null;
// dgate or dup may be grad.
FASTOPS_KERNELS_API void gated_backward(Caller&, const Call&, ConstRows grad, ConstRows gate, ConstRows up, Rows dgate,
                                        Rows dup, Rows y, int64_t rows, int64_t columns);

// ---- steps on rows (ops/sequential.h) ----

// A vector for all rows; null where there is none.
struct RowVector {
  const void* data;
  Dtype dtype;
};
struct RowStep {
  enum class Kind { activation, norm, scale, dropout };
  Kind kind;
  Activation activation{};
  ActivationParams params{};
  bool centered = false;  // of a norm
  double eps = 0;
  RowVector weight{}, bias{};
  uint32_t stream = 0;  // of a dropout, as in DropoutArguments
  uint32_t threshold = 0;
  double scale = 0;
};
struct RowsCall {
  std::span<const RowStep> steps;
  uint64_t seed;
  Dtype computed;  // float32 or float64
  int64_t rows, columns;
};
// A matrix and its type; the data is null where there is none.
template <class Matrix>
struct Typed {
  Matrix rows;
  Dtype dtype;
};

// y = the steps' result for x, + added
FASTOPS_KERNELS_API void rows_forward(Caller&, const RowsCall&, Typed<ConstRows> x, Typed<ConstRows> added,
                                      Typed<Rows> y);

// The gradients of the vectors of a step; null where nobody wants them.
struct RowStepGradients {
  void* weight;
  void* bias;
};
// dx = the gradient of x + added; value = the steps' result for x; and the vectors' gradients, for each step, in the
// type that is computed with, which have the same bits for every number of threads. Null is what there is not, or what
// nobody wants. x may be null where there are dropouts alone, and grad where only the value is wanted.
FASTOPS_KERNELS_API void rows_backward(Caller&, const RowsCall&, Typed<ConstRows> x, Typed<ConstRows> grad,
                                       Typed<ConstRows> added, Typed<Rows> dx, Typed<Rows> value,
                                       std::span<const RowStepGradients> gradients);

// ---- networks, where GemmKernels are there ----

// h @ weight.T + bias, and the gradients of the parameters. Null is what there is not, or what nobody wants.
struct Linear {
  ConstRows weight;  // [out_features, in_features], or transposed
  const void* bias;
  int64_t in_features;
  int64_t out_features;
  void* weight_grad = nullptr;  // [out_features, in_features], contiguous
  void* bias_grad = nullptr;
  bool transposed = false;  // whether the weight is [in_features, out_features], for packed products
};

// z = h @ weight.T + bias, f(z).
struct Layer : Linear {
  Activation activation;
  ActivationParams params;
  bool keeps_output;  // whether `kept` is f(z), else it is z
  Rows kept;  // [rows, out_features]: written by the forward pass where it is not null, read by the backward pass
  // Where nothing is packed: the steps after the product, and the gradients of their vectors that are wanted, in the
  // vectors' types; whether there is nothing before them; and what comes after them. A layer has steps or an
  // activation.
  std::span<const RowStep> steps = {};
  std::span<const RowStepGradients> step_gradients = {};
  bool only_steps = false;
  UnpackedEnd end = UnpackedEnd::none;
};

struct MlpCall {
  Dtype dtype;
  int64_t rows;
  std::span<const Layer> layers;
  uint64_t seed = 0;  // of the dropouts among the steps
};
FASTOPS_KERNELS_API void mlp_forward(Caller&, const MlpCall&, ConstRows input, Rows output);
// The gradients of the parameters that the layers have places for, and the input's if `input_grad.data` is not null.
// The last layer's kept values are not read if its activation is the identity.
FASTOPS_KERNELS_API void mlp_backward(Caller&, const MlpCall&, ConstRows input, ConstRows grad_output, Rows input_grad);

// The same with rows that go through all layers in vectors, and weights that are read where they lie
// (UnpackedKernels). Where their kernels are not null.
FASTOPS_KERNELS_API void unpacked_mlp_forward(Caller&, const MlpCall&, ConstRows input, Rows output);
FASTOPS_KERNELS_API void unpacked_mlp_backward(Caller&, const MlpCall&, ConstRows input, ConstRows grad_output,
                                               Rows input_grad);

// The backward pass with products of matrices where they lie: row by row. Parts of the rows, of at least so many where
// all weights have so many elements, have sums of their own, whatever the number of threads.
FASTOPS_ALWAYS_INLINE constexpr int64_t least_part_rows(int64_t elements) {
  constexpr int64_t least = 64;
  return elements / 1280 > least ? elements / 1280 : least;
}
FASTOPS_KERNELS_API void plain_mlp_backward(Caller&, const MlpCall&, ConstRows input, ConstRows grad_output,
                                            Rows input_grad);

// c = a @ b, for float32 and float64, where their UnpackedKernels are not null; the number of threads changes no bits.
FASTOPS_KERNELS_API void multiply(Caller&, Dtype, const PlainProduct&, int64_t rows, int64_t columns);

// Points with derivatives along directions (ops/mlp_jet.h): `rows` counts the rows of all points. The layers keep z.
struct MlpJetCall : MlpCall {
  int64_t directions;
  int64_t seconds;
  bool each;
  const double* trace_weights;  // null where all are 1

  int64_t rows_of_point() const { return 1 + directions + seconds; }
};
// The rows of a point that there are kernels for, at most.
inline constexpr int64_t most_jet_rows = 96;
static_assert(most_jet_rows <= block_rows, "the rows of a point are never parted");
FASTOPS_KERNELS_API void mlp_jet_forward(Caller&, const MlpJetCall&, ConstRows input, Rows output);
FASTOPS_KERNELS_API void mlp_jet_backward(Caller&, const MlpJetCall&, ConstRows input, ConstRows grad_output,
                                          Rows input_grad);
FASTOPS_KERNELS_API void plain_mlp_jet_backward(Caller&, const MlpJetCall&, ConstRows input, ConstRows grad_output,
                                                Rows input_grad);

// down(f(gate(x)) * up(x))
struct GatedMlpCall {
  Dtype dtype;
  int64_t rows;
  Linear gate, up, down;
  Activation activation;
  ActivationParams params;
};
// `gate_kept` and `up_kept` are the two projections; their data may be null.
FASTOPS_KERNELS_API void gated_mlp_forward(Caller&, const GatedMlpCall&, ConstRows input, Rows gate_kept, Rows up_kept,
                                           Rows output);
FASTOPS_KERNELS_API void gated_mlp_backward(Caller&, const GatedMlpCall&, ConstRows input, ConstRows gate_kept,
                                            ConstRows up_kept, ConstRows grad_output, Rows input_grad);

}  // namespace fastops::cpu
