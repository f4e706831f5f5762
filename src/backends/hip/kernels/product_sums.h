// The sums of products that a wave of a block has for a tile of a product of matrices (product.hip): slices of the two
// factors on their way from global memory, and who multiplies them, by multiply-adds of float32 or on matrix cores.
#pragma once

#include "backends/hip/kernels/matrix.h"
#include "backends/hip/kernels/transform.h"

namespace fastops::hip {

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

// A wave's slice of a factor, `size` rows of `depth` numbers. In shared memory as in global memory they lie in lines,
// along the depth or along the rows; 16 bytes more than a line has keep lanes that read from several out of each
// other's banks.
template <class Element_, int size, int depth_, bool along_depth_>
struct SliceLayout {
  using Element = Element_;
  static constexpr int depth = depth_;
  static constexpr bool along_depth = along_depth_;
  static constexpr int length = along_depth ? depth : size;
  static constexpr int lines = along_depth ? size : depth;
  static constexpr int stride = length + 16 / sizeof(Element);
  static constexpr int floats = lines * stride * sizeof(Element) / sizeof(float);
};

// The same on its way: each lane has some packets in registers.
template <class Storage, class Layout, class Multiplier, int packet>
struct Slice {
  using Element = typename Layout::Element;
  static constexpr int lanes = Multiplier::lanes;
  static constexpr int packets = Layout::length / packet;  // of a line
  static constexpr int count = Layout::lines * packets / lanes;
  static_assert(lanes % packets == 0 && Layout::lines * packets % lanes == 0, "");

  Piece<Storage, packet> number[count];

  __device__ static int line() { return Multiplier::lane() / packets; }
  __device__ static int at() { return Multiplier::lane() % packets * packet; }
  __device__ static constexpr int line_after(int s) { return s * (lanes / packets); }

  // Asks for the numbers of the rows from `first` and of the depth from `begin` on. Beyond the edges there are zeros.
  __device__ void ask(const Factor<Storage>& from, int first, int begin, int end) {
    const int line_begin = (Layout::along_depth ? first : begin) + line();
    const int at_begin = (Layout::along_depth ? begin : first) + at();
    const int rest = (Layout::along_depth ? from.size : end) - line_begin;
    const bool within = at_begin < (Layout::along_depth ? end : from.size);
    const Storage* data = from.data + line_begin * from.stride + at_begin;
#pragma unroll
    for (int s = 0; s < count; ++s) {
      number[s] = {};
      if (within && line_after(s) < rest) {
        number[s] = bit_cast<Piece<Storage, packet>>(*reinterpret_cast<const PieceBytes<Storage, packet>*>(data));
      }
      data += line_after(1) * from.stride;
    }
  }

  __device__ void bring(float* memory) const {
    Element* const to = reinterpret_cast<Element*>(memory) + line() * Layout::stride + at();
#pragma unroll
    for (int s = 0; s < count; ++s) store(opaque(number[s]), to + line_after(s) * Layout::stride);
  }

 private:
  __device__ static void store(const Piece<Storage, packet>& piece, Element* to) {
    if constexpr (sizeof(Element) == sizeof(Storage)) {
      *reinterpret_cast<PieceBytes<Storage, packet>*>(to) = bit_cast<PieceBytes<Storage, packet>>(piece);
    } else {
      constexpr int width = packet < 4 ? packet : 4;
#pragma unroll
      for (int begin = 0; begin < packet; begin += width) {
        Packet<Element, width> numbers;
#pragma unroll
        for (int e = 0; e < width; ++e) numbers.element[e] = widen(piece.get(begin + e));
        *reinterpret_cast<Packet<Element, width>*>(to + begin) = numbers;
      }
    }
  }
};

// ---- by multiply-adds ----

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

// 32 lanes have the sums of a tile, 8 x 4 of them some rows and columns each. Numbers of 16 bits are float32 in shared
// memory.
struct MultiplyAdds {
  template <class Storage>
  using Element = float;
  static constexpr int lanes = 32;  // on every GPU: two waves of them may be one to AMD's

  // Where two waves may be one to the GPU, they count alike, and slices beyond the depth are zeros.
  static constexpr bool counts_alike = is_hip;

  static constexpr int depth(int of_shape, int) { return of_shape; }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ static int wave() {
    const int thread = static_cast<int>(threadIdx.x);
#if defined(__GFX9__)
    return 2 * wave_uniform(thread / (2 * lanes)) + thread / lanes % 2;
#else
    return wave_uniform(thread / lanes);
#endif
  }

  template <class Shape, class LeftLayout, class RightLayout, class Storage>
  struct Sums {
    using Left = Fragment<Shape::height, 8, LeftLayout::along_depth>;
    using Right = Fragment<Shape::width, 4, RightLayout::along_depth>;

    float sum[Left::rows][Right::rows] = {};
    float of_left[Left::rows] = {};

    __device__ static int row(int i) { return Left::row(lane() / 4, i); }
    __device__ static int column(int j) { return Right::row(lane() % 4, j); }

    template <bool sums_left>
    __device__ void add(const float* left, const float* right) {
#pragma unroll
      for (int k = 0; k < LeftLayout::depth; k += 4) {
        Left l;
        Right r;
        l.load(left, LeftLayout::stride, k, lane() / 4);
        r.load(right, RightLayout::stride, k, lane() % 4);
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

    // f(row, column, sum)
    template <class F>
    __device__ void for_each(F f) const {
#pragma unroll
      for (int i = 0; i < Left::rows; ++i) {
#pragma unroll
        for (int j = 0; j < Right::rows; ++j) f(row(i), column(j), sum[i][j]);
      }
    }

    // f(row, sum) of the left factor's rows
    template <class F>
    __device__ void for_each_of_left(F f) const {
      if (lane() % 4 != 0) return;
#pragma unroll
      for (int i = 0; i < Left::rows; ++i) f(row(i), of_left[i]);
    }
  };
};

// ---- on matrix cores ----

// A wave of the GPU has the sums of a tile, as sums of 16 x 16. Slices of packets are twice as deep, and those of waves
// of 64 once more, so that as many bytes are on their way as of float32.
template <class Cores>
struct MatrixProducts {
  template <class Storage>
  using Element = Storage;
  static constexpr int lanes = Cores::wave;

  static constexpr bool counts_alike = false;

  static constexpr int depth(int of_shape, int packet) { return of_shape * (packet == 1 ? 1 : 2) * lanes / 32; }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % lanes; }
  __device__ static int wave() { return wave_uniform(static_cast<int>(threadIdx.x) / lanes); }

  template <class Shape, class LeftLayout, class RightLayout, class Storage>
  struct Sums {
    static constexpr int rows = Shape::height / matrix_size;
    static constexpr int columns = Shape::width / matrix_size;

    MatrixSums<Cores> sum[rows][columns];
    MatrixSums<Cores> of_left[rows];  // in each of 16 columns

    template <bool sums_left>
    __device__ void add(const float* left_slice, const float* right_slice) {
      const Storage* const left = reinterpret_cast<const Storage*>(left_slice);
      const Storage* const right = reinterpret_cast<const Storage*>(right_slice);
      const auto ones = Part<Cores, Storage>::all(narrow<Storage>(1.0f));
#pragma unroll
      for (int k = 0; k < LeftLayout::depth; k += matrix_size) {
        Part<Cores, Storage> r[columns];
#pragma unroll
        for (int j = 0; j < columns; ++j) r[j] = load<RightLayout>(right, j, k);
#pragma unroll
        for (int i = 0; i < rows; ++i) {
          const auto l = load<LeftLayout>(left, i, k);
          if constexpr (sums_left) of_left[i].add(l, ones);
#pragma unroll
          for (int j = 0; j < columns; ++j) sum[i][j].add(l, r[j]);
        }
      }
    }

    template <class F>
    __device__ void for_each(F f) const {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
#pragma unroll
        for (int j = 0; j < columns; ++j) sum[i][j].for_each(i * matrix_size, j * matrix_size, lane(), f);
      }
    }

    template <class F>
    __device__ void for_each_of_left(F f) const {
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        of_left[i].for_each(i * matrix_size, 0, lane(), [&](int row, int column, float sum) {
          if (column == 0) f(row, sum);
        });
      }
    }

   private:
    template <class Layout>
    __device__ static Part<Cores, Storage> load(const Storage* slice, int i, int k) {
      constexpr int stride = Layout::stride;
      const Storage* at = slice + (Layout::along_depth ? i * matrix_size * stride + k : k * stride + i * matrix_size);
      return Part<Cores, Storage>::template load_at_once<!Layout::along_depth, stride>(at, lane());
    }
  };
};

// f(multiplier) with the one for numbers of this type on the GPU.
template <class Storage, class F>
__device__ void with_multiplier(F f) {
  if constexpr (sizeof(Storage) == 2) {
    with_matrix_cores([&](auto cores) {
      using Cores = decltype(cores);
      if constexpr (std::is_same_v<Cores, NoCores>) {
        f(MultiplyAdds());
      } else {
        f(MatrixProducts<Cores>());
      }
    });
  } else {
    f(MultiplyAdds());
  }
}

}  // namespace fastops::hip
