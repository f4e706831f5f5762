// What mlp and gated_mlp have in common as chains of matrix products.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "backends/cpu/launchers/products.h"

namespace fastops::cpu {

// What goes into a chain of a storage type: as it is, or a copy of it in another type and with a stride that the caches
// like.
class LeftHand {
 public:
  LeftHand(ConstRows matrix, int64_t columns, Dtype dtype) : matrix_(matrix), columns_(columns), dtype_(dtype) {}

  // `type`: that of operands, or that which is computed with.
  void take(Caller& caller, Dtype type, int64_t rows) {
    const bool regular = rows == 1 || matrix_.stride * element_size(type) % 4096 != 0;
    type_ = type;
    if (dtype_ != type || !regular) copy_ = take_rows(caller, type, rows, columns_);
  }

  ConstRows as_given(int64_t row) const { return from_row(matrix_, row, dtype_); }

  // The rows from `row` on. The stage that makes the copy is added to `stages`.
  ConstRows from(int64_t row, List<Stage>& stages) const {
    if (!copy_.data) return as_given(row);
    stages.push_back({.source = as_given(row), .target = copy_, .target_type = type_, .columns = columns_});
    return constant(copy_);
  }

 private:
  ConstRows matrix_;
  int64_t columns_;
  Dtype dtype_;
  Dtype type_{};
  Rows copy_{nullptr, 0};
};

// One call for `rows` rows of `input`.
class Chain {
 protected:
  // At most so many products go through the stages of a chain. `operations`: for a row. So many rows as `unit` says,
  // from the first on, are never parted.
  Chain(Caller& caller, Dtype dtype, int64_t rows, size_t most_products, int64_t operations, int64_t unit = 1)
      : caller_(caller),
        dtype_(dtype),
        rows_(rows),
        unit_(unit),
        threads_(threads_for(caller, rows * operations)),
        panels_(caller, most_products),
        stages_(caller, most_products + 2) {}

  // Multiplications for a row with the weights, and what its elements take beside them.
  template <class Linears>
  static int64_t operations(const Linears& linears) {
    int64_t sum = 0;
    for (const Linear& linear : linears) {
      sum += linear.in_features * linear.out_features;
      sum += operations_of_element * (linear.in_features + linear.out_features);
    }
    return sum;
  }

  // The product with a layer's weight, or with its transpose; pack() packs it, where that is worth it.
  Product product_with(const Linear& layer, bool transposed) {
    const int64_t depth = transposed ? layer.in_features : layer.out_features;
    const int64_t columns = transposed ? layer.out_features : layer.in_features;
    const GemmKernels& gemm = gemm_kernels(dtype_);
    transposed = transposed != layer.transposed;  // of what lies in memory
    if (transposed && gemm.reads_transpose && gemm.reads_transpose(rows_, depth, columns)) {
      return {.a = {}, .panels = nullptr, .transpose = layer.weight, .depth = depth};
    }
    if (!transposed && reads_matrix(columns)) {
      return {.a = {}, .panels = nullptr, .transpose = {}, .depth = depth, .matrix = layer.weight};
    }
    if (gemm.packs_on_the_way && gemm.packs_on_the_way(rows_ / threads_, depth * columns)) {
      Product product{.a = {}, .panels = nullptr, .transpose = {}, .depth = depth};
      (transposed ? product.transpose : product.matrix) = layer.weight;
      product.pack = transposed ? gemm.pack_transposed : gemm.pack;
      return product;
    }
    void* panels = take_panels(caller_, dtype_, depth, columns);
    panels_.push_back({transposed ? gemm.pack_transposed : gemm.pack, {layer.weight, depth, columns, panels}});
    return {.a = {}, .panels = panels, .transpose = {}, .depth = depth};
  }
  // Whether products read a right-hand matrix of so many columns, in the storage type, as it is.
  bool reads_matrix(int64_t columns) const {
    const GemmKernels& gemm = gemm_kernels(dtype_);
    return gemm.reads_matrix && gemm.reads_matrix(rows_, columns);
  }
  void pack() { pack_all(caller_, panels_, dtype_, threads_); }

  // The most rows that go through all layers before the next ones: their intermediate results take memory.
  static constexpr int64_t most_chunk_rows = 2048;
  int64_t most_units() const { return std::max<int64_t>(1, most_chunk_rows / unit_); }
  int64_t chunk_rows() const { return std::min(rows_, most_units() * unit_); }
  Rows take_chunk(int64_t columns) { return take_rows(caller_, operand(dtype_), chunk_rows(), columns); }
  // Any number of rows for a stage's source: where an epilogue is for what it computes beside the gradients.
  ConstRows take_zeros(int64_t columns) {
    const int64_t bytes = columns * accumulator_size(dtype_);
    return {std::memset(caller_.take(bytes), 0, bytes), 0};
  }

  // f(row, rows) for each chunk of rows.
  template <class F>
  void for_each_chunk(F f) const {
    const Parts chunks(rows_ / unit_, most_units());
    for (int64_t c = 0; c < chunks.count; ++c) f(chunks.begin(c) * unit_, chunks.size(c) * unit_);
  }
  void run(int64_t rows) {
    run_stages(caller_, stages_, dtype_, rows, unit_, threads_);
    stages_.clear();
  }

  // run_chunk(row, rows, parameters) for each chunk of rows; adds up the gradients that it puts into `parameters`, of
  // at most so many layers.
  template <class F>
  void sum_gradients(size_t layers, F run_chunk) {
    List<ParameterGradients> parameters(caller_, layers);
    std::optional<GradientSums> sums;
    for_each_chunk([&](int64_t row, int64_t rows) {
      parameters.clear();
      run_chunk(row, rows, parameters);
      const bool first = row == 0;
      if (first) sums.emplace(caller_, dtype_, threads_, parameters, chunk_rows(), rows == rows_);
      sums->add(parameters, rows, first);
    });
    if (sums) sums->finish(parameters);
  }

  Rows from(Rows matrix, int64_t row) const { return from_row(matrix, row, dtype_); }
  ConstRows from(ConstRows matrix, int64_t row) const { return from_row(matrix, row, dtype_); }

  Caller& caller_;
  Dtype dtype_;
  int64_t rows_;
  int64_t unit_;
  int64_t threads_;
  List<Panels> panels_;
  List<Stage> stages_;
};

}  // namespace fastops::cpu
