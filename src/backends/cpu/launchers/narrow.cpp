// mlp where rows go through all layers in vectors.
#include <algorithm>
#include <utility>

#include "backends/cpu/launchers/products.h"

namespace fastops::cpu {
namespace {

// A multiple of every vector's size.
constexpr int64_t feature_step = 16;

// Panels of so many bytes stay in the L1 cache, beside the weights that pass by. Measured.
constexpr int64_t panel_bytes = 12 * 1024;
constexpr int64_t most_tiles = 8;

class Narrow {
 protected:
  Narrow(Caller& caller, const MlpCall& mlp)
      : caller_(caller),
        dtype_(mlp.dtype),
        rows_(mlp.rows),
        kernels_(narrow_kernels(mlp.dtype)),
        layers_(caller, mlp.layers.size()),
        steps_(caller, count_steps(mlp.layers)) {
    int64_t widest = mlp.layers[0].in_features;
    for (const Layer& layer : mlp.layers) {
      const bool identity = layer.activation == Activation::identity;
      const NarrowStep* const first_step = steps_.end();
      for (const RowStep& step : layer.steps) steps_.push_back(narrow_step(step, layer.out_features));
      layers_.push_back({as_computed(layer.weight, layer.out_features, layer.in_features),
                         layer.bias ? as_computed({layer.bias, 0}, 1, layer.out_features).data : nullptr,
                         layer.in_features, layer.out_features,
                         identity ? nullptr : &kernels(layer.activation, computed(dtype_)), layer.params,
                         layer.keeps_output, layer.kept, layer.weight_grad != nullptr, layer.bias_grad != nullptr,
                         first_step, static_cast<int>(layer.steps.size()), layer.only_steps});
      widest = std::max(widest, layer.out_features);
      features_ += layer.out_features * static_cast<int64_t>(1 + layer.steps.size());
      elements_ += layer.in_features * layer.out_features;
    }
    network_.layers = layers_.begin();
    network_.count = static_cast<int>(layers_.size());
    network_.widest = (widest + feature_step - 1) / feature_step * feature_step;
    const int64_t tile = kernels_.tile_rows;
    const int64_t tiles = panel_bytes / (network_.widest * tile * accumulator_size(dtype_));
    network_.panel_rows = std::clamp<int64_t>(tiles, 1, most_tiles) * tile;
  }

  // f(first, last, room) for parts of n things, which take all rows `passes` times through the products.
  template <class F>
  void share_parts(int64_t n, int64_t passes, int64_t room_elements, const F& f) {
    constexpr int64_t of_activation = 16;  // multiplications that an activation is like
    const int64_t operations = passes * elements_ + of_activation * features_;
    const int64_t threads = std::min(n, threads_for(caller_, rows_ * operations));
    const Parts parts(n, (n + threads - 1) / threads);
    const int64_t bytes = (room_elements * accumulator_size(dtype_) + 63) / 64 * 64;
    char* const rooms = static_cast<char*>(caller_.take(parts.count * bytes));
    profile(caller_, "fastops::narrow_network", [&] {
      share(caller_, parts.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) f(parts.begin(part), parts.end(part), rooms + part * bytes);
      });
    });
  }

  Caller& caller_;
  Dtype dtype_;
  int64_t rows_;
  const NarrowKernels& kernels_;
  List<NarrowLayer> layers_;
  List<NarrowStep> steps_;
  int64_t features_ = 0;  // of all layers' outputs, and once more for each of their steps
  int64_t elements_ = 0;  // of all weights
  NarrowNetwork network_{};

 private:
  static size_t count_steps(std::span<const Layer> layers) {
    size_t count = 0;
    for (const Layer& layer : layers) count += layer.steps.size();
    return count;
  }

  NarrowStep narrow_step(const RowStep& step, int64_t features) {
    const auto vector = [&](RowVector v) { return as_computed({v.data, 0}, 1, features, v.dtype).data; };
    const NormArguments norm{step.centered, step.eps, vector(step.weight), vector(step.bias)};
    switch (step.kind) {
      case RowStep::Kind::activation:
        return {NarrowStep::Kind::activation, &kernels(step.activation, computed(dtype_)), step.params, norm};
      case RowStep::Kind::norm:
        return {NarrowStep::Kind::norm, nullptr, {}, norm};
      default:
        return {NarrowStep::Kind::scale, nullptr, {}, norm};
    }
  }

  ConstRows as_computed(ConstRows matrix, int64_t rows, int64_t columns) {
    return as_computed(matrix, rows, columns, dtype_);
  }
  ConstRows as_computed(ConstRows matrix, int64_t rows, int64_t columns, Dtype dtype) {
    if (!matrix.data || dtype == computed(dtype)) return matrix;
    const Rows copy = take_rows(caller_, computed(dtype), rows, columns);
    gemm_kernels(dtype).convert(matrix, rows, columns, copy);
    return constant(copy);
  }
};

class NarrowForward : Narrow {
 public:
  NarrowForward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output) : Narrow(caller, mlp) {
    const int64_t vector = kernels_.vector;
    share_parts((rows_ + vector - 1) / vector, 1, 2 * network_.panel(), [&](int64_t first, int64_t last, void* room) {
      const int64_t row = first * vector;
      kernels_.forward(network_, input, output, row, std::min(rows_, last * vector) - row, room);
    });
  }
};

class NarrowBackward : Narrow {
 public:
  NarrowBackward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad)
      : Narrow(caller, mlp), units_(units()) {
    size_t first_layer = 0;  // the lowest that has something to compute
    while (!input_grad.data && first_layer < mlp.layers.size() && !wants_parameters(mlp.layers[first_layer])) {
      ++first_layer;
    }
    if (first_layer == mlp.layers.size()) return;
    const auto layers = mlp.layers.subspan(first_layer);
    int64_t elements = 0;  // of all gradients of parameters
    for (const Layer& layer : layers) {
      if (layer.weight_grad) elements += in_vectors(layer.in_features) * layer.out_features;
      if (layer.bias_grad) elements += layer.out_features;
    }
    const int64_t size = accumulator_size(dtype_);
    char* const sums = static_cast<char*>(caller.take(units_.count * elements * size));
    share_parts(units_.count, 2, 3 * network_.panel() + features_ * kernels_.vector,
                [&](int64_t first, int64_t last, void* room) {
                  for (int64_t unit = first; unit < last; ++unit) {
                    kernels_.backward(network_, static_cast<int>(first_layer), {input, grad_output, input_grad},
                                      units_.begin(unit), units_.size(unit), sums + unit * elements * size, room);
                  }
                });
    if (units_.count > 1) {
      const auto add = row_kernels(computed(dtype_)).add_to_sums;
      add(sums + elements * size, nullptr, sums, units_.count - 1, elements);
    }
    const char* place = sums;
    const auto store = [&](int64_t rows, int64_t columns, int64_t stride, void* gradient) {
      const StoreArguments to{{gradient, columns}, /*add=*/false};
      gemm_kernels(dtype_).store(&to, {{place, nullptr}, stride, 0, rows, 0, columns});
      place += rows * stride * size;
    };
    for (const Layer& layer : layers) {
      const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
      if (layer.weight_grad) store(outputs, inputs, in_vectors(inputs), layer.weight_grad);
      if (layer.bias_grad) store(1, outputs, outputs, layer.bias_grad);
    }
  }

 private:
  int64_t in_vectors(int64_t n) const { return (n + kernels_.vector - 1) / kernels_.vector * kernels_.vector; }
  static bool wants_parameters(const Layer& layer) { return layer.weight_grad || layer.bias_grad; }

  // The rows are summed up in units, and then those, one after another. Their number, and with it every bit of the
  // result, does not depend on the threads.
  Parts units() const {
    constexpr int64_t least_operations = 200'000;
    constexpr int64_t most_rows = 1024;
    constexpr int64_t few = 16;
    constexpr int64_t many = 64;
    const int64_t least = least_operations / std::max<int64_t>(1, 2 * elements_);
    const int64_t rows = std::max({least, std::min(rows_ / few, most_rows), rows_ / many, kernels_.tile_rows});
    return {rows_, rows};
  }

  Parts units_;
};

}  // namespace

void narrow_mlp_forward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output) {
  NarrowForward(caller, mlp, input, output);
}

void narrow_mlp_backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad) {
  NarrowBackward(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
