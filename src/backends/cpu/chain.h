// What mlp and gated_mlp have in common as chains of matrix products.
#pragma once

#include <algorithm>
#include <vector>

#include "backends/cpu/gemm.h"
#include "ops/matrix.h"

namespace fastops::cpu {

// The left-hand matrix of a chain's first product: a tensor itself, or a copy of it in the type that is computed with
// and with a stride that the caches like.
class LeftHand {
 public:
  LeftHand(const at::Tensor& tensor, Dtype dtype) : tensor_(tensor), dtype_(dtype) {}

  void take(Workspace& workspace, int64_t rows) {
    const int64_t stride = tensor_.from(0).stride;
    const bool regular = rows == 1 || stride * accumulator_size(dtype_) % 4096 != 0;
    if (dtype_ != computed(dtype_) || !regular) copy_ = take_rows(workspace, dtype_, rows, tensor_.columns());
  }
  const RowView& tensor() const { return tensor_; }

  // The rows from `row` on. The stage that makes the copy is added to `stages`.
  ConstRows from(int64_t row, c10::SmallVectorImpl<Stage>& stages) const {
    if (!copy_.data) return tensor_.from(row);
    stages.push_back({.source = tensor_.from(row), .target = copy_, .columns = tensor_.columns()});
    return constant(copy_);
  }

 private:
  RowView tensor_;
  Dtype dtype_;
  Rows copy_{nullptr, 0};
};

// The arguments as the kernels want them, and the memory of one call.
class Chain {
 protected:
  struct Layer {
    RowView weight;
    at::Tensor bias;  // contiguous; undefined if there is none
    int64_t out_features, in_features;

    const void* bias_data() const { return bias.defined() ? bias.const_data_ptr() : nullptr; }
  };

  // `passes` is the number of products with matrices of each weight's size.
  Chain(const at::Tensor& input, at::TensorList weights, at::TensorList biases, int64_t passes)
      : input_tensor_(input),
        dtype_(dtype_of(input)),
        input_(input, dtype_),
        rows_(row_count(input)),
        threads_(threads_for(passes * rows_ * element_count(weights))) {
    for (size_t i = 0; i < weights.size(); ++i) {
      layers_.push_back({RowView(weights[i]), biases[i].defined() ? biases[i].contiguous() : at::Tensor(),
                         weights[i].size(0), weights[i].size(1)});
    }
  }

  // The product with a layer's weight, or with its transpose; pack_all(panels_, ...) packs it.
  Product product_with(const Layer& layer, bool transposed) {
    const int64_t depth = transposed ? layer.in_features : layer.out_features;
    const int64_t columns = transposed ? layer.out_features : layer.in_features;
    void* panels = take_panels(workspace_, dtype_, depth, columns);
    const GemmKernels& gemm = gemm_kernels(dtype_);
    panels_.push_back(
        {transposed ? gemm.pack_transposed : gemm.pack, {layer.weight.from(0), {}, depth, columns, panels, {}}});
    return {{}, panels, depth};
  }

  // The most rows that go through all layers before the next ones: their intermediate results take memory.
  static constexpr int64_t most_chunk_rows = 2048;
  int64_t chunk_rows() const { return std::min(rows_, most_chunk_rows); }

  // Whether no layer has an output. All gradients are zero then, and rows without elements need no time.
  bool is_empty() const {
    return rows_ == 0 ||
           std::all_of(layers_.begin(), layers_.end(), [](const Layer& l) { return l.out_features == 0; });
  }

  // f(row, rows) for each chunk of rows.
  template <class F>
  void for_each_chunk(F f) const {
    const Parts chunks(rows_, most_chunk_rows);
    for (int64_t c = 0; c < chunks.count; ++c) f(chunks.begin(c), chunks.size(c));
  }

  // run_chunk(row, rows, parameters) for each chunk of rows; adds up the gradients that it puts into `parameters`.
  template <class F>
  void sum_gradients(F run_chunk) {
    GradientSums sums(workspace_, dtype_, threads_);
    c10::SmallVector<ParameterGradients, 4> parameters;
    for_each_chunk([&](int64_t row, int64_t rows) {
      parameters.clear();
      run_chunk(row, rows, parameters);
      const bool first = row == 0;
      if (first) sums.prepare(parameters, chunk_rows(), rows == rows_);
      sums.add(parameters, rows, first);
    });
    sums.finish(parameters);
  }

  // A result with the input's leading dimensions.
  at::Tensor rows_result(int64_t features) const {
    auto sizes = input_tensor_.sizes().vec();
    sizes.back() = features;
    return empty_result(sizes, input_tensor_);
  }
  at::Tensor empty_parameter(at::IntArrayRef sizes) const { return empty_result(sizes, input_tensor_); }

  // The rows of a contiguous result from `row` on; none of an undefined one.
  Rows rows_of(const at::Tensor& result, int64_t row) const {
    if (!result.defined()) return {nullptr, 0};
    return from_row(Rows{byte_data(result), result.size(-1)}, row, dtype_);
  }

  static bool hold_nothing(at::TensorList results) {
    return std::all_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.numel() == 0; });
  }

  static void set_to_zero(std::vector<at::Tensor>& results) {
    for (at::Tensor& result : results) {
      if (result.defined()) result.zero_();
    }
  }

  static void erase_undefined(std::vector<at::Tensor>& results) {
    std::erase_if(results, [](const at::Tensor& result) { return !result.defined(); });
  }

  at::Tensor input_tensor_;
  Dtype dtype_;
  LeftHand input_;
  int64_t rows_;
  int64_t threads_;
  c10::SmallVector<Layer, 4> layers_;
  Workspace workspace_;
  c10::SmallVector<Panels, 4> panels_;
};

}  // namespace fastops::cpu
