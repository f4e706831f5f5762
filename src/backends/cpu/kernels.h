// The CPU kernels: raw pointers and sizes, no tensors, one thread. Built once per instruction set (kernels/), run by
// launchers.h.
#pragma once

#include <cstdint>

#include "activations/activations.h"
#include "activations/jet.h"
#include "activations/table.h"
#include "compiler.h"
#include "dtype.h"
#include "export.h"

namespace fastops::cpu {

// 16-bit types are computed with, and their sums kept, in float32.
FASTOPS_ALWAYS_INLINE constexpr int64_t accumulator_size(Dtype dtype) {
  return dtype == Dtype::float64 ? sizeof(double) : sizeof(float);
}

using ActivationParams = Params<double>;

// A matrix whose rows are `stride` elements apart and contiguous within.
struct Rows {
  void* data;
  int64_t stride;
};
struct ConstRows {
  const void* data;
  int64_t stride;
};
FASTOPS_ALWAYS_INLINE ConstRows constant(Rows rows) { return {rows.data, rows.stride}; }

// y[i] = f(x[i]). With `stream`, y is written past the caches.
using ForwardKernel = void (*)(const void* x, void* y, int64_t n, ActivationParams, bool stream);

// dx[i] = grad[i] * d(saved[i]), d the derivative of some order in terms of the input or of the output
using BackwardKernel = void (*)(const void* grad, const void* saved, void* dx, int64_t n, ActivationParams,
                                bool stream);

// value[i] = f(x[i]) and order[k][i] = its derivative of order k + 1, in a type that is computed with
using DerivativesKernel = void (*)(const void* x, void* value, void* const* order, int64_t n, ActivationParams);

// z[r, c] = x[r, c] + bias[c], y[r, c] = f(z[r, c]). `z.data` may be null; z or y may be x.
using BiasForwardKernel = void (*)(ConstRows x, const void* bias, Rows z, Rows y, int64_t rows, int64_t columns,
                                   ActivationParams);

// dx[r, c] = grad[r, c] * f'(saved[r, c] + bias[c]), or in terms of the output; sums[c] = sum of dx[:, c], in the
// accumulator's type; value[r, c] = f(saved[r, c] + bias[c]), not in terms of the output. `bias`, `dx.data`, `sums` and
// `value.data` may be null; dx may be grad.
using BiasBackwardKernel = void (*)(ConstRows grad, ConstRows saved, const void* bias, Rows dx, void* sums, Rows value,
                                    int64_t rows, int64_t columns, ActivationParams);

// y[r, c] = f(gate[r, c]) * up[r, c]; y may be one of the two.
using GatedForwardKernel = void (*)(ConstRows gate, ConstRows up, Rows y, int64_t rows, int64_t columns,
                                    ActivationParams);

// dgate = grad * up * f'(gate), dup = grad * f(gate), value = f(gate) * up. Each of the three may be null; dgate or dup
// may be grad.
using GatedBackwardKernel = void (*)(ConstRows grad, ConstRows gate, ConstRows up, Rows dgate, Rows dup, Rows value,
                                     int64_t rows, int64_t columns, ActivationParams);

// n things as parts of nearly the same size, none above `most`.
struct Parts {
  int64_t n, count;

  FASTOPS_ALWAYS_INLINE Parts(int64_t n, int64_t most) : n(n), count((n + most - 1) / most) {}
  FASTOPS_ALWAYS_INLINE int64_t begin(int64_t part) const { return n * part / count; }
  FASTOPS_ALWAYS_INLINE int64_t end(int64_t part) const { return begin(part + 1); }
  FASTOPS_ALWAYS_INLINE int64_t size(int64_t part) const { return end(part) - begin(part); }
};

// The most rows whose sums for a panel are in the L1 cache before an epilogue takes them.
inline constexpr int64_t block_rows = 192;

struct Kernels;

// The right-hand matrix of a product, which becomes panels (kernels/panels.h).
struct PackArguments {
  ConstRows source;
  int64_t depth;
  int64_t columns;
  void* panels;
};
using PackKernel = void (*)(const PackArguments&, int64_t first_panel, int64_t last_panel);

// A product sum_k a[i, k] * b[k, j], one of those that are added up.
struct Product {
  ConstRows a;          // [rows, depth], of the operands' type; as `pack_tiles` leaves it if `packed`
  const void* panels;   // b [depth, columns]
  ConstRows transpose;  // the transpose of b, as it is: instead of panels where it is not null
  int64_t depth;
  bool packed = false;
  bool transposed = false;  // `a` is [depth, rows]; only where one step of the depth is taken at a time
  int sum = 0;              // which of the two sums it belongs to
  ConstRows matrix = {};    // b as it is, instead of panels where it is not null
  // What packs `matrix` or `transpose` on the way, one panel's part for a block of the depth after another, where they
  // are not read as they are.
  PackKernel pack = nullptr;
};

// A block of sums, in the type that is computed with: sums[s][r * stride + c] is that of row `row` + r and column
// `column` + c.
struct Block {
  const void* sums[2];
  int64_t stride;
  int64_t row;
  int64_t rows;
  int64_t column;
  int64_t columns;
};

// What becomes of a block of sums while it is in the L1 cache.
using EpilogueKernel = void (*)(const void* arguments, const Block&);
struct Epilogue {
  EpilogueKernel run = nullptr;
  const void* arguments = nullptr;
  // Where all that it does is result = sums + addend, in the type that is computed with: these. The addend may be null;
  // its stride is 0 if it is a bias.
  Rows result{nullptr, 0};
  ConstRows addend{nullptr, 0};
};

// result = sums; + result if `add`.
struct StoreArguments {
  Rows result;
  bool add;
};
// An operand of the next product, as these epilogues write it, has the storage type if `as_stored`, and else the one
// that is computed with.

// z = sums + bias; pre = z, post = f(z), and next = f(z) as an operand. All may be null.
struct LayerForwardArguments {
  const void* bias;
  Rows pre, post, next;
  ActivationParams params;
  bool as_stored;
};
// dz = sums * f'(saved), as an operand; value = f(saved), which may be null and is so in terms of the output.
struct LayerBackwardArguments {
  ConstRows saved;
  Rows dz, value;
  ActivationParams params;
  bool as_stored;
};
// gate = sums[0] + gate_bias, up = sums[1] + up_bias, next = f(gate) * up as an operand. All but `next` may be null.
struct GatedForwardArguments {
  const void* gate_bias;
  const void* up_bias;
  Rows gate, up, next;
  ActivationParams params;
  bool as_stored;
};
// dgate = sums * up * f'(gate), dup = sums * f(gate), as operands; value = f(gate) * up. Each may be null.
struct GatedBackwardArguments {
  ConstRows gate, up;
  Rows dgate, dup, value;
  ActivationParams params;
  bool as_stored;
};

// Points with derivatives (ops/mlp_jet.h): blocks have all rows of each. Null for the identity; the activation's
// kernels are those of the type that is computed with.
struct JetArguments {
  const Kernels* activation;
  ActivationParams params;
  int64_t directions;
  int64_t seconds;
  bool each;                    // whether each direction has its second derivative, or else there is their sum
  const double* trace_weights;  // of that; null where all are 1

  FASTOPS_ALWAYS_INLINE int64_t rows() const { return 1 + directions + seconds; }
  // Whether each pair of directions has its second derivative.
  FASTOPS_ALWAYS_INLINE bool pairs() const { return seconds > directions; }
};
// z = sums + bias; pre = z, post = f(z), and next = f(z) as an operand. All may be null.
struct JetForwardArguments {
  JetArguments jet;
  const void* bias;
  Rows pre, post, next;
  bool as_stored;
};
// dz = the gradient of z = saved, given that of f(z) as sums, as an operand; value = f(z), which may be null.
struct JetBackwardArguments {
  JetArguments jet;
  ConstRows saved;
  Rows dz, value;
  bool as_stored;
};

// Matrix products for one dtype. Null where an instruction set leaves them to PyTorch.
struct GemmKernels {
  // The type of the matrices that are multiplied: that which is computed with, or the storage type where there are
  // instructions that multiply it and add up in the former.
  Dtype operand;
  // Where packing the right-hand matrix takes longer than it saves, products read it as it is, or its transpose: for
  // networks of so many rows. Null: never.
  bool (*reads_matrix)(int64_t rows, int64_t columns);
  bool (*reads_transpose)(int64_t rows, int64_t depth, int64_t columns);
  // Or they pack it on the way, for so many rows of a thread and elements. Null: never.
  bool (*packs_on_the_way)(int64_t rows, int64_t elements);
  // The rows that one thread takes at least, where the largest right-hand matrix has so many elements: below that, more
  // of its time goes into reading that.
  int64_t (*least_rows)(int64_t elements);
  // The rows that a block has at most, and the bytes of its left-hand matrix, which passes by for each panel: from the
  // L2 cache, or from the next one where fewer rows would read large right-hand matrices more often. Measured.
  int64_t most_rows;
  int64_t left_bytes;
  int64_t rows_at_once;  // what so many rows cost, fewer cost, too
  int64_t at_once;       // how many steps of the depth such an instruction takes: panels and tiles have a multiple
  int64_t panel_columns;
  PackKernel pack;             // panels of a matrix [depth, columns]
  PackKernel pack_transposed;  // panels of the transpose of a matrix [columns, depth]
  // Tiles of the transpose of a matrix [depth, rows], for the left-hand side; adds the sums over the depth to `sums`,
  // in the type that is computed with. Either may be null.
  void (*pack_tiles)(ConstRows matrix, int64_t depth, int64_t rows, void* tiles, void* sums);
  // target = source, in the type that is computed with
  void (*convert)(ConstRows source, int64_t rows, int64_t columns, Rows target);
  // Sums of products, for up to most_rows rows from `row` on and the panels first_panel...last_panel - 1 of `columns`
  // columns.
  void (*multiply)(const Product* products, int count, int64_t row, int64_t rows, int64_t columns, int64_t first_panel,
                   int64_t last_panel, const Epilogue&);
  EpilogueKernel store;
  EpilogueKernel jet_forward = nullptr;
  EpilogueKernel jet_backward = nullptr;
};

// Normalized rows are x, less its mean if `centered`, times a multiplier: one over the root of the mean square + eps.
// weight and bias, in the type that is computed with, may be null.
struct NormArguments {
  bool centered;
  double eps;
  const void* weight;
  const void* bias;
};

// What is dropped of a row: ops/sequential.h.
struct DropoutArguments {
  uint64_t seed;
  uint32_t stream;
  uint32_t threshold;
  double scale;
};

// ---- networks and products without packing ----

// Parameters are in the type that is computed with, and so are the activations' kernels.
struct UnpackedStep {
  enum class Kind { activation, norm, scale, dropout };
  Kind kind;
  const Kernels* activation;
  ActivationParams params;
  NormArguments norm;  // of a scale, its weight
  DropoutArguments dropout;
  bool sums_weight;  // what gradients are wanted, of a norm or a scale
  bool sums_bias;

  FASTOPS_ALWAYS_INLINE int sums() const { return sums_weight + sums_bias; }
};

// What a layer ends with: nothing, h kept for a later one, or + what was kept last.
enum class UnpackedEnd { none, residual, add };

// z = h @ weight.T + bias, f(z), and the steps on that.
struct UnpackedLayer {
  ConstRows weight;  // [out_features, in_features]
  const void* bias;  // in the type that is computed with; may be null
  int64_t in_features;
  int64_t out_features;
  const Kernels* activation;  // null for the identity
  ActivationParams params;
  bool keeps_output;     // whether `kept` is f(z), else it is z
  Rows kept;             // in the storage type: what the forward pass writes, if not null, and the backward pass reads
  bool only_multiplied;  // whether f(z) is wanted for nothing but the next layer's product
  bool sums_weight;      // what gradients are wanted
  bool sums_bias;
  const UnpackedStep* steps;  // where there are any, the activation is one of them
  int step_count;
  bool only_steps;  // whether there is nothing before them: no product
  UnpackedEnd end;

  // Gradients of vectors that are wanted.
  FASTOPS_ALWAYS_INLINE int64_t vector_sums() const {
    int64_t count = sums_bias;
    for (int i = 0; i < step_count; ++i) count += steps[i].sums();
    return count;
  }
};
struct UnpackedNetwork {
  const UnpackedLayer* layers;
  int count;
  int64_t widest;      // features, or more; in whole vectors
  int64_t panel_rows;  // the most that go through all layers together; in whole vectors
  int most_steps;      // of a layer
  int most_kept;       // residuals at a time

  FASTOPS_ALWAYS_INLINE int64_t panel() const { return widest * panel_rows; }
  // The numbers that the backward pass needs room for.
  FASTOPS_ALWAYS_INLINE int64_t backward_room() const {
    return (3 + most_kept) * panel() + (most_steps > 0 ? (1 + most_steps) * panel() + most_steps * panel_rows : 0);
  }
};
// Rows of a matrix beside each other: of each feature a panel has `stride` numbers.
struct PanelRows {
  int64_t first;
  int64_t count;
  bool more;       // whether there are rows behind these, which may be read
  int64_t stride;  // `count` in whole vectors: from one feature to the next

  // A panel of `rows` rows from `first_row` on, whose vectors are parted.
  static FASTOPS_ALWAYS_INLINE PanelRows of(const Parts& panels, int64_t panel, int64_t vector, int64_t first_row,
                                            int64_t rows) {
    const int64_t begin = panels.begin(panel) * vector;
    const int64_t end = panels.end(panel) * vector;
    return {first_row + begin, (rows < end ? rows : end) - begin, end < rows, end - begin};
  }
};
struct UnpackedGradients {
  ConstRows input;
  ConstRows grad_output;
  Rows input_grad;  // may be null
};

// c = a @ b, + c if it `adds`, where they lie. Elements of a and b are as many numbers of the depth as products
// multiply at once (UnpackedKernels): the one of a for row i and step k is at a[i * row_step + k * depth_step], in
// numbers. Where the depth ends within an element, what is behind that is not read of a, and 0 in b.
struct PlainProduct {
  const void* a;
  int64_t row_step;
  int64_t depth_step;
  int64_t depth;  // in numbers
  ConstRows b;
  Rows c;
  bool adds = false;
};

// How rows go through the layers of a network in panels of numbers in the type that is computed with, or of elements of
// products (UnpackedKernels).
struct PanelKernels {
  int64_t number_size;  // the bytes of a number
  int64_t tile_rows;    // the rows that products take at once, in whole vectors
  // Of a panel that goes through all layers: so many tiles, of so many bytes that they stay in the cache; and of one
  // whose features threads share.
  int64_t most_tiles;
  int64_t most_bytes;
  int64_t most_shared_tiles;
  // Features from `first` to `end` of a panel, or a layer's outputs up to its steps, which are what `steps` does. y is
  // x where there is no product.
  void (*read)(ConstRows matrix, const PanelRows&, int64_t first, int64_t end, void* panel);
  void (*product)(const UnpackedLayer&, const PanelRows&, int64_t first, int64_t end, const void* x, void* y);
  void (*steps)(const UnpackedLayer&, const PanelRows&, void* y, void* kept);
  void (*write)(const void* panel, Rows matrix, const PanelRows&, int64_t first, int64_t end);
};

// Networks, rows of which go through all layers together, for one storage type.
struct UnpackedKernels {
  int64_t vector;  // the numbers of a vector
  int64_t in_vectors(int64_t n) const { return (n + vector - 1) / vector * vector; }
  PanelKernels numbers;  // of layers with weights in the type that is computed with
  PanelKernels stored;   // of layers with weights in the storage type, without steps; null where there are none
  // From the last layer down to `first_layer`. Needs room for a vector for each number of the vectors' sums, too.
  // sums: the gradients from these rows, of each layer's weight, whose rows are whole vectors, its bias, and its steps'
  // weight and bias, as far as they are wanted, one after another.
  void (*backward)(const UnpackedNetwork&, int first_layer, const UnpackedGradients&, int64_t first_row, int64_t rows,
                   void* sums, void* room);
  // A block of a product, of matrices in the type that is computed with, and its result, too; or of operands
  // (GemmKernels), as many steps of the depth beside each other as an instruction multiplies at once.
  int64_t at_once;
  void (*multiply)(const PlainProduct&, int64_t first_row, int64_t end_row, int64_t first_column, int64_t end_column);
  // Makes that, [rows / at_once, at_once * columns], of a matrix of the storage type; whole vectors are written. Null
  // where there is nothing to do.
  void (*prepare)(ConstRows source, int64_t rows, int64_t columns, Rows target);
};

// Blocks are rows of `columns` elements one after another, in the type that is computed with.

// Steps on rows, for one storage type.
struct RowKernels {
  // block = source, or + source; target = block
  void (*widen)(ConstRows source, int64_t rows, int64_t columns, bool add, void* block);
  void (*narrow)(const void* block, int64_t rows, int64_t columns, Rows target);
  // target[c, r] = source[r, c], as stored
  void (*transpose)(ConstRows source, int64_t rows, int64_t columns, Rows target);
  // y = normalized * weight + bias. All results may be null; normalized or y may be x.
  void (*normalize)(const NormArguments&, const void* x, void* normalized, void* y, void* multipliers, int64_t rows,
                    int64_t columns);
  // dx = the gradient of x, given that of y, which it may replace; adds those of weight and bias to sums, which may be
  // null.
  void (*normalize_backward)(const NormArguments&, const void* normalized, const void* multipliers, const void* grad,
                             void* dx, void* weight_sums, void* bias_sums, int64_t rows, int64_t columns);
  // y = x * weight
  void (*scale)(const void* x, const void* weight, void* y, int64_t rows, int64_t columns);
  // sums[c] += sum over r of grad[r, c] * factor[r, c]; factor may be null, which is 1.
  void (*add_to_sums)(const void* grad, const void* factor, void* sums, int64_t rows, int64_t columns);
  // y = x * factors, of rows that begin with the tensor's `first_row`. x, factors and y may be null; factors or y may
  // be x.
  void (*dropout)(const DropoutArguments&, const void* x, void* factors, void* y, int64_t first_row, int64_t rows,
                  int64_t columns);
  // dx = grad * factors, n elements; dx may be grad.
  void (*multiply)(const void* grad, const void* factors, void* dx, int64_t n);
};

// The kernels of one activation for one dtype. Those in terms of the output are null where the activation has none.
struct Kernels {
  ForwardKernel forward;
  BackwardKernel backward[max_order];
  BackwardKernel backward_from_output[max_order];
  BiasForwardKernel bias_forward;
  BiasBackwardKernel bias_backward;
  BiasBackwardKernel bias_backward_from_output;
  GatedForwardKernel gated_forward;
  GatedBackwardKernel gated_backward;

  // With GemmKernels.
  EpilogueKernel layer_forward;
  EpilogueKernel layer_backward;
  EpilogueKernel layer_backward_from_output;
  EpilogueKernel gated_layer_forward;
  EpilogueKernel gated_layer_backward;
  DerivativesKernel derivatives[max_order];  // up to order 1, 2, ..., of float32 and float64
  int last_order;                            // derivatives of a higher one are zero everywhere
};

struct KernelTable {
  Kernels entries[activation_count][dtype_count];
  GemmKernels gemm[dtype_count];
  RowKernels rows[dtype_count];
  UnpackedKernels unpacked[dtype_count];  // null where products are left to PyTorch

  FASTOPS_ALWAYS_INLINE Kernels& at(Activation activation, Dtype dtype) {
    return entries[static_cast<int>(activation)][static_cast<int>(dtype)];
  }
};

// Instruction sets: "amx" (of bfloat16, with AVX512-BF16), "avx512_bf16", "avx512" (with AVX2), "avx2" (with FMA and
// F16C), "sve256" and "sve128" (SVE with vectors of so many bits, and the instructions for bfloat16), "default" (what
// every CPU of the platform has).
FASTOPS_KERNELS_API bool has_tier(const char* name);
// What names the one to use, when that is first asked for.
FASTOPS_KERNELS_API void choose_tier_by(const char* (*choice)());
FASTOPS_KERNELS_API const char* capability();

// Of the instruction set in use.
FASTOPS_KERNELS_API const Kernels& kernels(Activation activation, Dtype dtype);
FASTOPS_KERNELS_API const GemmKernels& gemm_kernels(Dtype dtype);
FASTOPS_KERNELS_API const RowKernels& row_kernels(Dtype dtype);
FASTOPS_KERNELS_API const UnpackedKernels& unpacked_kernels(Dtype dtype);

// Each instruction set fills the table from its own build of kernels/*.cpp.
#define FASTOPS_DECLARE_TIER(TIER)                    \
  namespace TIER {                                    \
  void add_activation_kernels(KernelTable&);          \
  void add_activation_backward_kernels(KernelTable&); \
  void add_bias_act_kernels(KernelTable&);            \
  void add_bias_act_backward_kernels(KernelTable&);   \
  void add_gated_act_kernels(KernelTable&);           \
  void add_gated_layer_kernels(KernelTable&);         \
  void add_gemm_kernels(KernelTable&);                \
  void add_jet_kernels(KernelTable&);                 \
  void add_layer_kernels(KernelTable&);               \
  void add_unpacked_kernels(KernelTable&);            \
  void add_row_kernels(KernelTable&);                 \
  }
FASTOPS_DECLARE_TIER(DEFAULT)
FASTOPS_DECLARE_TIER(AVX2)
FASTOPS_DECLARE_TIER(AVX512)
FASTOPS_DECLARE_TIER(SVE128)
FASTOPS_DECLARE_TIER(SVE256)
#undef FASTOPS_DECLARE_TIER
namespace AVX512_BF16 {
// In place of the products of AVX512 for bfloat16.
void add_bfloat16_products(KernelTable&);
}  // namespace AVX512_BF16
namespace AMX {
// In place of those of AVX512_BF16.
void add_tile_products(KernelTable&);
}  // namespace AMX

}  // namespace fastops::cpu
