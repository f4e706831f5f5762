// Multi-layer perceptrons of up to 128 features, forward and backward, each in one kernel.
//
// A block takes some rows through all layers. What goes from layer to layer stays in shared memory, in the type that is
// computed with; weights pass through it in panels. Within a layer a thread changes only elements that belong to it
// (tile.h), so that it takes barriers around products alone. One block on a multiprocessor may do: the networks are
// small, and spilled registers cost more than room for several.
#include "backends/hip/kernels/tile.h"

namespace fastops::hip {
namespace {

// A layer as the kernels see it.
template <class Storage>
struct Layer {
  const Storage* weight;
  int64_t weight_row_stride;
  int64_t weight_column_stride;
  const Storage* bias;
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
      : weight(static_cast<const Storage*>(l.weight)),
        weight_row_stride(l.weight_row_stride),
        weight_column_stride(l.weight_column_stride),
        bias(static_cast<const Storage*>(l.bias)),
        bias_stride(l.bias_stride),
        in_features(static_cast<int>(l.in_features)),
        out_features(static_cast<int>(l.out_features)),
        activation(l.activation),
        params{static_cast<Compute<Storage>>(l.params.first), static_cast<Compute<Storage>>(l.params.second)},
        keeps_output(l.keeps_output),
        kept(static_cast<Storage*>(l.kept)),
        wants_weight_grad(l.weight_grad),
        wants_bias_grad(l.bias_grad) {}

  __device__ Compute<Storage> weight_at(int row, int column) const {
    return widen(weight[row * weight_row_stride + column * weight_column_stride]);
  }
  // f(z)
  __device__ void activate(int rows, Compute<Storage>* tile) const {
    using N = Number<Compute<Storage>>;
    with_activation(activation, [&](auto f) {
      for_each_element(rows, out_features, [&](int r, int c) {
        auto& element = tile[r * tile_stride + c];
        element = decltype(f)::value(N(element), params).v;
      });
    });
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

// The product of a tile with a layer's weight, or with its transpose. `panel` is scratch memory.
template <bool transposed, class Storage, class S>
__device__ Products<S> multiply(const S* tile, const Layer<Storage>& layer, S* panel) {
  const int depth = transposed ? layer.in_features : layer.out_features;
  const int width = transposed ? layer.out_features : layer.in_features;
  Products<S> products;
  for (int begin = 0; begin < depth; begin += panel_depth<S>) {
    const int rest = depth - begin;
    const int rows = rest < panel_depth<S> ? rest : panel_depth<S>;
    if (transposed) {
      // Along the weight's rows, whose elements lie beside each other.
      for_each_element(width, rows, [&](int c, int k) { panel[k * tile_stride + c] = layer.weight_at(c, begin + k); });
    } else {
      for_each_element(rows, width, [&](int k, int c) { panel[k * tile_stride + c] = layer.weight_at(begin + k, c); });
    }
    __syncthreads();
    products.add(tile + begin, tile_stride, 1, panel, rows, width);
    __syncthreads();
  }
  return products;
}

template <class Storage>
__global__ void __launch_bounds__(tile_threads* tile_threads, 1)
    forward(Layers<Storage> layers, Operand<Storage> input, Storage* output) {
  using S = Compute<Storage>;
  S* tile = static_cast<S*>(shared_memory());
  S* panel = tile + tile_bytes<S> / sizeof(S);
  const int64_t first = int64_t{blockIdx.x} * tile_rows<S>;
  const int rows = layers.rows - first < tile_rows<S> ? static_cast<int>(layers.rows - first) : tile_rows<S>;

  for_each_element(rows, layers.of[0].in_features, [&](int r, int c) {
    tile[r * tile_stride + c] = widen(input.data[(first + r) * input.row_stride + c * input.column_stride]);
  });
  __syncthreads();
  for (int i = 0; i < layers.count; ++i) {
    const Layer<Storage>& layer = layers.of[i];
    const int width = layer.out_features;
    const Products<S> z = multiply</*transposed=*/true>(tile, layer, panel);
    z.for_each(rows, width, [&](int r, int c, S sum) {
      tile[r * tile_stride + c] = layer.bias ? sum + widen(layer.bias[c * layer.bias_stride]) : sum;
    });
    const auto write = [&](Storage* to) {
      for_each_element(rows, width,
                       [&](int r, int c) { to[(first + r) * width + c] = narrow<Storage>(tile[r * tile_stride + c]); });
    };
    if (layer.kept && !layer.keeps_output) write(layer.kept);
    layer.activate(rows, tile);
    if (layer.kept && layer.keeps_output) write(layer.kept);
    if (i + 1 == layers.count) write(output);
    __syncthreads();
  }
}

// One block's rows in the backward pass. `grad` is the tile of the gradients that come down the layers, `below` that of
// a layer's input.
template <class Storage>
struct BackwardTile {
  using S = Compute<Storage>;
  using N = Number<S>;

  S* grad;
  S* below;
  S* panel;
  S* sums;  // the block's
  bool first_sums;
  int64_t first;
  int rows;

  // grad = grad * f'
  __device__ void through_activation(const Layer<Storage>& layer) const {
    if (layer.activation == Activation::identity) return;
    with_activation(layer.activation, [&](auto f) {
      using A = decltype(f);
      for_each_element(rows, layer.out_features, [&](int r, int c) {
        S& element = grad[r * tile_stride + c];
        const N at = widen(layer.kept[(first + r) * layer.out_features + c]);
        if constexpr (A::has_gradient_from_output) {
          if (layer.keeps_output) {
            element = A::template gradient_from_output<N>(N(element), at, layer.params).v;
            return;
          }
        }
        element = A::template gradient<N>(N(element), at, layer.params).v;
      });
    });
  }

  // below = the layer's input
  __device__ void load_input(const Layers<Storage>& layers, int i, const Operand<Storage>& input) const {
    const int width = layers.of[i].in_features;
    if (i == 0) {
      for_each_element(rows, width, [&](int r, int c) {
        below[r * tile_stride + c] = widen(input.data[(first + r) * input.row_stride + c * input.column_stride]);
      });
    } else {
      const Layer<Storage>& source = layers.of[i - 1];
      for_each_element(rows, width,
                       [&](int r, int c) { below[r * tile_stride + c] = widen(source.kept[(first + r) * width + c]); });
      // By the thread that has brought the element.
      if (!source.keeps_output) source.activate(rows, below);
    }
  }

  __device__ void add_sum(int64_t place, S sum) const { sums[place] = first_sums ? sum : sums[place] + sum; }

  // The sums over the rows of grad * below, and of grad.
  __device__ void add_parameters(const Layer<Storage>& layer) const {
    if (layer.wants_bias_grad) {
      for (int c = threadIdx.y * tile_threads + threadIdx.x; c < layer.out_features; c += block_threads) {
        S sum = S(0);
        for (int r = 0; r < rows; ++r) sum += grad[r * tile_stride + c];
        add_sum(layer.bias_sums + c, sum);
      }
    }
    if (!layer.wants_weight_grad) return;
    for (int begin = 0; begin < layer.out_features; begin += tile_rows<S>) {
      Products<S> products;
      products.add(grad + begin, 1, tile_stride, below, rows, layer.in_features);
      products.for_each(layer.out_features - begin, layer.in_features, [&](int r, int c, S sum) {
        add_sum(layer.weight_sums + int64_t{begin + r} * layer.in_features + c, sum);
      });
    }
  }

  // grad = the gradient of the layer's input
  __device__ void through_weight(const Layer<Storage>& layer) const {
    const Products<S> products = multiply</*transposed=*/false>(grad, layer, panel);
    products.for_each(rows, layer.in_features, [&](int r, int c, S sum) { grad[r * tile_stride + c] = sum; });
  }
};

// Gradients of layers below `lowest` are not wanted.
template <class Storage>
__global__ void __launch_bounds__(tile_threads* tile_threads, 1)
    backward(Layers<Storage> layers, int lowest, Operand<Storage> grad_output, Operand<Storage> input,
             Storage* input_grad, Compute<Storage>* block_sums) {
  using S = Compute<Storage>;
  BackwardTile<Storage> tile;
  tile.grad = static_cast<S*>(shared_memory());
  tile.below = tile.grad + tile_bytes<S> / sizeof(S);
  tile.panel = tile.below + tile_bytes<S> / sizeof(S);
  tile.sums = block_sums + blockIdx.x * layers.sums;
  const int64_t step = int64_t{gridDim.x} * tile_rows<S>;
  for (tile.first = int64_t{blockIdx.x} * tile_rows<S>; tile.first < layers.rows; tile.first += step) {
    const int64_t rest = layers.rows - tile.first;
    tile.rows = rest < tile_rows<S> ? static_cast<int>(rest) : tile_rows<S>;
    tile.first_sums = tile.first < step;
    for_each_element(tile.rows, layers.of[layers.count - 1].out_features, [&](int r, int c) {
      const int64_t at = (tile.first + r) * grad_output.row_stride + c * grad_output.column_stride;
      tile.grad[r * tile_stride + c] = widen(grad_output.data[at]);
    });
    for (int i = layers.count - 1; i >= lowest; --i) {
      const Layer<Storage>& layer = layers.of[i];
      tile.through_activation(layer);
      if (layer.wants_weight_grad) tile.load_input(layers, i, input);
      __syncthreads();
      tile.add_parameters(layer);
      if (i > lowest || input_grad) {
        tile.through_weight(layer);
        __syncthreads();
      }
    }
    if (input_grad) {
      const int width = layers.of[0].in_features;
      for_each_element(tile.rows, width, [&](int r, int c) {
        input_grad[(tile.first + r) * width + c] = narrow<Storage>(tile.grad[r * tile_stride + c]);
      });
    }
    __syncthreads();
  }
}

// Where the sums of the blocks go: one place after another.
template <class Storage>
struct Targets {
  Storage* data[2 * most_small_layers];
  int64_t end[2 * most_small_layers];
  int count = 0;

  Targets(const SmallMlp& mlp) {
    int64_t at = 0;
    for (int i = 0; i < mlp.count; ++i) {
      const SmallLayer& layer = mlp.layers[i];
      if (layer.weight_grad) add(layer.weight_grad, at += layer.in_features * layer.out_features);
      if (layer.bias_grad) add(layer.bias_grad, at += layer.out_features);
    }
  }

 private:
  void add(void* target, int64_t at) {
    data[count] = static_cast<Storage*>(target);
    end[count++] = at;
  }
};

template <class Storage>
__global__ void __launch_bounds__(block_threads)
    add_blocks(const Compute<Storage>* block_sums, int64_t blocks, int64_t sums, Targets<Storage> targets) {
  const int64_t place = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (place >= sums) return;
  Compute<Storage> sum = block_sums[place];
  for (int64_t block = 1; block < blocks; ++block) sum += block_sums[block * sums + place];
  int64_t begin = 0;
  for (int i = 0; i < targets.count; ++i) {
    if (place < targets.end[i]) {
      targets.data[i][place - begin] = narrow<Storage>(sum);
      return;
    }
    begin = targets.end[i];
  }
}

int64_t backward_blocks(const SmallMlp& mlp) {
  constexpr int64_t most_blocks = 128;
  const int64_t rows = mlp.dtype == Dtype::float64 ? tile_rows<double> : tile_rows<float>;
  return std::min(divide_up(mlp.rows, rows), most_blocks);
}

// The lowest layer that a gradient is wanted of, or of whose input.
int lowest_layer(const SmallMlp& mlp, bool wants_input) {
  int lowest = 0;
  while (!wants_input && lowest < mlp.count && !mlp.layers[lowest].weight_grad && !mlp.layers[lowest].bias_grad) {
    ++lowest;
  }
  return lowest;
}

// f.template operator()<Storage>()
template <class F>
Error dispatch_storage(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::float32:
      return f.template operator()<float>();
    case Dtype::float64:
      return f.template operator()<double>();
    case Dtype::bfloat16:
      return f.template operator()<bfloat16>();
    case Dtype::float16:
      return f.template operator()<float16>();
  }
  return "unknown dtype";
}

}  // namespace

Error small_mlp_forward(const SmallMlp& mlp, Matrix input, void* output) {
  return dispatch_storage(mlp.dtype, [&]<class Storage>() {
    using S = Compute<Storage>;
    const dim3 grid(divide_up(mlp.rows, tile_rows<S>));
    return launch(forward<Storage>, grid, dim3(tile_threads, tile_threads), tile_bytes<S> + panel_bytes<S>, mlp.stream,
                  Layers<Storage>(mlp), Operand<Storage>(input), static_cast<Storage*>(output));
  });
}

int64_t small_mlp_sums(const SmallMlp& mlp) { return backward_blocks(mlp) * Layers<float>(mlp).sums; }

Error small_mlp_backward(const SmallMlp& mlp, Matrix grad_output, Matrix input, void* input_grad, void* block_sums) {
  return dispatch_storage(mlp.dtype, [&]<class Storage>() -> Error {
    using S = Compute<Storage>;
    const Layers<Storage> layers(mlp);
    const int64_t blocks = backward_blocks(mlp);
    if (Error error = launch(backward<Storage>, dim3(blocks), dim3(tile_threads, tile_threads),
                             2 * tile_bytes<S> + panel_bytes<S>, mlp.stream, layers, lowest_layer(mlp, input_grad),
                             Operand<Storage>(grad_output), Operand<Storage>(input), static_cast<Storage*>(input_grad),
                             static_cast<S*>(block_sums))) {
      return error;
    }
    if (layers.sums == 0) return nullptr;
    return launch(add_blocks<Storage>, dim3(divide_up(layers.sums, block_threads)), dim3(block_threads), 0, mlp.stream,
                  static_cast<const S*>(block_sums), blocks, layers.sums, Targets<Storage>(mlp));
  });
}

}  // namespace fastops::hip
