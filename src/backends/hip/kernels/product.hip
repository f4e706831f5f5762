// Products of matrices with few rows or few features. What comes after a product is in its kernel: the bias and the
// activation forward, the derivative for the gradients of a layer's input, and for those of a weight the sums that are
// the gradients of the bias.
//
// A block has a tile of the result. Each of its waves has the sums of products for the whole tile, over some slices of
// the depth, which pass through a part of shared memory that is the wave's: waves meet only once, to add up what they
// have. So there are as many loads on their way as there are waves, and no wave waits for another.
//
// Numbers of 16 bits are float32 in shared memory: with few rows it is the way from memory that takes the time, which
// matrix cores do not shorten.
#include "backends/hip/kernels/transform.h"
#include "backends/hip/product_time.h"

namespace fastops::hip {
namespace {

inline constexpr int lanes = 32;
inline constexpr int waves = block_threads / lanes;  // of 32 lanes on every GPU: two of them may be one to AMD's

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % lanes; }
__device__ inline int wave() {
  const int thread = static_cast<int>(threadIdx.x);
#if defined(__GFX9__)
  return 2 * wave_uniform(thread / (2 * lanes)) + thread / lanes % 2;
#else
  return wave_uniform(thread / lanes);
#endif
}

// A tile, and how deep a slice is.
template <int height_, int width_, int depth_>
struct Shape {
  static constexpr int height = height_;
  static constexpr int width = width_;
  static constexpr int depth = depth_;

  // Of a wave in shared memory, in rows of this distance.
  static constexpr int sums_stride = width + 4;
  static constexpr int sums = height * sums_stride;
};

// What is multiplied: `size` rows for the tile's rows or columns. Numbers lie beside each other along the depth or
// along the rows, at this distance in the other direction.
template <class Storage>
struct Factor {
  const Storage* data;
  int64_t stride;
  int size;
};

// A wave's slice of a factor on its way, `size` rows of `depth` numbers: each lane has some packets in registers. In
// shared memory as in global memory they lie in lines, along the depth or along the rows.
template <class Storage, int size, int depth, bool along_depth, int packet>
struct Slice {
  // Of 16 bits, two at a time: clang cuts packets of single ones.
  using Bytes = std::conditional_t<sizeof(Storage) == 2 && packet % 2 == 0, Packet<uint32_t, packet / 2>,
                                   Packet<Storage, packet>>;
  static constexpr int length = along_depth ? depth : size;
  static constexpr int lines = along_depth ? size : depth;
  static constexpr int stride = length + 4;
  static constexpr int floats = lines * stride;
  static constexpr int packets = length / packet;  // of a line
  static constexpr int count = lines * packets / lanes;
  static_assert(lanes % packets == 0, "");

  Piece<Storage, packet> number[count];

  __device__ static int line() { return lane() / packets; }
  __device__ static int at() { return lane() % packets * packet; }
  __device__ static constexpr int line_after(int s) { return s * (lanes / packets); }

  // Asks for the numbers of the rows from `first` and of the depth from `begin` on. Beyond the edges there are zeros.
  __device__ void ask(const Factor<Storage>& from, int first, int begin, int end) {
    const int line_begin = (along_depth ? first : begin) + line(), at_begin = (along_depth ? begin : first) + at();
    const int rest = (along_depth ? from.size : end) - line_begin;
    const bool within = at_begin < (along_depth ? end : from.size);
    const Storage* data = from.data + line_begin * from.stride + at_begin;
#pragma unroll
    for (int s = 0; s < count; ++s) {
      number[s] = {};
      if (within && line_after(s) < rest) {
        number[s] = bit_cast<Piece<Storage, packet>>(*reinterpret_cast<const Bytes*>(data));
      }
      data += line_after(1) * from.stride;
    }
  }

  __device__ void bring(float* to) const {
    constexpr int width = packet < 4 ? packet : 4;
    to += line() * stride + at();
#pragma unroll
    for (int s = 0; s < count; ++s) {
      const Piece<Storage, packet> piece = opaque(number[s]);
#pragma unroll
      for (int begin = 0; begin < packet; begin += width) {
        Packet<float, width> numbers;
#pragma unroll
        for (int e = 0; e < width; ++e) numbers.element[e] = widen(piece.get(begin + e));
        *reinterpret_cast<Packet<float, width>*>(to + line_after(s) * stride + begin) = numbers;
      }
    }
  }
};

// What a lane multiplies of a slice: `rows` of its rows, of which `others` lanes have the others, for four of the
// depth. Rows lie in packets beside each other, or where the slice's lines are along the depth, `others` apart.
template <int size, int others, bool along_depth>
struct Fragment {
  using Bytes16 = Packet<float, 4>;
  static constexpr int rows = size / others;
  static constexpr int packet = rows < 4 ? rows : 4;

  float number[rows][4];

  __device__ static int row(int place, int i) {
    return along_depth ? i * others + place : (i / packet * others + place) * packet + i % packet;
  }

  __device__ void load(const float* slice, int stride, int k, int place) {
    if constexpr (along_depth) {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const auto from = *reinterpret_cast<const Bytes16*>(slice + row(place, i) * stride + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) number[i][e] = from.element[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < rows; i += packet) {
          const auto from = *reinterpret_cast<const Packet<float, packet>*>(slice + (k + e) * stride + row(place, i));
#pragma unroll
          for (int j = 0; j < packet; ++j) number[i + j][e] = from.element[j];
        }
      }
    }
  }
};

// The sums of a wave's products for a tile: 8 x 4 lanes have some rows and columns each.
template <class Shape, bool left_along, bool right_along>
struct Sums {
  using Left = Fragment<Shape::height, 8, left_along>;
  using Right = Fragment<Shape::width, 4, right_along>;

  float sum[Left::rows][Right::rows] = {};
  float of_left[Left::rows] = {};

  __device__ static int row(int i) { return Left::row(lane() / 4, i); }
  __device__ static int column(int j) { return Right::row(lane() % 4, j); }

  template <bool sums_left>
  __device__ void add(const float* left, int left_stride, const float* right, int right_stride) {
#pragma unroll
    for (int k = 0; k < Shape::depth; k += 4) {
      Left l;
      Right r;
      l.load(left, left_stride, k, lane() / 4);
      r.load(right, right_stride, k, lane() % 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < Left::rows; ++i) {
          if constexpr (sums_left) of_left[i] += l.number[i][e];
#pragma unroll
          for (int j = 0; j < Right::rows; ++j) sum[i][j] = library::fma(l.number[i][e], r.number[j][e], sum[i][j]);
        }
      }
    }
  }

  // f(place in the sums of a part, sum)
  template <class F>
  __device__ void for_each(F f) {
#pragma unroll
    for (int i = 0; i < Left::rows; ++i) {
#pragma unroll
      for (int j = 0; j < Right::rows; ++j) f(row(i) * Shape::sums_stride + column(j), sum[i][j]);
    }
  }
};

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

// Of a block: the waves' slices, and where those were, their sums.
template <class Shape, bool left_along, bool right_along>
inline constexpr int shared_floats =
    std::max(waves * (Slice<float, Shape::height, Shape::depth, left_along, 4>::floats +
                      Slice<float, Shape::width, Shape::depth, right_along, 4>::floats),
             waves*(Shape::sums + Shape::height));

// Blocks that a multiprocessor is to have registers for. Of single numbers, two would spill some on NVIDIA's.
template <int packet>
inline constexpr int room = packet == 1 && !is_hip ? 1 : 2;

template <class Shape, bool left_along, bool right_along, int packet, class Result>
__global__ void __launch_bounds__(block_threads, room<packet>)
    multiply(Factor<typename Result::Storage> left, Factor<typename Result::Storage> right, int depth, Result result) {
  using Storage = typename Result::Storage;
  using Left = Slice<Storage, Shape::height, Shape::depth, left_along, packet>;
  using Right = Slice<Storage, Shape::width, Shape::depth, right_along, packet>;
  using S = Sums<Shape, left_along, right_along>;
  constexpr bool sums_left = Result::kind == ProductKind::weights;
  float* const shared = static_cast<float*>(shared_memory());
  float* const left_slice = shared + wave() * (Left::floats + Right::floats);
  float* const right_slice = left_slice + Left::floats;
  const int first_row = blockIdx.y * Shape::height;
  const int first_column = blockIdx.x * Shape::width;

  Left next_left;
  Right next_right;
  const auto ask = [&](int begin) {
    next_left.ask(left, first_row, begin, depth);
    next_right.ask(right, first_column, begin, depth);
  };
  // Where two waves may be one to the GPU, they count alike, and slices beyond the depth are zeros.
  constexpr int step = waves * Shape::depth;
  const int first = wave() * Shape::depth;
  const int ahead = is_hip ? first : 0;  // of the count
  int begin = first - ahead;
  if (begin < depth) ask(first);

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
  Piece<Storage, 1> known[results] = {};
  for_each_result(
      [&](int j, int row, int column) { known[j].set(0, result.known(first_row + row, first_column + column)); });

  S sums;
#pragma unroll 1
  for (; begin < depth; begin += step) {
    next_left.bring(left_slice);
    next_right.bring(right_slice);
    sync_lanes();
    if (begin + step < depth) ask(begin + step + ahead);
    sums.template add<sums_left>(left_slice, Left::stride, right_slice, Right::stride);
    sync_lanes();
  }

  // The waves' sums are added up in their order.
  float* const left_sums = shared + waves * Shape::sums;
  __syncthreads();
  sums.for_each([&](int place, float sum) { shared[wave() * Shape::sums + place] = sum; });
  if constexpr (sums_left) {
    if (lane() % 4 == 0) {
#pragma unroll
      for (int i = 0; i < S::Left::rows; ++i) left_sums[wave() * Shape::height + S::row(i)] = sums.of_left[i];
    }
  }
  __syncthreads();
  // A thread's sums and what is known of them take the place of parts of theirs, so that what follows is compiled once,
  // not for each of them.
  for_each_result([&](int j, int row, int column) {
    float sum = 0.0f;
    float* const at = shared + row * Shape::sums_stride + column;
#pragma unroll
    for (int p = 0; p < waves; ++p) sum += at[p * Shape::sums];
    at[0] = sum;
    at[Shape::sums] = widen(opaque(known[j]).get(0));
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
      float sum = 0.0f;
#pragma unroll
      for (int p = 0; p < waves; ++p) sum += left_sums[p * Shape::height + row];
      result.sums[first_row + row] = narrow<Storage>(sum);
    }
  }
}

template <class Shape, bool left_along, bool right_along, int packet, class Result, class Factor>
Error run(const Product& product, Factor left, Factor right, Result result) {
  const dim3 grid(divide_up(product.columns, Shape::width), divide_up(product.rows, Shape::height));
  return launch(multiply<Shape, left_along, right_along, packet, Result>, grid, dim3(block_threads),
                sizeof(float) * shared_floats<Shape, left_along, right_along>, product.stream, left, right,
                static_cast<int>(product.depth), result);
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

// f.template operator()<Storage>()
template <class F>
Error with_storage(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::float32:
      return f.template operator()<float>();
    case Dtype::bfloat16:
      return f.template operator()<bfloat16>();
    case Dtype::float16:
      return f.template operator()<float16>();
    default:
      return "products of this dtype are the library's";
  }
}

}  // namespace

Error product_forward(const Product& product, Activation activation, Params<double> params, const void* bias,
                      int64_t bias_stride, void* z, void* y) {
  return with_storage(product.dtype, [&]<class Storage>() {
    const Forward<Storage> result{activation,  compute_params<float>(params), static_cast<const Storage*>(bias),
                                  bias_stride, static_cast<Storage*>(z),      static_cast<Storage*>(y)};
    return multiply</*left_along=*/true, /*right_along=*/true>(product, result);
  });
}

Error product_backward(const Product& product, Activation activation, Params<double> params, bool from_output,
                       Matrix saved, void* dz, void* value) {
  return with_storage(product.dtype, [&]<class Storage>() {
    const Backward<Storage> result{activation, compute_params<float>(params), from_output,
                                   saved,      static_cast<Storage*>(dz),     static_cast<Storage*>(value)};
    return multiply</*left_along=*/true, /*right_along=*/false>(product, result);
  });
}

Error product_weights(const Product& product, void* result, void* sums) {
  return with_storage(product.dtype, [&]<class Storage>() {
    return multiply</*left_along=*/false, /*right_along=*/false>(
        product, Weights<Storage>{static_cast<Storage*>(result), static_cast<Storage*>(sums)});
  });
}

}  // namespace fastops::hip
