// Chains of matrix products, shared among threads: what mlp and gated_mlp are made of.
#pragma once

#include <c10/util/SmallVector.h>

#include "backends/cpu/launch.h"
#include "backends/cpu/memory.h"

namespace fastops::cpu {

// The type that a storage type is computed with.
inline Dtype computed(Dtype dtype) { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }
inline int64_t element_size(Dtype dtype) { return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2; }

inline ConstRows from_row(ConstRows matrix, int64_t row, Dtype dtype) {
  return {static_cast<const char*>(matrix.data) + row * matrix.stride * element_size(dtype), matrix.stride};
}
inline Rows from_row(Rows matrix, int64_t row, Dtype dtype) {
  if (!matrix.data) return matrix;
  return {static_cast<char*>(matrix.data) + row * matrix.stride * element_size(dtype), matrix.stride};
}

enum class Pass { forward, backward };

// The elements of several tensors.
int64_t element_count(at::TensorList tensors);

// Whether to use the matrix products here for layers with these weights, rather than PyTorch's: whether the instruction
// set in use has them, and they are the faster ones on this CPU.
bool use_gemm(const at::Tensor& input, at::TensorList weights, Pass pass);

// How many threads serve `operations` multiplications.
int64_t threads_for(int64_t operations);

// Rows of `columns` elements, in the type that is computed with, that a product can take as its left-hand matrix.
Rows take_rows(Workspace& workspace, Dtype dtype, int64_t rows, int64_t columns);

// The right-hand matrix of a product, to be packed.
struct Panels {
  PackKernel kernel;
  PackArguments arguments;
};
// Room for them.
void* take_panels(Workspace& workspace, Dtype dtype, int64_t depth, int64_t columns);
void pack_all(c10::ArrayRef<Panels> matrices, Dtype dtype, int64_t threads);

// What is done with each row of a matrix, independently of the others: a stage of a chain.
struct Stage {
  // Sums of products, or, where there are none, the rows of `source`: in the storage type if there is no epilogue,
  // which then converts them to `target`.
  c10::SmallVector<Product, 2> products{};
  ConstRows source{nullptr, 0};
  Rows target{nullptr, 0};
  int64_t columns = 0;
  Epilogue epilogue{};
};
// Runs the stages one after another for `rows` rows.
void run_stages(c10::ArrayRef<Stage> stages, Dtype dtype, int64_t rows, int64_t threads);

// The gradients of a linear layer's parameters: weight = dz.T @ input, bias = the sums of dz's columns.
struct ParameterGradients {
  ConstRows dz;       // [rows, out_features]
  bool dz_converted;  // whether in the type that is computed with, or else in the storage type
  int64_t out_features;
  Panels input;             // [rows, in_features]; where its panels are is set here
  at::Tensor weight, bias;  // contiguous; undefined if not wanted
};

// Adds up the parameters' gradients, one chunk of rows after another.
class GradientSums {
 public:
  GradientSums(Workspace& workspace, Dtype dtype, int64_t threads)
      : workspace_(workspace), dtype_(dtype), threads_(threads) {}

  // Takes room for chunks of at most `rows` rows; `whole` if there is only one chunk.
  void prepare(c10::ArrayRef<ParameterGradients> layers, int64_t rows, bool whole);
  void add(c10::ArrayRef<ParameterGradients> layers, int64_t rows, bool first);
  void finish(c10::ArrayRef<ParameterGradients> layers);

 private:
  // Where a part of the rows adds up the gradients of a layer.
  struct Sums {
    Rows weight;
    void* bias;
  };
  void add_part(c10::ArrayRef<ParameterGradients> layers, int64_t part, int64_t rows, bool first);
  void multiply(const ParameterGradients& layer, const Sums& sums, const void* panels, int64_t rows, int64_t thread,
                int64_t first_unit, int64_t last_unit, bool add) const;

  Workspace& workspace_;
  Dtype dtype_;
  int64_t threads_;
  int64_t parts_ = 1;
  bool sums_converted_ = true;         // whether the weights' sums are in the type that is computed with
  c10::SmallVector<Sums, 8> sums_;     // [parts, layers]
  c10::SmallVector<void*, 8> panels_;  // [layers], those of a part one after another
  c10::SmallVector<void*, 8> tiles_;   // one for each thread or part
};

}  // namespace fastops::cpu
