// Chains of matrix products, shared among threads: what mlp and gated_mlp are made of.
#pragma once

#include <algorithm>

#include "backends/cpu/launchers/share.h"

namespace fastops::cpu {

// The type that a storage type is computed with.
inline Dtype computed(Dtype dtype) { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }

// The type of the matrices that are multiplied for a storage type.
inline Dtype operand(Dtype dtype) { return gemm_kernels(dtype).operand; }

// Whether products take matrices in the storage type.
inline bool operands_as_stored(Dtype dtype) { return operand(dtype) == dtype; }

// Epilogues that do no more than add something say where the sums go.
inline Epilogue storing(Dtype dtype, const StoreArguments& to) {
  Epilogue epilogue{gemm_kernels(dtype).store, &to};
  if (dtype == computed(dtype)) {
    epilogue.result = to.result;
    if (to.add) epilogue.addend = constant(to.result);
  }
  return epilogue;
}
inline Epilogue through_layer(Activation activation, Dtype dtype, const LayerForwardArguments& to) {
  Epilogue epilogue{kernels(activation, dtype).layer_forward, &to};
  if (activation == Activation::identity && dtype == computed(dtype) && !to.pre.data && !to.next.data) {
    epilogue.result = to.post;
    epilogue.addend = {to.bias, 0};
  }
  return epilogue;
}

// target = sums, which are in the type that is computed with; + target if `add`.
inline void store_sums(Dtype dtype, ConstRows sums, Rows target, int64_t rows, int64_t columns, bool add = false) {
  const StoreArguments to{target, add};
  gemm_kernels(dtype).store(&to, {{sums.data, nullptr}, sums.stride, 0, rows, 0, columns});
}

// Multiplications that what happens to an element between products is like: an activation, a conversion.
inline constexpr int64_t operations_of_element = 16;

// How many of the caller's threads serve `operations` multiplications.
int64_t threads_for(Caller& caller, int64_t operations);

// Rows of `columns` elements of a type, a stride apart that the caches like.
Rows take_rows(Caller& caller, Dtype type, int64_t rows, int64_t columns);

// The right-hand matrix of a product, to be packed.
struct Panels {
  PackKernel kernel;
  PackArguments arguments;
};
// Room for them.
void* take_panels(Caller& caller, Dtype dtype, int64_t depth, int64_t columns);
void pack_all(Caller& caller, std::span<const Panels> matrices, Dtype dtype, int64_t threads);

// What is done with each row of a matrix, independently of the others: a stage of a chain.
struct Stage {
  // Sums of products, or, where there are none, the rows of `source`: for an epilogue, in the type that is computed
  // with; without one, in the storage type, which are copied to `target`.
  Product products[2]{};
  int product_count = 0;
  ConstRows source{nullptr, 0};
  Rows target{nullptr, 0};
  Dtype target_type{};
  int64_t columns = 0;
  Epilogue epilogue{};
};
// Runs the stages one after another for `rows` rows, of which `unit` belong together for the epilogues.
void run_stages(Caller& caller, std::span<const Stage> stages, Dtype dtype, int64_t rows, int64_t unit,
                int64_t threads);

// Whether a gradient of the layer's parameters is wanted.
inline bool wants_parameters(const Linear& layer) { return layer.weight_grad || layer.bias_grad; }
// The lowest layer that has something to compute in the backward pass, or the number of layers.
inline size_t first_layer(std::span<const Layer> layers, bool wants_input) {
  const auto wants_any = [](const Layer& layer) {
    const auto of_step = [](const RowStepGradients& step) { return step.weight || step.bias; };
    return wants_parameters(layer) || std::any_of(layer.step_gradients.begin(), layer.step_gradients.end(), of_step);
  };
  return wants_input ? 0 : std::find_if(layers.begin(), layers.end(), wants_any) - layers.begin();
}

// The gradients of a linear layer's parameters: weight = dz.T @ input, bias = the sums of dz's columns.
struct ParameterGradients {
  ConstRows dz;        // [rows, out_features]
  bool dz_is_operand;  // whether in the type of operands, or else in the storage type
  int64_t out_features;
  Panels input;  // [rows, in_features]; where its panels are is set here, if there are any
  void* weight;  // contiguous; null if not wanted
  void* bias;
  bool input_in_place = false;  // whether the source of the panels is used instead
  int64_t bias_step = 1;        // the bias has a part in each so-manieth row alone
};

// Adds up the parameters' gradients of some layers, one chunk of rows after another.
class GradientSums {
 public:
  // Takes room for chunks of at most `rows` rows; `whole` if there is only one chunk.
  GradientSums(Caller& caller, Dtype dtype, int64_t threads, std::span<const ParameterGradients> layers, int64_t rows,
               bool whole);
  void add(std::span<const ParameterGradients> layers, int64_t rows, bool first);
  void finish(std::span<const ParameterGradients> layers);

 private:
  // Where a part of the rows adds up the gradients of a layer.
  struct Sums {
    Rows weight;
    void* bias;
  };
  void add_whole(std::span<const ParameterGradients> layers, int64_t rows, bool first);
  void add_part(std::span<const ParameterGradients> layers, int64_t part, int64_t rows, bool first);
  void multiply(const ParameterGradients& layer, const Sums& sums, const void* panels, int64_t rows, int64_t thread,
                int64_t first_unit, int64_t last_unit, bool add) const;

  Caller& caller_;
  Dtype dtype_;
  int64_t threads_;
  int64_t parts_;
  bool sums_converted_;  // whether the weights' sums are in the type that is computed with
  List<Sums> sums_;      // [parts, layers]
  List<void*> panels_;   // [layers], those of a part one after another
  List<void*> tiles_;    // one for each thread or part
  List<Panels> inputs_;  // of a chunk
};

}  // namespace fastops::cpu
