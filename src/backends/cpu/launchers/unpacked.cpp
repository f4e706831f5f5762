// mlp where rows go through all layers in vectors, and products of matrices where they lie.
#include <algorithm>
#include <utility>

#include "backends/cpu/launchers/products.h"

namespace fastops::cpu {
namespace {

// A multiple of every vector's size: panels are read and written in squares of such.
constexpr int64_t widest_vector = 16;

class Unpacked {
 protected:
  // With weights in the storage type or in the one that is computed with.
  Unpacked(Caller& caller, const MlpCall& mlp, bool as_stored)
      : caller_(caller),
        dtype_(mlp.dtype),
        rows_(mlp.rows),
        seed_(mlp.seed),
        kernels_(unpacked_kernels(mlp.dtype)),
        panels_(as_stored ? kernels_.stored : kernels_.numbers),
        feature_step_(widest_vector * (as_stored ? kernels_.at_once : 1)),
        layers_(caller, mlp.layers.size()),
        steps_(caller, count_steps(mlp.layers)) {
    int64_t widest = mlp.layers[0].in_features;
    features_ = widest;
    int kept = 0;
    for (const Layer& layer : mlp.layers) {
      const bool identity = layer.activation == Activation::identity;
      const UnpackedStep* const first_step = steps_.end();
      const bool has_gradients = !layer.step_gradients.empty();
      for (size_t i = 0; i < layer.steps.size(); ++i) {
        const RowStepGradients gradients = has_gradients ? layer.step_gradients[i] : RowStepGradients{};
        steps_.push_back(unpacked_step(layer.steps[i], layer.out_features, gradients));
      }
      layers_.push_back({as_stored ? layer.weight : as_computed(layer.weight, layer.out_features, layer.in_features),
                         layer.bias ? as_computed({layer.bias, 0}, 1, layer.out_features).data : nullptr,
                         layer.in_features, layer.out_features,
                         identity ? nullptr : &kernels(layer.activation, computed(dtype_)), layer.params,
                         layer.keeps_output, layer.kept, !layer.kept.data && &layer < &mlp.layers.back(),
                         layer.weight_grad != nullptr, layer.bias_grad != nullptr, first_step,
                         static_cast<int>(layer.steps.size()), layer.only_steps, layer.end});
      widest = std::max(widest, layer.out_features);
      features_ += layer.out_features * static_cast<int64_t>(1 + layer.steps.size());
      if (!layer.only_steps) elements_ += layer.in_features * layer.out_features;
      network_.most_steps = std::max(network_.most_steps, static_cast<int>(layer.steps.size()));
      kept += (layer.end == UnpackedEnd::residual) - (layer.end == UnpackedEnd::add);
      network_.most_kept = std::max(network_.most_kept, kept);
    }
    network_.layers = layers_.begin();
    network_.count = static_cast<int>(layers_.size());
    network_.widest = (widest + feature_step_ - 1) / feature_step_ * feature_step_;
    const int64_t tile_bytes = network_.widest * panels_.tile_rows * panels_.number_size;
    network_.panel_rows =
        std::clamp<int64_t>(panels_.most_bytes / tile_bytes, 1, panels_.most_tiles) * panels_.tile_rows;
  }

  // Of a row that goes `passes` times through the products.
  int64_t operations(int64_t passes) const { return passes * elements_ + operations_of_element * features_; }

  // f(first, last, room) for parts of n things, which take all rows `passes` times through the products.
  template <class F>
  void share_parts(int64_t n, int64_t passes, int64_t room_bytes, const F& f) {
    const int64_t threads = std::min(n, threads_for(caller_, rows_ * operations(passes)));
    const Parts parts(n, (n + threads - 1) / threads);
    const int64_t bytes = (room_bytes + 63) / 64 * 64;
    char* const rooms = static_cast<char*>(caller_.take(parts.count * bytes));
    profile(caller_, "fastops::unpacked_network", [&] {
      share(caller_, parts.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) f(parts.begin(part), parts.end(part), rooms + part * bytes);
      });
    });
  }

  Caller& caller_;
  Dtype dtype_;
  int64_t rows_;
  uint64_t seed_;
  const UnpackedKernels& kernels_;
  const PanelKernels& panels_;
  int64_t feature_step_;  // parts of a panel begin at multiples of it
  List<UnpackedLayer> layers_;
  List<UnpackedStep> steps_;
  int64_t features_ = 0;  // of the input, of all layers' outputs, and once more for each of their steps
  int64_t elements_ = 0;  // of all weights
  UnpackedNetwork network_{};

 private:
  static size_t count_steps(std::span<const Layer> layers) {
    size_t count = 0;
    for (const Layer& layer : layers) count += layer.steps.size();
    return count;
  }

  UnpackedStep unpacked_step(const RowStep& step, int64_t features, const RowStepGradients& gradients) {
    using Kind = UnpackedStep::Kind;
    UnpackedStep result{};
    switch (step.kind) {
      case RowStep::Kind::activation:
        result.kind = Kind::activation;
        result.activation = &kernels(step.activation, computed(dtype_));
        result.params = step.params;
        break;
      case RowStep::Kind::norm:
        result.kind = Kind::norm;
        break;
      case RowStep::Kind::scale:
        result.kind = Kind::scale;
        break;
      case RowStep::Kind::dropout:
        result.kind = Kind::dropout;
        result.dropout = {seed_, step.stream, step.threshold, step.scale};
        break;
    }
    const auto vector = [&](RowVector v) { return as_computed({v.data, 0}, 1, features, v.dtype).data; };
    result.norm = {step.centered, step.eps, vector(step.weight), vector(step.bias)};
    result.sums_weight = gradients.weight != nullptr;
    result.sums_bias = gradients.bias != nullptr;
    return result;
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

class UnpackedForward : Unpacked {
 public:
  UnpackedForward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output)
      : Unpacked(caller, mlp, unpacked_kernels(mlp.dtype).stored.product && !has_steps(mlp.layers)),
        vectors_((rows_ + kernels_.vector - 1) / kernels_.vector) {
    if (shares_layers()) {
      profile(caller_, "fastops::unpacked_network", [&] { run_layers(input, output); });
      return;
    }
    const int64_t bytes = (2 + network_.most_kept) * bytes_of_panel();
    share_parts(vectors_, 1, bytes, [&](int64_t first, int64_t last, char* room) {
      const int64_t row = first * kernels_.vector;
      const int64_t end = std::min(rows_, last * kernels_.vector);
      const Parts panels(last - first, network_.panel_rows / kernels_.vector);
      for (int64_t i = 0; i < panels.count; ++i) {
        run_panel(input, output, PanelRows::of(panels, i, kernels_.vector, row, end - row), room);
      }
    });
  }

 private:
  static bool has_steps(const Layer& layer) { return !layer.steps.empty() || layer.end != UnpackedEnd::none; }
  static bool has_steps(std::span<const Layer> layers) {
    return std::any_of(layers.begin(), layers.end(), [](const Layer& layer) { return has_steps(layer); });
  }
  static bool has_steps(const UnpackedLayer& layer) { return layer.step_count > 0 || layer.end != UnpackedEnd::none; }

  int64_t bytes_of_panel() const { return network_.panel() * panels_.number_size; }
  // The most rows of a panel whose features threads share.
  int64_t shared_rows() const { return panels_.most_shared_tiles * panels_.tile_rows; }

  void run_panel(ConstRows input, Rows output, const PanelRows& rows, char* room) const {
    char* x = room;
    char* y = x + bytes_of_panel();
    char* kept = y + bytes_of_panel();
    panels_.read(input, rows, 0, layers_[0].in_features, x);
    for (const UnpackedLayer& layer : layers_) {
      if (layer.only_steps) std::swap(x, y);
      panels_.product(layer, rows, 0, layer.out_features, x, y);
      if (layer.end == UnpackedEnd::add) kept -= bytes_of_panel();
      if (has_steps(layer)) panels_.steps(layer, rows, y, kept);
      if (layer.end == UnpackedEnd::residual) kept += bytes_of_panel();
      std::swap(x, y);
    }
    panels_.write(x, output, rows, 0, layers_.back().out_features);
  }

  // Whether threads share each layer, because there are too few rows for all of them to go through the network with
  // some each, or to read large weights for some each. Results have the same bits.
  bool shares_layers() const {
    constexpr int64_t least_operations = 500'000;  // of a layer, that are worth it
    constexpr int64_t large_weights = 1024 * 1024;
    const int64_t threads = threads_for(caller_, rows_ * operations(1));
    if (threads == 1 || rows_ * elements_ < least_operations * static_cast<int64_t>(layers_.size())) return false;
    const int64_t most_vectors = (vectors_ + threads - 1) / threads;
    const bool few = vectors_ * kernels_.vector < threads * shared_rows();
    return 8 * vectors_ < 7 * threads * most_vectors || (few && elements_ >= large_weights);
  }

  void run_layers(ConstRows input, Rows output) {
    const Parts panels(vectors_, shared_rows() / kernels_.vector);
    const auto rows_of = [&](int64_t panel) { return PanelRows::of(panels, panel, kernels_.vector, 0, rows_); };
    // f(panel, first, end) for features of the panels, each of which takes so many operations.
    const auto share_features = [&](int64_t features, int64_t operations, auto f) {
      const int64_t blocks = (features + feature_step_ - 1) / feature_step_;
      const int64_t grain = grain_size / ((1 + operations) * feature_step_ * kernels_.vector) + 1;
      share(caller_, panels.count * blocks, grain, [&](int64_t begin, int64_t end) {
        while (begin < end) {
          const int64_t first = begin % blocks;
          const int64_t last = std::min(blocks, first + end - begin);
          f(begin / blocks, first * feature_step_, std::min(features, last * feature_step_));
          begin += last - first;
        }
      });
    };
    const int64_t size = network_.widest * shared_rows() * panels_.number_size;
    const auto take_panels = [&] { return static_cast<char*>(caller_.take(panels.count * size)); };
    char* x = take_panels();
    char* y = take_panels();
    List<char*> kept(caller_, network_.most_kept, nullptr);
    for (char*& room : kept) room = take_panels();
    int kept_count = 0;
    share_features(layers_[0].in_features, 0, [&](int64_t panel, int64_t first, int64_t end) {
      panels_.read(input, rows_of(panel), first, end, x + panel * size);
    });
    for (const UnpackedLayer& layer : layers_) {
      const bool with_steps = has_steps(layer);
      const bool is_last = &layer == &layers_.back();
      const auto write = [&](int64_t panel, int64_t first, int64_t end) {
        if (is_last) panels_.write(y + panel * size, output, rows_of(panel), first, end);
      };
      if (layer.only_steps) std::swap(x, y);
      share_features(layer.out_features, layer.only_steps ? 0 : layer.in_features,
                     [&](int64_t panel, int64_t first, int64_t end) {
                       panels_.product(layer, rows_of(panel), first, end, x + panel * size, y + panel * size);
                       if (!with_steps) write(panel, first, end);
                     });
      if (with_steps) {
        if (layer.end == UnpackedEnd::add) --kept_count;
        char* const kept_panels = layer.end == UnpackedEnd::none ? nullptr : kept[kept_count];
        if (layer.end == UnpackedEnd::residual) ++kept_count;
        share(caller_, panels.count, 1, [&](int64_t begin, int64_t end) {
          for (int64_t panel = begin; panel < end; ++panel) {
            panels_.steps(layer, rows_of(panel), y + panel * size, kept_panels ? kept_panels + panel * size : nullptr);
            write(panel, 0, layer.out_features);
          }
        });
      }
      std::swap(x, y);
    }
  }

  int64_t vectors_;  // of rows
};

class UnpackedBackward : Unpacked {
 public:
  UnpackedBackward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output, Rows input_grad)
      : Unpacked(caller, mlp, /*as_stored=*/false), units_(units()) {
    const size_t lowest = first_layer(mlp.layers, input_grad.data != nullptr);
    if (lowest == mlp.layers.size()) return;
    const auto layers = mlp.layers.subspan(lowest);
    int64_t elements = 0;  // of all gradients of parameters
    int64_t numbers = 0;   // of those of vectors
    for (size_t i = lowest; i < mlp.layers.size(); ++i) {
      const Layer& layer = mlp.layers[i];
      if (layer.weight_grad) elements += kernels_.in_vectors(layer.in_features) * layer.out_features;
      numbers += layers_[i].vector_sums() * layer.out_features;
    }
    elements += numbers;
    const int64_t size = accumulator_size(dtype_);
    char* const sums = static_cast<char*>(caller.take(units_.count * elements * size));
    share_parts(units_.count, 2, (network_.backward_room() + numbers * kernels_.vector) * size,
                [&](int64_t first, int64_t last, void* room) {
                  for (int64_t unit = first; unit < last; ++unit) {
                    const int64_t row = units_.begin(unit) * kernels_.vector;
                    const int64_t end = std::min(rows_, units_.end(unit) * kernels_.vector);
                    kernels_.backward(network_, static_cast<int>(lowest), {input, grad_output, input_grad}, row,
                                      end - row, sums + unit * elements * size, room);
                  }
                });
    if (units_.count > 1) {
      const auto add = row_kernels(computed(dtype_)).add_to_sums;
      add(sums + elements * size, nullptr, sums, units_.count - 1, elements);
    }
    const char* place = sums;
    const auto store = [&](int64_t rows, int64_t columns, int64_t stride, void* gradient, Dtype dtype) {
      store_sums(dtype, {place, stride}, {gradient, columns}, rows, columns);
      place += rows * stride * size;
    };
    for (const Layer& layer : layers) {
      const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
      const auto store_vector = [&](void* gradient, Dtype dtype) {
        if (gradient) store(1, outputs, outputs, gradient, dtype);
      };
      if (layer.weight_grad) store(outputs, inputs, kernels_.in_vectors(inputs), layer.weight_grad, dtype_);
      store_vector(layer.bias_grad, dtype_);
      for (size_t i = 0; i < layer.step_gradients.size(); ++i) {
        store_vector(layer.step_gradients[i].weight, layer.steps[i].weight.dtype);
        store_vector(layer.step_gradients[i].bias, layer.steps[i].bias.dtype);
      }
    }
  }

 private:
  // Rows, in vectors, are summed up in units, and then those, one after another. Their number, and with it every bit of
  // the result, does not depend on the threads.
  Parts units() const {
    constexpr int64_t least_operations = 1'200'000;
    constexpr int64_t most_rows = 1024;
    constexpr int64_t few = 16;
    constexpr int64_t many = 64;
    const int64_t least = least_operations / operations(/*passes=*/2);
    const int64_t rows = std::max({least, std::min(rows_ / few, most_rows), rows_ / many, kernels_.numbers.tile_rows});
    return {kernels_.in_vectors(rows_) / kernels_.vector, kernels_.in_vectors(rows) / kernels_.vector};
  }

  Parts units_;
};

}  // namespace

void multiply(Caller& caller, Dtype dtype, const PlainProduct& product, int64_t rows, int64_t columns) {
  const UnpackedKernels& kernels = unpacked_kernels(dtype);
  // What is multiplied of so many rows of a stays in the L2 cache until all columns are through.
  constexpr int64_t most_rows = 128;
  const Parts row_blocks(rows, most_rows);
  const Parts tiles((columns + kernels.vector - 1) / kernels.vector, kernels.numbers.tile_rows / kernels.vector);
  // Where that leaves threads without a block, or with one more than others, columns are parted, too.
  const int64_t threads = threads_for(caller, rows * columns * product.depth);
  const auto is_even = [&](int64_t column_blocks) {
    const int64_t blocks = row_blocks.count * column_blocks;
    return blocks % threads == 0 || blocks >= 4 * threads;
  };
  int64_t column_blocks = 1;
  while (!is_even(column_blocks) && column_blocks < tiles.count) ++column_blocks;
  const Parts parts(tiles.count, (tiles.count + column_blocks - 1) / column_blocks);
  const int64_t blocks = row_blocks.count * parts.count;
  profile(caller, "fastops::product", [&] {
    share(caller, blocks, threads > 1 ? 1 : blocks, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / parts.count;
        const int64_t part = i % parts.count;
        const int64_t first = tiles.begin(parts.begin(part)) * kernels.vector;
        const int64_t last = std::min(columns, tiles.begin(parts.end(part)) * kernels.vector);
        kernels.multiply(product, row_blocks.begin(row), row_blocks.end(row), first, last);
      }
    });
  });
}

void unpacked_mlp_forward(Caller& caller, const MlpCall& mlp, ConstRows input, Rows output) {
  UnpackedForward(caller, mlp, input, output);
}

void unpacked_mlp_backward(Caller& caller, const MlpCall& mlp, ConstRows input, ConstRows grad_output,
                           Rows input_grad) {
  UnpackedBackward(caller, mlp, input, grad_output, input_grad);
}

}  // namespace fastops::cpu
