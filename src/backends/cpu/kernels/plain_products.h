// Products of matrices where they lie, of which one is broadcast number by number.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "backends/cpu/kernels/gemm.h"

namespace fastops::cpu::CPU_CAPABILITY::plain {

// So many vectors, and so many sums in all, fit the vector registers.
inline constexpr int tile_vectors = 3;
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int most_sums = 24;
#else
inline constexpr int most_sums = 12;
#endif
// Panels of so many bytes stay in the L1 cache, beside the weights that pass by. Measured.
inline constexpr int64_t panel_bytes = 12 * 1024;
inline constexpr int64_t most_tiles = 8;
// The rows of a tile of so many vectors.
constexpr int most_rows(int vectors) { return std::min(12, most_sums / vectors); }

// n rounded up to whole vectors.
template <class S>
constexpr int64_t in_vectors(int64_t n) {
  return (n + Vec<S>::width - 1) / Vec<S>::width * Vec<S>::width;
}

// table[n - 1] for n things.
template <int most, class F>
constexpr auto table_of(F f) {
  return [&]<int... less_1>(std::integer_sequence<int, less_1...>) {
    return std::array{f(std::integral_constant<int, less_1 + 1>())...};
  }(std::make_integer_sequence<int, most>());
}

// A matrix as it lies: element (i, k) is at data[i * row_step + k * depth_step].
template <class Operand>
struct Factors {
  const Operand* data;
  int64_t row_step;
  int64_t depth_step;

  Factors from_row(int64_t i) const { return {data + i * row_step, row_step, depth_step}; }
};

// y = factors @ x, + bias, which has a number for each row, or + y if it `adds`; multiplied as M does (gemm.h). Of
// factors and x, elements are as many numbers of the depth as that takes at once; where the depth ends within one, what
// is behind that is not read of the factors, and 0 in x.
template <class M>
struct Multiplication {
  using Operand = typename M::Operand;
  using S = typename M::Sum;

  Factors<Operand> factors;
  int64_t depth;  // in numbers
  const Operand* x;
  int64_t x_stride;
  const S* bias;
  S* y;
  int64_t y_stride;
  bool adds;
  bool pads;  // whether rows of y are whole vectors, with room for what is behind the last column

  Multiplication from_column(int64_t c) const {
    Multiplication result = *this;
    result.x += c * M::at_once;
    result.y += c;
    return result;
  }
};

// Of a depth in numbers.
template <class M>
constexpr int64_t element_count(int64_t depth) {
  return (depth + M::at_once - 1) / M::at_once;
}

// As many terms are added up one after another: sums of more are sums of such sums, whose rounding errors are smaller.
inline constexpr int64_t most_terms = 256;

// `rows` rows from the i-th, and columns of so many vectors, of whose last one there are `last`.
template <class M, int rows, int vectors>
FASTOPS_TILE void tile(const Multiplication<M>& to, int64_t i, int64_t last) {
  using Operand = typename M::Operand;
  using S = typename M::Sum;
  using V = typename Vec<S>::Base;
  constexpr int width = Vec<S>::width;
  constexpr int64_t at_once = M::at_once;
  const int64_t x_stride = to.x_stride;
  const Operand* x = to.x;
  Factors<Operand> factors = to.factors.from_row(i);
  S* const y = to.y + i * to.y_stride;
  const int64_t elements = element_count<M>(to.depth);
  const bool ends_within = to.depth % at_once != 0;
  const Parts parts(std::max<int64_t>(1, elements), most_terms);
  for (int64_t part = 0; part < parts.count; ++part) {
    V sum[rows][vectors];
    FASTOPS_UNROLL(12)
    for (int r = 0; r < rows; ++r) {
      FASTOPS_UNROLL(3)
      for (int j = 0; j < vectors; ++j) sum[r][j] = V(S(0));
    }
    const auto add_up = [&](auto load_last) FASTOPS_INLINE_LAMBDA {
      const auto step = [&](int64_t present) FASTOPS_INLINE_LAMBDA {
        typename M::Values values[vectors];
        FASTOPS_UNROLL(3)
        for (int j = 0; j < vectors; ++j) {
          const Operand* const place = x + j * width * at_once;
          values[j] = j + 1 < vectors ? M::load(place) : load_last(place);
        }
        FASTOPS_UNROLL(12)
        for (int r = 0; r < rows; ++r) {
          const auto factor = M::broadcast(factors.data + r * factors.row_step, present);
          FASTOPS_UNROLL(3)
          for (int j = 0; j < vectors; ++j) sum[r][j] = M::multiply_add(factor, values[j], sum[r][j]);
        }
        x += x_stride;
        factors.data += factors.depth_step;
      };
      const bool ends = at_once > 1 && ends_within && part + 1 == parts.count;
      for (int64_t k = std::min(elements, parts.size(part)) - ends; k > 0; --k) step(at_once);
      if constexpr (at_once > 1) {
        if (ends) step(1);
      }
    };
    const bool whole = last == width;
    if (whole) {
      add_up([](const Operand* p) { return M::load(p); });
    } else {
      add_up([last](const Operand* p) { return M::load(p, last * at_once); });
    }
    const bool adds = to.adds || part > 0;
    const bool shifts = to.bias && part + 1 == parts.count;
    FASTOPS_UNROLL(12)
    for (int r = 0; r < rows; ++r) {
      const V shift(shifts ? to.bias[i + r] : S(0));
      FASTOPS_UNROLL(3)
      for (int j = 0; j < vectors; ++j) {
        S* const place = y + r * to.y_stride + j * width;
        const int64_t count = whole || to.pads || j + 1 < vectors ? width : last;
        V result = sum[r][j];
        if (adds) result = (count == width ? V::loadu(place) : load_part(place, count)) + result;
        if (shifts) result = result + shift;
        count == width ? result.store(place) : store_part(result, place, count);
      }
    }
  }
}

// f(first, size) for things from `first` to `end`, in tiles of nearly the same size.
template <class F>
void for_each_tile(int64_t first, int64_t end, int most, F f) {
  const int64_t n = end - first;
  const int64_t count = (n + most - 1) / most;
  for (int64_t t = 0, place = 0; t < count; ++t) {
    const int64_t next = n * (t + 1) / count;
    f(first + place, static_cast<int>(next - place));
    place = next;
  }
}

// The same for rows from `first_row` to `end_row`.
template <class M, int vectors>
void multiply_vectors(const Multiplication<M>& to, int64_t first_row, int64_t end_row, int64_t last) {
  constexpr int most = most_rows(vectors);
  static constexpr auto tiles = table_of<most>([](auto size) { return tile<M, size, vectors>; });
  // Rows that lie so far apart are in one set of the L1 cache, which has room for eight.
  const bool in_one_set = to.factors.row_step * static_cast<int64_t>(sizeof(typename M::Operand)) % 4096 == 0;
  for_each_tile(first_row, end_row, in_one_set ? std::min(8, most) : most,
                [&](int64_t i, int size) { tiles[size - 1](to, i, last); });
}

// The same for any number of columns.
template <class M>
void multiply(const Multiplication<M>& to, int64_t first_row, int64_t end_row, int64_t columns) {
  using S = typename M::Sum;
  static constexpr auto runs = table_of<tile_vectors>([](auto size) { return multiply_vectors<M, size>; });
  constexpr int64_t width = Vec<S>::width;
  for_each_tile(0, in_vectors<S>(columns) / width, tile_vectors, [&](int64_t first, int size) {
    const int64_t column = first * width;
    const int64_t last = std::min(columns - column - (size - 1) * width, width);
    runs[size - 1](to.from_column(column), first_row, end_row, last);
  });
}

// The same for a block of a product.
template <class M>
void multiply(const PlainProduct& product, int64_t first_row, int64_t end_row, int64_t first_column,
              int64_t end_column) {
  using Operand = typename M::Operand;
  using S = typename M::Sum;
  const Factors<Operand> a{static_cast<const Operand*>(product.a), product.row_step, product.depth_step};
  // As much of both matrices stays in the L2 cache until all rows and columns are through.
  const int64_t elements = element_count<M>(product.depth);
  const Parts parts(std::max<int64_t>(1, elements), most_terms);
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t k = std::min(elements, parts.begin(part));
    const int64_t depth = std::min(product.depth - k * M::at_once, parts.size(part) * M::at_once);
    const Multiplication<M> to{{a.data + k * a.depth_step, a.row_step, a.depth_step},
                               depth,
                               row<Operand>(product.b, k) + first_column * M::at_once,
                               product.b.stride,
                               nullptr,
                               static_cast<S*>(product.c.data) + first_column,
                               product.c.stride,
                               product.adds || part > 0,
                               /*pads=*/false};
    multiply<M>(to, first_row, end_row, end_column - first_column);
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY::plain
