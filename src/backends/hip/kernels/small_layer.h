// The layers of a small network as its kernels see them.
#pragma once

#include "backends/hip/kernels/transform.h"

namespace fastops::hip {

template <class Storage>
struct Layer {
  Operand<Storage> weight;
  bool weight_in_packets;  // whether its rows are packets of 16 bytes
  bool has_bias;
  const Storage* bias;  // without one, what can be read in its place
  int64_t bias_stride;
  int in_features;
  int out_features;
  Activation activation;
  Params<Compute<Storage>> params;
  bool keeps_output;
  Storage* kept;
  bool wants_weight_grad;
  bool wants_bias_grad;
  int64_t weight_sums;  // where its sums begin among those of a block
  int64_t bias_sums;

  Layer() = default;
  explicit Layer(const SmallLayer& l)
      : weight(Matrix{const_cast<void*>(l.weight), l.weight_row_stride, l.weight_column_stride}),
        weight_in_packets(weight.has_packets(l.out_features) && l.in_features * sizeof(Storage) % 16 == 0),
        has_bias(l.bias),
        bias(static_cast<const Storage*>(l.bias ? l.bias : l.weight)),
        bias_stride(l.bias ? l.bias_stride : 0),
        in_features(static_cast<int>(l.in_features)),
        out_features(static_cast<int>(l.out_features)),
        activation(l.activation),
        params(compute_params<Storage>(l.params)),
        keeps_output(l.keeps_output),
        kept(static_cast<Storage*>(l.kept)),
        wants_weight_grad(l.weight_grad),
        wants_bias_grad(l.bias_grad) {}

  // Of the matrix that is multiplied with: the weight, or with `transposed` its transpose.
  template <bool transposed>
  __device__ int depth() const {
    return transposed ? in_features : out_features;
  }
  template <bool transposed>
  __device__ int width() const {
    return transposed ? out_features : in_features;
  }
};

template <class Storage>
struct Layers {
  Layer<Storage> of[most_small_layers];
  int count;
  int64_t rows;
  int64_t sums;  // of one block

  explicit Layers(const SmallMlp& mlp) : count(static_cast<int>(mlp.count)), rows(mlp.rows), sums(0) {
    for (int i = 0; i < count; ++i) {
      const SmallLayer& layer = mlp.layers[i];
      of[i] = Layer<Storage>(layer);
      of[i].weight_sums = sums;
      if (layer.weight_grad) sums += layer.in_features * layer.out_features;
      of[i].bias_sums = sums;
      if (layer.bias_grad) sums += layer.out_features;
    }
  }
};

}  // namespace fastops::hip
