// Products of matrices with few rows or few features. What comes after a product is in its kernel: the bias and the
// activation forward, the derivative for the gradients of a layer's input, and for those of a weight the sums that are
// the gradients of the bias.
//
// A block has a tile of the result. Each of its waves has the sums of products for the whole tile, over some slices of
// the depth, which pass through a part of shared memory that is the wave's: waves meet only once, to add up what they
// have. So there are as many loads on their way as there are waves, and no wave waits for another.
#include "backends/hip/kernels/product_sums.h"
#include "backends/hip/product_time.h"

namespace fastops::hip {
namespace {

// What the result is. `known` is asked for ahead.
template <class Storage_>
struct Forward {
  using Storage = Storage_;
  static constexpr auto kind = ProductKind::forward;
  Activation activation;
  Params<float> params;
  const Storage* bias;
  int64_t bias_stride;
  Storage* z;
  Storage* y;

  __device__ Storage known(int, int column) const { return bias ? bias[column * bias_stride] : narrow<Storage>(-0.0f); }

  template <class A>
  __device__ void store(int row, int column, int columns, float sum, float known) const {
    const float z_here = sum + known;
    const int64_t place = int64_t{row} * columns + column;
    if (z) z[place] = narrow<Storage>(z_here);
    y[place] = narrow<Storage>(A::value(NumberOf<Storage>(z_here), params).v);
  }
};

template <class Storage_>
struct Backward {
  using Storage = Storage_;
  static constexpr auto kind = ProductKind::backward;
  Activation activation;
  Params<float> params;
  bool from_output;
  Operand<Storage> saved;
  Storage* dz;
  Storage* value;

  __device__ Storage known(int row, int column) const { return saved.data ? saved.at(row, column) : Storage{}; }

  template <class A>
  __device__ void store(int row, int column, int columns, float sum, float known) const {
    using N = NumberOf<Storage>;
    const int64_t place = int64_t{row} * columns + column;
    const N at(known);
    if (value) value[place] = narrow<Storage>(A::value(at, params).v);
    if constexpr (A::has_gradient_from_output) {
      if (from_output) {
        dz[place] = narrow<Storage>(A::template gradient_from_output<N>(N(sum), at, params).v);
        return;
      }
    }
    dz[place] = narrow<Storage>(A::template gradient<N>(N(sum), at, params).v);
  }
};

template <class Storage_>
struct Weights {
  using Storage = Storage_;
  static constexpr auto kind = ProductKind::weights;
  static constexpr Activation activation = Activation::identity;
  Storage* result;
  Storage* sums;

  __device__ Storage known(int, int) const { return {}; }

  template <class A>
  __device__ void store(int row, int column, int columns, float sum, float) const {
    result[int64_t{row} * columns + column] = narrow<Storage>(sum);
  }
};

// Blocks that a multiprocessor is to have registers for. Of single ones of float32, two would spill some on NVIDIA's.
template <class Storage, int packet>
inline constexpr int room = sizeof(Storage) == 4 && packet == 1 && !is_hip ? 1 : 2;

// What a block of waves with this multiplier has in shared memory: their slices, and where those were, their sums.
template <class Multiplier, class Shape, bool left_along, bool right_along, int packet, class Storage>
struct Block {
  using Element = typename Multiplier::template Element<Storage>;
  static constexpr int depth = Multiplier::depth(Shape::depth, packet);
  using Left = SliceLayout<Element, Shape::height, depth, left_along>;
  using Right = SliceLayout<Element, Shape::width, depth, right_along>;
  using Sums = typename Multiplier::template Sums<Shape, Left, Right, Storage>;

  static constexpr int waves = block_threads / Multiplier::lanes;
  static constexpr int left_sums = waves * Shape::sums;
  static constexpr int floats() {
    return std::max(waves * (Left::floats + Right::floats), left_sums + waves * Shape::height);
  }
};

template <class Shape, bool left_along, bool right_along, int packet, class Result>
__global__ void __launch_bounds__(block_threads, (room<typename Result::Storage, packet>))
    multiply(Factor<typename Result::Storage> left, Factor<typename Result::Storage> right, int depth, Result result) {
  using Storage = typename Result::Storage;
  constexpr bool sums_left = Result::kind == ProductKind::weights;
  float* const shared = static_cast<float*>(shared_memory());
  const int first_row = blockIdx.y * Shape::height;
  const int first_column = blockIdx.x * Shape::width;

  // What a thread stores in the end.
  constexpr int elements = Shape::height * Shape::width;
  constexpr int results = elements / block_threads;
  const auto for_each_result = [&](auto f) {
#pragma unroll
    for (int j = 0; j < results; ++j) {
      const int place = static_cast<int>(threadIdx.x) + j * block_threads;
      const int row = place / Shape::width, column = place % Shape::width;
      if (first_row + row < left.size && first_column + column < right.size) f(j, row, column);
    }
  };
  float left_sum = 0.0f;

  with_multiplier<Storage>([&](auto multiplier) {
    using Multiplier = decltype(multiplier);
    using B = Block<Multiplier, Shape, left_along, right_along, packet, Storage>;
    using Left = typename B::Left;
    using Right = typename B::Right;
    const int wave = Multiplier::wave();
    float* const left_slice = shared + wave * (Left::floats + Right::floats);
    float* const right_slice = left_slice + Left::floats;

    Slice<Storage, Left, Multiplier, packet> next_left;
    Slice<Storage, Right, Multiplier, packet> next_right;
    const auto ask = [&](int begin) {
      next_left.ask(left, first_row, begin, depth);
      next_right.ask(right, first_column, begin, depth);
    };
    constexpr int step = B::waves * B::depth;
    const int first = wave * B::depth;
    const int ahead = Multiplier::counts_alike ? first : 0;  // of the count
    int begin = first - ahead;
    if (begin < depth) ask(first);
    Piece<Storage, 1> known[results] = {};
    for_each_result(
        [&](int j, int row, int column) { known[j].set(0, result.known(first_row + row, first_column + column)); });

    typename B::Sums sums;
#pragma unroll 1
    for (; begin < depth; begin += step) {
      next_left.bring(left_slice);
      next_right.bring(right_slice);
      sync_lanes<Multiplier::lanes>();
      if (begin + step < depth) ask(begin + step + ahead);
      sums.template add<sums_left>(left_slice, right_slice);
      sync_lanes<Multiplier::lanes>();
    }

    // The waves' sums are added up in their order.
    __syncthreads();
    sums.for_each(
        [&](int row, int column, float sum) { shared[wave * Shape::sums + row * Shape::sums_stride + column] = sum; });
    float* const left_sums = shared + B::left_sums;
    if constexpr (sums_left) {
      sums.for_each_of_left([&](int row, float sum) { left_sums[wave * Shape::height + row] = sum; });
    }
    __syncthreads();
    // A thread's sums and what is known of them take the place of parts of theirs, so that what follows is compiled
    // once, not for each of them.
    for_each_result([&](int j, int row, int column) {
      float sum = 0.0f;
      float* const at = shared + row * Shape::sums_stride + column;
#pragma unroll
      for (int p = 0; p < B::waves; ++p) sum += at[p * Shape::sums];
      at[0] = sum;
      at[Shape::sums] = widen(opaque(known[j]).get(0));
    });
    if constexpr (sums_left) {
      if (threadIdx.x < Shape::height) {
#pragma unroll
        for (int p = 0; p < B::waves; ++p) left_sum += left_sums[p * Shape::height + threadIdx.x];
      }
    }
  });

  with_activation(result.activation, [&](auto f) {
#pragma unroll 1
    for (int place = threadIdx.x; place < elements; place += block_threads) {
      const int row = place / Shape::width, column = place % Shape::width;
      if (first_row + row >= left.size || first_column + column >= right.size) continue;
      const float* const at = shared + row * Shape::sums_stride + column;
      result.template store<decltype(f)>(first_row + row, first_column + column, right.size, at[0], at[Shape::sums]);
    }
  });
  if constexpr (sums_left) {
    const int row = threadIdx.x;
    if (result.sums && blockIdx.x == 0 && row < Shape::height && first_row + row < left.size) {
      result.sums[first_row + row] = narrow<Storage>(left_sum);
    }
  }
}

// What a block is launched with, whichever multiplier the GPU has: on matrix cores, as many bytes for waves of 32 and
// of 64.
struct AnyCores {
  static constexpr int wave = 32;
};
template <class Shape, bool left_along, bool right_along, int packet, class Storage>
constexpr size_t shared_bytes() {
  const auto bytes = []<class Multiplier>(Multiplier) {
    return sizeof(float) * Block<Multiplier, Shape, left_along, right_along, packet, Storage>::floats();
  };
  const size_t of_adds = bytes(MultiplyAdds());
  return sizeof(Storage) == 2 ? std::max(of_adds, bytes(MatrixProducts<AnyCores>())) : of_adds;
}

template <class Shape, bool left_along, bool right_along, int packet, class Result, class Factor>
Error run(const Product& product, Factor left, Factor right, Result result) {
  const dim3 grid(divide_up(product.columns, Shape::width), divide_up(product.rows, Shape::height));
  return launch(multiply<Shape, left_along, right_along, packet, Result>, grid, dim3(block_threads),
                shared_bytes<Shape, left_along, right_along, packet, typename Result::Storage>(), product.stream, left,
                right, static_cast<int>(product.depth), result);
}

template <bool left_along, bool right_along, int packet, class Result, class Factor>
Error choose_tile(const Product& product, Factor left, Factor right, Result result) {
  const auto run_tile = [&]<int i, int depth>() {
    using Tile = Shape<product_tiles[i].height, product_tiles[i].width, depth>;
    return run<Tile, left_along, right_along, packet>(product, left, right, result);
  };
  switch (best_tile(product, Result::kind)) {
    case 0:
      return run_tile.template operator()<0, 32>();
    case 1:
      return run_tile.template operator()<1, 32>();
    default:
      return run_tile.template operator()<2, 16>();
  }
}

template <class Storage>
Factor<Storage> factor_of(Matrix m, bool along_depth, int64_t size) {
  return {static_cast<const Storage*>(m.data), along_depth ? m.row_stride : m.column_stride, static_cast<int>(size)};
}

// Whether lines of this length are whole packets of 16 bytes.
template <class Storage>
bool in_packets(const Factor<Storage>& factor, int64_t length) {
  constexpr int packet = packet_width<Storage>;
  return reinterpret_cast<uintptr_t>(factor.data) % 16 == 0 && factor.stride % packet == 0 && length % packet == 0;
}

template <bool left_along, bool right_along, class Result>
Error multiply(const Product& product, Result result) {
  using Storage = typename Result::Storage;
  const auto left = factor_of<Storage>(product.left, left_along, product.rows);
  const auto right = factor_of<Storage>(product.right, right_along, product.columns);
  const bool packets = in_packets(left, left_along ? product.depth : product.rows) &&
                       in_packets(right, right_along ? product.depth : product.columns);
  return packets ? choose_tile<left_along, right_along, packet_width<Storage>>(product, left, right, result)
                 : choose_tile<left_along, right_along, 1>(product, left, right, result);
}

}  // namespace

Error product_forward(const Product& product, Activation activation, Params<double> params, const void* bias,
                      int64_t bias_stride, void* z, void* y) {
  return with_storage</*has_float64=*/false>(product.dtype, [&]<class Storage>() {
    const Forward<Storage> result{activation,  compute_params<float>(params), static_cast<const Storage*>(bias),
                                  bias_stride, static_cast<Storage*>(z),      static_cast<Storage*>(y)};
    return multiply</*left_along=*/true, /*right_along=*/true>(product, result);
  });
}

Error product_backward(const Product& product, Activation activation, Params<double> params, bool from_output,
                       Matrix saved, void* dz, void* value) {
  return with_storage</*has_float64=*/false>(product.dtype, [&]<class Storage>() {
    const Backward<Storage> result{activation, compute_params<float>(params), from_output,
                                   saved,      static_cast<Storage*>(dz),     static_cast<Storage*>(value)};
    return multiply</*left_along=*/true, /*right_along=*/false>(product, result);
  });
}

Error product_weights(const Product& product, void* result, void* sums) {
  return with_storage</*has_float64=*/false>(product.dtype, [&]<class Storage>() {
    return multiply</*left_along=*/false, /*right_along=*/false>(
        product, Weights<Storage>{static_cast<Storage*>(result), static_cast<Storage*>(sums)});
  });
}

}  // namespace fastops::hip
