// Multi-layer perceptrons of up to 128 features, forward and backward, each in one kernel.
//
// A block takes some rows through all layers. What goes from layer to layer stays in shared memory; weights pass
// through it, each part asked for before the products with those before it. Between products a thread changes only
// elements that belong to it (tile.h).
#include "backends/hip/kernels/block_sums.h"
#include "backends/hip/kernels/matrix_tiles.h"

namespace fastops::hip {
namespace {

// Blocks that one of NVIDIA's multiprocessors has registers for. The networks are small: spilled registers would cost
// more than room for several is worth. (AMD's compiler reads waves of a SIMD, and there is no shared memory for three.)
template <class Storage>
inline constexpr int forward_room = sizeof(Storage) == 8 ? 1 : (is_hip ? 2 : 3);
template <class Storage>
inline constexpr int backward_room = sizeof(Storage) == 8   ? 1
                                     : sizeof(Storage) == 4 ? 2
                                                            : (is_hip ? 2 : 3);

// tile = f(tile)
template <class Storage, class Element>
__device__ void activate(const Layer<Storage>& layer, int rows, Element* tile) {
  using N = Number<Compute<Storage>>;
  with_activation(layer.activation, [&](auto f) {
    for_each_element(rows, layer.out_features, [&](int r, int c) {
      Element& element = tile[r * tile_stride<Element> + c];
      element = narrow<Element>(decltype(f)::value(N(widen(element)), layer.params).v);
    });
  });
}

template <class Storage>
__global__ void __launch_bounds__(block_threads, forward_room<Storage>)
    forward(Layers<Storage> layers, Operand<Storage> input, Storage* output) {
  with_tiles<Storage, /*transposed=*/true>([&](auto tiles) {
    using S = Compute<Storage>;
    S* const values = tiles.values;
    const int64_t first = int64_t{blockIdx.x} * tile_rows<Storage>;
    const int64_t rest = layers.rows - first;
    const int rows = rest < tile_rows<Storage> ? static_cast<int>(rest) : tile_rows<Storage>;

    tiles.ask(layers.of[0]);
    copy_elements<2, 4>(
        rows, layers.of[0].in_features, [&](int r, int c) { return input.at(first + r, c); },
        [&](int r, int c, Storage x) { values[r * tile_stride<S> + c] = widen(x); });
    for (int i = 0; i < layers.count; ++i) {
      const Layer<Storage>& layer = layers.of[i];
      const int width = layer.out_features;
      tiles.make_operand(rows, layer.in_features);
      tiles.multiply(layers, i, i + 1 < layers.count ? i + 1 : i, rows);
      const auto write = [&](Storage* to) {
        to += first * width;
        for_each_element(rows, width,
                         [=](int r, int c) { to[r * width + c] = narrow<Storage>(values[r * tile_stride<S> + c]); });
      };
      if (layer.kept && !layer.keeps_output) write(layer.kept);
      activate(layer, rows, values);
      if (layer.kept && layer.keeps_output) write(layer.kept);
      if (i + 1 == layers.count) write(output);
    }
  });
}

// grad = grad * f', the tile of a layer's gradients; it kept its row `first` for the tile's first row.
template <class Storage>
__device__ void through_activation(const Layer<Storage>& layer, int64_t first, int rows, Compute<Storage>* grad) {
  using S = Compute<Storage>;
  using N = Number<S>;
  if (layer.activation == Activation::identity) return;
  const int width = layer.out_features;
  const Storage* const from = layer.kept + first * width;
  with_activation(layer.activation, [&](auto f) {
    using A = decltype(f);
    copy_elements<2, 2>(
        rows, width, [=](int r, int c) { return from[r * width + c]; },
        [&](int r, int c, Storage kept) {
          S& element = grad[r * tile_stride<S> + c];
          const N at = widen(kept);
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

// One block's rows in the backward pass. The tiles' values are the gradients that come down the layers.
template <class Storage, class BlockTiles>
struct BackwardTile {
  using S = Compute<Storage>;

  BlockTiles& tiles;
  S* sums;  // the block's
  bool first_sums;
  int64_t first;
  int rows;

  // below = the layer's input
  __device__ void load_input(const Layers<Storage>& layers, int i, const Operand<Storage>& input) const {
    const int width = layers.of[i].in_features;
    if (i == 0) {
      tiles.set_below(rows, width, [&](int r, int c) { return input.at(first + r, c); });
    } else {
      const Layer<Storage>& source = layers.of[i - 1];
      const Storage* const from = source.kept + first * width;
      tiles.set_below(rows, width, [=](int r, int c) { return from[r * width + c]; });
      // By the thread that has brought the element.
      if (!source.keeps_output) activate(source, rows, tiles.below);
    }
  }

  __device__ void add_parameters(const Layer<Storage>& layer) const {
    // Not a question for each sum: a thread would wait for its answer as often.
    if (first_sums) {
      add_parameters(layer, [](S& to, S sum) { to = sum; });
    } else {
      add_parameters(layer, [](S& to, S sum) { to += sum; });
    }
  }

 private:
  // The sums over the rows of values * below, and of the values: add(place, sum).
  template <class Add>
  __device__ void add_parameters(const Layer<Storage>& layer, Add add) const {
    if (layer.wants_bias_grad) {
      for (int c = thread(); c < layer.out_features; c += block_threads) {
        S sum = S(0);
#pragma unroll 8
        for (int r = 0; r < rows; ++r) sum += tiles.values[r * tile_stride<S> + c];
        add(sums[layer.bias_sums + c], sum);
      }
    }
    if (!layer.wants_weight_grad) return;
    S* const to = sums + layer.weight_sums;
    const int width = layer.in_features;
    tiles.add_rows(rows, layer.out_features, width, [=](int r, int c, S sum) { add(to[r * width + c], sum); });
  }
};

// Gradients of layers below `lowest` are not wanted.
template <class Storage>
__global__ void __launch_bounds__(block_threads, backward_room<Storage>)
    backward(Layers<Storage> layers, int lowest, Operand<Storage> grad_output, Operand<Storage> input,
             Storage* input_grad, Compute<Storage>* block_sums) {
  with_tiles<Storage, /*transposed=*/false>([&](auto tiles) {
    using S = Compute<Storage>;
    BackwardTile<Storage, decltype(tiles)> tile{tiles, block_sums + blockIdx.x * layers.sums, true, 0, 0};
    const int64_t step = int64_t{gridDim.x} * tile_rows<Storage>;
    for (tile.first = int64_t{blockIdx.x} * tile_rows<Storage>; tile.first < layers.rows; tile.first += step) {
      const int64_t rest = layers.rows - tile.first;
      tile.rows = rest < tile_rows<Storage> ? static_cast<int>(rest) : tile_rows<Storage>;
      tile.first_sums = tile.first < step;
      tiles.ask(layers.of[layers.count - 1]);
      copy_elements<2, 4>(
          tile.rows, layers.of[layers.count - 1].out_features,
          [&](int r, int c) { return grad_output.at(tile.first + r, c); },
          [&](int r, int c, Storage grad) { tiles.values[r * tile_stride<S> + c] = widen(grad); });
      for (int i = layers.count - 1; i >= lowest; --i) {
        const Layer<Storage>& layer = layers.of[i];
        through_activation(layer, tile.first, tile.rows, tiles.values);
        tiles.make_operand(tile.rows, layer.out_features);
        if (layer.wants_weight_grad) tile.load_input(layers, i, input);
        sync_shared();
        tile.add_parameters(layer);
        if (i > lowest || input_grad) tiles.multiply(layers, i, i > lowest ? i - 1 : i, tile.rows);
      }
      if (input_grad) {
        const int width = layers.of[0].in_features;
        Storage* const to = input_grad + tile.first * width;
        for_each_element(tile.rows, width, [&](int r, int c) {
          to[r * width + c] = narrow<Storage>(tiles.values[r * tile_stride<S> + c]);
        });
      }
      sync_shared();
    }
  });
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
  sum_over_blocks(block_sums, blocks, sums, [&](int64_t place, auto sum) {
    int64_t begin = 0;
    for (int i = 0; i < targets.count; ++i) {
      if (place < targets.end[i]) {
        targets.data[i][place - begin] = narrow<Storage>(sum);
        return;
      }
      begin = targets.end[i];
    }
  });
}

// One for each tile, which writes its sums once and reads none. Of more tiles than that blocks have several each; but
// then the layers take less time than this kernel, by the count of small_mlp.cpp.
int64_t backward_blocks(const SmallMlp& mlp) {
  constexpr int64_t blocks_of_multiprocessor = 4;
  return std::min(divide_up(mlp.rows, small_tile_rows(mlp.dtype)), blocks_of_multiprocessor * mlp.multiprocessors);
}

// The lowest layer that a gradient is wanted of, or of whose input.
int lowest_layer(const SmallMlp& mlp, bool wants_input) {
  int lowest = 0;
  while (!wants_input && lowest < mlp.count && !mlp.layers[lowest].weight_grad && !mlp.layers[lowest].bias_grad) {
    ++lowest;
  }
  return lowest;
}

}  // namespace

int64_t multiprocessors(int device) { return std::max(multiprocessors_of(device), 1); }

bool is_captured(void* stream) { return is_captured_by_runtime(stream); }

int64_t most_shared_bytes(int device) {
  return std::max<int64_t>(most_shared_bytes_of(device), shared_bytes_everywhere);
}

Error small_mlp_forward(const SmallMlp& mlp, Matrix input, void* output) {
  return with_storage(mlp.dtype, [&]<class Storage>() {
    const dim3 grid(divide_up(mlp.rows, tile_rows<Storage>));
    return launch(forward<Storage>, grid, dim3(tile_threads, tile_threads),
                  shared_bytes<Storage>(Tiles<Storage, true>::forward_bytes), mlp.stream, Layers<Storage>(mlp),
                  Operand<Storage>(input), static_cast<Storage*>(output));
  });
}

int64_t small_mlp_sums(const SmallMlp& mlp) { return backward_blocks(mlp) * Layers<float>(mlp).sums; }

Error small_mlp_backward(const SmallMlp& mlp, Matrix grad_output, Matrix input, void* input_grad, void* block_sums) {
  return with_storage(mlp.dtype, [&]<class Storage>() -> Error {
    using S = Compute<Storage>;
    const Layers<Storage> layers(mlp);
    const int64_t blocks = backward_blocks(mlp);
    if (Error error = launch(backward<Storage>, dim3(blocks), dim3(tile_threads, tile_threads),
                             shared_bytes<Storage>(Tiles<Storage, false>::backward_bytes), mlp.stream, layers,
                             lowest_layer(mlp, input_grad), Operand<Storage>(grad_output), Operand<Storage>(input),
                             static_cast<Storage*>(input_grad), static_cast<S*>(block_sums))) {
      return error;
    }
    if (layers.sums == 0) return nullptr;
    return launch_sum_over_blocks<S>(add_blocks<Storage>, static_cast<const S*>(block_sums), blocks, layers.sums,
                                     mlp.stream, Targets<Storage>(mlp));
  });
}

}  // namespace fastops::hip
