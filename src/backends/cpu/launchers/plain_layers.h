// The backward passes of mlp and mlp_jet with products of matrices where they lie: a block of rows goes down through
// all layers, and the gradients of their parameters grow with it, while it is in the cache. Matrices of 16-bit numbers
// become what products take (UnpackedKernels): weights once, what comes to a layer block by block.
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
        kernels_(unpacked_kernels(dtype_)),
        size_(accumulator_size(dtype_)),
        form_(mlp),
        layers_(mlp.layers),
        unit_(Form::unit(mlp)),
        rows_(mlp.rows),
        input_(input),
        grad_output_(grad_output),
        input_grad_(input_grad),
        first_layer_(first_layer(layers_, input_grad.data != nullptr)),
        sums_(caller, layers_.size()),
        weights_(caller, layers_.size()) {
    if (first_layer_ == layers_.size()) return;
    int64_t widest = 1;
    int64_t operations = 0;
    for (const Layer& layer : layers_) {
      widest = std::max(widest, layer.out_features);
      operations += (2 * layer.in_features + operations_of_element) * layer.out_features;
      sums_.push_back(take_sums(layer));
    }
    stride_ = uneven(widest, size_);
    stored_stride_ = uneven(widest, element_size(dtype_));
    operand_stride_ = uneven(std::max(widest, layers_[0].in_features), size_);
    prepare_weights();
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

  // Cache lines that rows take: an odd number, so that rows are in different sets of the caches.
  static int64_t uneven(int64_t columns, int64_t size) {
    const int64_t line = 64 / size;
    return ((columns + line - 1) / line | 1) * line;
  }

  Sums take_sums(const Layer& layer) {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    const bool transposed = inputs * kernels_.in_vectors(outputs) < outputs * kernels_.in_vectors(inputs);
    Sums sums{transposed, kernels_.in_vectors(transposed ? outputs : inputs), elements_, 0};
    if (layer.weight_grad) elements_ += (transposed ? inputs : outputs) * sums.stride;
    sums.bias = elements_;
    if (layer.bias_grad) elements_ += kernels_.in_vectors(outputs);
    return sums;
  }

  // Of sums, and whatever else is in the type that is computed with.
  char* at(void* data, int64_t element) const { return static_cast<char*>(data) + element * size_; }
  // The elements of products (UnpackedKernels) of so many steps of the depth.
  int64_t elements_of(int64_t depth) const { return (depth + kernels_.at_once - 1) / kernels_.at_once; }
  // Whether the gradients of z take the place of those of f(z).
  bool are_in_place() const { return operand(dtype_) == computed(dtype_); }

  // Whether products take the gradients of z otherwise than they are computed.
  bool prepares_left() const { return kernels_.prepare && operands_as_stored(dtype_); }
  // A matrix as products take it: in the room for that, unless they take it as it is.
  ConstRows prepared(ConstRows matrix, int64_t rows, int64_t columns, Rows room) const {
    if (!kernels_.prepare) return matrix;
    kernels_.prepare(matrix, rows, columns, room);
    return constant(room);
  }

  void prepare_weights() {
    for (const Layer& layer : layers_) {
      Rows room{nullptr, 0};
      if (kernels_.prepare && (&layer > &layers_[first_layer_] || input_grad_.data)) {
        const int64_t stride = uneven(layer.in_features, size_);
        const int64_t elements = elements_of(layer.out_features);
        room = {caller_.take(elements * stride * size_), stride * kernels_.at_once};
        share_rows(caller_, elements, layer.in_features, [&](int64_t begin, int64_t end) {
          const int64_t row = begin * kernels_.at_once;
          const int64_t rows = std::min(layer.out_features, end * kernels_.at_once) - row;
          kernels_.prepare(from_row(layer.weight, row, dtype_), rows, layer.in_features,
                           from_row(room, begin, operand(dtype_)));
        });
      }
      weights_.push_back(room.data ? constant(room) : layer.weight);
    }
  }

  // Where a block of rows goes through the layers.
  struct Room {
    Rows grad, next_grad;  // of f(z), in the type that is computed with
    Rows values;           // f(z) of the layers that keep z, in the storage type
    Rows dz;               // the gradients of z, in the storage type, where they are not in place
    Rows left, right;      // what is multiplied for a weight's gradient, where that has to be prepared
    int64_t bytes;
  };
  Room room_of(char* memory, int64_t rows) const {
    Room room{};
    const auto take = [&](int64_t stride, int64_t size, int64_t at_once = 1) {
      char* const place = memory ? memory + room.bytes : nullptr;
      room.bytes += rows * stride * size;
      return Rows{place, stride * at_once};
    };
    const int64_t stored = element_size(dtype_);
    room.grad = take(stride_, size_);
    room.next_grad = take(stride_, size_);
    room.values = take(stored_stride_, stored);
    if (!are_in_place()) room.dz = take(stored_stride_, stored);
    if (prepares_left()) room.left = take(stride_, size_, kernels_.at_once);
    if (kernels_.prepare) room.right = take(operand_stride_, size_, kernels_.at_once);
    return room;
  }

  void run(int64_t most_threads) {
    const int64_t units = rows_ / unit_;
    const int64_t count = part_count();
    const Parts parts(units, (units + count - 1) / count);
    const int64_t threads = std::min(most_threads, parts.count);
    // As many rows go through all layers at a time: what they leave on their way stays in the L2 cache. Measured.
    constexpr int64_t block_bytes = 96 * 1024;
    const int64_t most_rows = std::clamp<int64_t>(block_bytes / (stride_ * size_), 32, 128);
    const int64_t block_rows = std::max<int64_t>(1, most_rows / unit_) * unit_;
    const int64_t bytes_of_block = room_of(nullptr, block_rows).bytes;
    auto* const rooms = static_cast<char*>(caller_.take(threads * bytes_of_block));
    // Sums that are transposed are read in whole squares, behind the last row, too.
    const int64_t square = kernels_.vector * stride_;
    void* const sums = caller_.take((parts.count * elements_ + square) * size_);
    profile(caller_, "fastops::layers", [&] {
      const Parts of_threads(parts.count, (parts.count + threads - 1) / threads);
      share(caller_, of_threads.count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread) {
          const Room room = room_of(rooms + thread * bytes_of_block, block_rows);
          for (int64_t part = of_threads.begin(thread); part < of_threads.end(thread); ++part) {
            run_part(parts.begin(part) * unit_, parts.end(part) * unit_, block_rows, at(sums, part * elements_), room);
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

  void run_part(int64_t first_row, int64_t end_row, int64_t block_rows, void* sums, const Room& room) const {
    for (size_t i = first_layer_; i < layers_.size(); ++i) {
      if (layers_[i].bias_grad) std::memset(at(sums, sums_[i].bias), 0, layers_[i].out_features * size_);
    }
    const Parts blocks((end_row - first_row) / unit_, block_rows / unit_);
    for (int64_t b = 0; b < blocks.count; ++b) {
      run_block(first_row + blocks.begin(b) * unit_, blocks.size(b) * unit_, sums, /*add=*/b > 0, room);
    }
  }

  // From the last layer's results down to the input's gradient.
  void run_block(int64_t row, int64_t rows, void* sums, bool add, Room room) const {
    ConstRows dz = last_gradient(row, rows, room);
    for (size_t i = layers_.size(); i-- > first_layer_;) {
      const Layer& layer = layers_[i];
      const bool prepares = layer.weight_grad && prepares_left();
      const ConstRows left = prepares ? prepared(dz, rows, layer.out_features, room.left) : dz;
      const auto add_to_weight = [&](ConstRows input) {
        add_to_gradient(left, prepared(input, rows, layer.in_features, room.right), rows, layer, sums_[i], sums, add);
      };
      if (layer.bias_grad) add_to_bias(dz, rows, layer, at(sums, sums_[i].bias));
      if (i == 0) {
        if (layer.weight_grad) add_to_weight(from_row(input_, row, dtype_));
        if (input_grad_.data) store_input_gradient(dz, row, rows, room);
        return;
      }
      const Layer& below = layers_[i - 1];
      const ConstRows kept = constant(from_row(below.kept, row, dtype_));
      const bool keeps_values = form_.keeps_values(below);
      const Rows values{layer.weight_grad && !keeps_values ? room.values.data : nullptr, room.values.stride};
      if (i > first_layer_) {
        read_ahead(kept, rows, below.out_features);
        multiply_by_weight(dz, i, room.grad, rows);
      } else if (values.data) {
        std::memset(room.grad.data, 0, rows * room.grad.stride * size_);
      }
      if (i > first_layer_ || values.data) dz = through_activation(below, kept, rows, values, room);
      if (layer.weight_grad) add_to_weight(keeps_values ? kept : constant(values));
    }
  }

  // dz of the last layer.
  ConstRows last_gradient(int64_t row, int64_t rows, Room& room) const {
    const Layer& last = layers_.back();
    const ConstRows grad = from_row(grad_output_, row, dtype_);
    const bool is_identity = last.activation == Activation::identity;
    if (is_identity && !kernels_.prepare) return grad;
    gemm_kernels(dtype_).convert(grad, rows, last.out_features, room.grad);
    if (!is_identity) {
      return through_activation(last, constant(from_row(last.kept, row, dtype_)), rows, {nullptr, 0}, room);
    }
    if (!are_in_place()) store_sums(dtype_, constant(room.grad), room.dz, rows, last.out_features);
    return as_left(room);
  }
  // dz of a layer, whose output's gradient is where that has its place; the next one comes to another place.
  ConstRows through_activation(const Layer& layer, ConstRows kept, int64_t rows, Rows values, Room& room) const {
    const auto arguments =
        form_.backward(layer, kept, are_in_place() ? room.grad : room.dz, values, operands_as_stored(dtype_));
    form_.backward_kernel(layer)(&arguments,
                                 {{room.grad.data, nullptr}, room.grad.stride, 0, rows, 0, layer.out_features});
    return as_left(room);
  }
  // The rows of dz that is where the gradient has its place, or that of what is stored.
  ConstRows as_left(Room& room) const {
    if (!are_in_place()) return constant(room.dz);
    std::swap(room.grad, room.next_grad);
    return constant(room.next_grad);
  }

  // What is read here is in the cache when the product is done, and the memory has had that long to bring it: gains a
  // twentieth where it comes from far away, prefetches half of that. Measured.
  void read_ahead(ConstRows matrix, int64_t rows, int64_t columns) const {
    constexpr int64_t line = 64;
    const int64_t bytes = columns * element_size(dtype_);
    for (int64_t r = 0; r < rows; ++r) {
      const auto* const p = static_cast<const volatile char*>(from_row(matrix, r, dtype_).data);
      for (int64_t byte = 0; byte < bytes; byte += line) static_cast<void>(p[byte]);
    }
  }
  void multiply_by_weight(ConstRows dz, size_t i, Rows result, int64_t rows) const {
    const int64_t depth = layers_[i].out_features;
    const PlainProduct product{dz.data, dz.stride, kernels_.at_once, depth, weights_[i], result};
    kernels_.multiply(product, 0, rows, 0, layers_[i].in_features);
  }
  void store_input_gradient(ConstRows dz, int64_t row, int64_t rows, const Room& room) const {
    const Rows result = from_row(input_grad_, row, dtype_);
    if (!kernels_.prepare) return multiply_by_weight(dz, 0, result, rows);
    const Rows sums{room.right.data, operand_stride_};
    multiply_by_weight(dz, 0, sums, rows);
    store_sums(dtype_, constant(sums), result, rows, layers_[0].in_features);
  }
  void add_to_gradient(ConstRows dz, ConstRows h, int64_t rows, const Layer& layer, const Sums& to, void* sums,
                       bool add) const {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    const Rows result{at(sums, to.weight), to.stride};
    const auto& [a, b] = to.transposed ? std::pair(h, dz) : std::pair(dz, h);
    const PlainProduct product{a.data, kernels_.at_once, a.stride, rows, b, result, add};
    kernels_.multiply(product, 0, to.transposed ? inputs : outputs, 0, to.transposed ? outputs : inputs);
  }
  // The bias has a part in the first row of each unit alone.
  void add_to_bias(ConstRows dz, int64_t rows, const Layer& layer, void* sums) const {
    const GemmKernels& of_operands = gemm_kernels(operand(dtype_));
    of_operands.pack_tiles({dz.data, dz.stride * unit_}, rows / unit_, layer.out_features, nullptr, sums);
  }

  // The sums of the first part become those of all.
  void add_parts(void* sums, int64_t parts) const {
    const int64_t vector = kernels_.vector;
    const int64_t grain = std::max<int64_t>(1, grain_size / (parts * vector));
    if (parts == 1) return;
    share(caller_, elements_ / vector, grain, [&](int64_t begin, int64_t end) {
      const ConstRows others{at(sums, elements_ + begin * vector), elements_};
      const GemmKernels& of_sums = gemm_kernels(computed(dtype_));
      of_sums.pack_tiles(others, parts - 1, (end - begin) * vector, nullptr, at(sums, begin * vector));
    });
  }
  void store(const Layer& layer, const Sums& from, void* sums) const {
    const auto [outputs, inputs] = std::pair(layer.out_features, layer.in_features);
    if (layer.bias_grad) store_sums(dtype_, {at(sums, from.bias), outputs}, {layer.bias_grad, outputs}, 1, outputs);
    if (!layer.weight_grad) return;
    const Rows target{layer.weight_grad, inputs};
    if (from.transposed) {
      kernels_.numbers.write(at(sums, from.weight), target, {0, outputs, false, from.stride}, 0, inputs);
    } else {
      store_sums(dtype_, {at(sums, from.weight), from.stride}, target, outputs, inputs);
    }
  }

  Caller& caller_;
  Dtype dtype_;
  const UnpackedKernels& kernels_;
  int64_t size_;  // of an element, in the type that is computed with
  Form form_;
  std::span<const Layer> layers_;
  int64_t unit_;
  int64_t rows_;
  ConstRows input_;
  ConstRows grad_output_;
  Rows input_grad_;
  size_t first_layer_;
  List<Sums> sums_;
  List<ConstRows> weights_;     // as products take them
  int64_t elements_ = 0;        // of the sums of a part, in whole vectors
  int64_t stride_ = 0;          // of a block's rows, in the type that is computed with
  int64_t stored_stride_ = 0;   // and in the storage type
  int64_t operand_stride_ = 0;  // of the elements that are multiplied
};

}  // namespace fastops::cpu
