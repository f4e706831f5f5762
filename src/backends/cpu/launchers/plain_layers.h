// The backward passes of mlp and mlp_jet with products of matrices where they lie: a block of rows goes down through
// all layers, and the gradients of their parameters grow with it, while it is in the cache. For float32 and float64.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "backends/cpu/launchers/products.h"

namespace fastops::cpu {

// With a form of layers.h.
template <class Form>
class PlainLayersBackward {
 public:
  PlainLayersBackward(Caller& caller, const typename Form::Call& mlp, ConstRows input, ConstRows grad_output,
                      Rows input_grad)
      : caller_(caller),
        dtype_(mlp.dtype),
        size_(element_size(mlp.dtype)),
        form_(mlp),
        layers_(mlp.layers),
        unit_(Form::unit(mlp)),
        rows_(mlp.rows),
        input_(input),
        grad_output_(grad_output),
        input_grad_(input_grad),
        sums_(caller, layers_.size()) {
    while (!input_grad.data && first_layer_ < layers_.size() && !wants_parameters(layers_[first_layer_])) {
      ++first_layer_;
    }
    if (first_layer_ == layers_.size()) return;
    int64_t widest = 1;
    int64_t operations = 0;
    for (const Layer& layer : layers_) {
      widest = std::max(widest, layer.out_features);
      operations += 2 * layer.in_features * layer.out_features;
      sums_.push_back(take_sums(layer));
    }
    stride_ = uneven(widest);
    run(threads_for(caller, rows_ * operations));
  }

 private:
  // Where a part of the rows adds up the gradients of a layer's parameters, from its first sum on.
  struct Sums {
    bool transposed;  // whether the weight's are [in_features, out_features], as that takes fewer vectors
    int64_t stride;
    int64_t weight;
    int64_t bias;
  };

  int64_t in_vectors(int64_t n) const {
    const int64_t vector = unpacked_kernels(dtype_).vector;
    return (n + vector - 1) / vector * vector;
  }
  // Cache lines that rows take: an odd number, so that rows are in different sets of the caches.
  int64_t uneven(int64_t columns) const {
    const int64_t line = 64 / size_;
    return ((columns + line - 1) / line | 1) * line;
  }

  Sums take_sums(const Layer& layer) {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    const bool transposed = inputs * in_vectors(outputs) < outputs * in_vectors(inputs);
    Sums sums{transposed, in_vectors(transposed ? outputs : inputs), elements_, 0};
    if (layer.weight_grad) elements_ += (transposed ? inputs : outputs) * sums.stride;
    sums.bias = elements_;
    if (layer.bias_grad) elements_ += in_vectors(outputs);
    return sums;
  }

  char* at(void* data, int64_t element) const { return static_cast<char*>(data) + element * size_; }

  void run(int64_t most_threads) {
    const int64_t units = rows_ / unit_;
    const int64_t count = part_count();
    const Parts parts(units, (units + count - 1) / count);
    const int64_t threads = std::min(most_threads, parts.count);
    // As many rows go through all layers at a time: what they leave on their way stays in the L2 cache. Measured.
    constexpr int64_t block_bytes = 96 * 1024;
    const int64_t most_rows = std::clamp<int64_t>(block_bytes / (stride_ * size_), 32, 128);
    const int64_t block_rows = std::max<int64_t>(1, most_rows / unit_) * unit_;
    const int64_t room = 3 * block_rows * stride_;
    void* const rooms = caller_.take(threads * room * size_);
    // Sums that are transposed are read in whole squares, behind the last row, too.
    const int64_t square = unpacked_kernels(dtype_).vector * stride_;
    void* const sums = caller_.take((parts.count * elements_ + square) * size_);
    profile(caller_, "fastops::layers", [&] {
      const Parts of_threads(parts.count, (parts.count + threads - 1) / threads);
      share(caller_, of_threads.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread) {
          for (int64_t part = of_threads.begin(thread); part < of_threads.end(thread); ++part) {
            run_part(parts.begin(part) * unit_, parts.end(part) * unit_, block_rows, at(sums, part * elements_),
                     at(rooms, thread * room));
          }
        }
      });
    });
    profile(caller_, "fastops::parameter_gradients", [&] {
      add_parts(sums, parts.count);
      for (size_t i = first_layer_; i < layers_.size(); ++i) store(layers_[i], sums_[i], sums);
    });
  }

  // Their number, and with it every bit of the result, does not depend on the threads; where it is a power of two, most
  // numbers of threads have as many each. Writing and adding up their sums takes the time of a few rows. Measured.
  int64_t part_count() const {
    constexpr int64_t few = 4;
    const int64_t most = std::clamp<int64_t>(rows_ / 1024, 16, 64);
    const int64_t least = std::clamp<int64_t>(rows_ / least_part_rows(elements_), 1, few);
    const int64_t rows = std::max(least_part_rows(0), elements_ / 256);
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::clamp(rows_ / rows, least, most))));
  }

  void run_part(int64_t first_row, int64_t end_row, int64_t block_rows, void* sums, void* room) const {
    for (size_t i = first_layer_; i < layers_.size(); ++i) {
      if (layers_[i].bias_grad) std::memset(at(sums, sums_[i].bias), 0, layers_[i].out_features * size_);
    }
    const Parts blocks((end_row - first_row) / unit_, block_rows / unit_);
    for (int64_t b = 0; b < blocks.count; ++b) {
      const int64_t row = first_row + blocks.begin(b) * unit_;
      run_block(row, blocks.size(b) * unit_, sums, /*add=*/b > 0, at(room, 0), at(room, block_rows * stride_),
                at(room, 2 * block_rows * stride_));
    }
  }

  // From the last layer's results down to the input's gradient.
  void run_block(int64_t row, int64_t rows, void* sums, bool add, void* room, void* next_room,
                 void* values_room) const {
    const Layer& last = layers_.back();
    ConstRows dz = from_row(grad_output_, row, dtype_);
    if (last.activation != Activation::identity) {
      const Rows copy{room, stride_};
      gemm_kernels(dtype_).convert(dz, rows, last.out_features, copy);
      form_.backward_rows(last, constant(from_row(last.kept, row, dtype_)), copy, {nullptr, 0}, rows);
      dz = constant(copy);
      std::swap(room, next_room);
    }
    for (size_t i = layers_.size(); i-- > first_layer_;) {
      const Layer& layer = layers_[i];
      const Sums& to = sums_[i];
      if (layer.bias_grad) add_to_bias(dz, rows, layer, at(sums, to.bias));
      if (i == 0) {
        if (layer.weight_grad) add_to_weight(dz, from_row(input_, row, dtype_), rows, layer, to, sums, add);
        if (input_grad_.data) multiply_by_weight(dz, layer, from_row(input_grad_, row, dtype_), rows);
        return;
      }
      const Layer& below = layers_[i - 1];
      const ConstRows kept = constant(from_row(below.kept, row, dtype_));
      const bool in_place = form_.keeps_values(below);
      const Rows grad{room, stride_};
      const Rows values{layer.weight_grad && !in_place ? values_room : nullptr, stride_};
      if (i > first_layer_) {
        read_ahead(kept, rows, below.out_features);
        multiply_by_weight(dz, layer, grad, rows);
      } else if (values.data) {
        std::memset(grad.data, 0, rows * grad.stride * size_);
      }
      if (i > first_layer_ || values.data) form_.backward_rows(below, kept, grad, values, rows);
      if (layer.weight_grad) add_to_weight(dz, in_place ? kept : constant(values), rows, layer, to, sums, add);
      dz = constant(grad);
      std::swap(room, next_room);
    }
  }

  // What is read here is in the cache when the product is done, and the memory has had that long to bring it: gains a
  // twentieth where it comes from far away, prefetches half of that. Measured.
  void read_ahead(ConstRows matrix, int64_t rows, int64_t columns) const {
    constexpr int64_t line = 64;
    for (int64_t r = 0; r < rows; ++r) {
      const auto* const p = static_cast<const volatile char*>(from_row(matrix, r, dtype_).data);
      for (int64_t byte = 0; byte < columns * size_; byte += line) static_cast<void>(p[byte]);
    }
  }
  void multiply_by_weight(ConstRows dz, const Layer& layer, Rows result, int64_t rows) const {
    const PlainProduct product{dz.data, dz.stride, 1, layer.out_features, layer.weight, result};
    unpacked_kernels(dtype_).multiply(product, 0, rows, 0, layer.in_features);
  }
  void add_to_weight(ConstRows dz, ConstRows h, int64_t rows, const Layer& layer, const Sums& to, void* sums,
                     bool add) const {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    const Rows result{at(sums, to.weight), to.stride};
    const auto& [a, b] = to.transposed ? std::pair(h, dz) : std::pair(dz, h);
    const PlainProduct product{a.data, 1, a.stride, rows, b, result, add};
    unpacked_kernels(dtype_).multiply(product, 0, to.transposed ? inputs : outputs, 0,
                                      to.transposed ? outputs : inputs);
  }
  // The bias has a part in the first row of each unit alone.
  void add_to_bias(ConstRows dz, int64_t rows, const Layer& layer, void* sums) const {
    gemm_kernels(dtype_).pack_tiles({dz.data, dz.stride * unit_}, rows / unit_, layer.out_features, nullptr, sums);
  }

  // The sums of the first part become those of all.
  void add_parts(void* sums, int64_t parts) const {
    const int64_t vector = unpacked_kernels(dtype_).vector;
    const int64_t grain = std::max<int64_t>(1, grain_size / (parts * vector));
    if (parts == 1) return;
    share(caller_, elements_ / vector, grain, [&](int64_t begin, int64_t end) {
      const ConstRows others{at(sums, elements_ + begin * vector), elements_};
      gemm_kernels(dtype_).pack_tiles(others, parts - 1, (end - begin) * vector, nullptr, at(sums, begin * vector));
    });
  }
  void store(const Layer& layer, const Sums& from, void* sums) const {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    if (layer.bias_grad) std::memcpy(layer.bias_grad, at(sums, from.bias), outputs * size_);
    if (!layer.weight_grad) return;
    const void* const source = at(sums, from.weight);
    const Rows target{layer.weight_grad, inputs};
    if (from.transposed) {
      unpacked_kernels(dtype_).write(source, target, {0, outputs, false, from.stride}, 0, inputs);
    } else {
      const StoreArguments to{target, /*add=*/false};
      gemm_kernels(dtype_).store(&to, {{source, nullptr}, from.stride, 0, outputs, 0, inputs});
    }
  }

  Caller& caller_;
  Dtype dtype_;
  int64_t size_;  // of an element
  Form form_;
  std::span<const Layer> layers_;
  int64_t unit_;
  int64_t rows_;
  ConstRows input_;
  ConstRows grad_output_;
  Rows input_grad_;
  size_t first_layer_ = 0;  // the lowest that has something to compute
  List<Sums> sums_;
  int64_t elements_ = 0;  // of the sums of a part, in whole vectors
  int64_t stride_ = 0;    // of a block's rows
};

}  // namespace fastops::cpu
