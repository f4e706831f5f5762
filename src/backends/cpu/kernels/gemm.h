// Matrix products: a tile of sums that stays in registers, and the right-hand matrix in panels, as it is, or as the
// transpose of what is there.
//
// The sum over the depth is cut into blocks of at most `depth_block` steps whose number depends on the depth alone;
// within a block each element of the result is one chain of fused multiply-adds, and the blocks' sums are added in
// order. With the transpose, it is as many chains as a vector has elements. So an element's bits do not depend on the
// tile it falls into, nor on how rows and columns are shared among threads.
//
// Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, describes the
// scheme; unlike there, matrices are read in place where that is as fast.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "backends/cpu/kernels/panels.h"

namespace fastops::cpu::CPU_CAPABILITY {

// How a product multiplies and adds up: here in the numbers' own type, one step of the depth at a time.
template <class S>
struct Arithmetic {
  using Operand = S;                     // what the matrices have
  using Stored = S;                      // what the right-hand one has where it is not packed yet
  using Packed = Arithmetic;             // for panels
  using Sum = S;                         // what is added up
  static constexpr int64_t at_once = 1;  // how many steps of the depth one instruction takes
  static constexpr bool takes_transpose = std::is_same_v<S, float>;

  using Values = at::vec::Vectorized<S>;
  static constexpr int64_t width = Values::size();
  static Values load(const S* panel) { return Values::loadu(panel); }
  static Values load(const S* row, int64_t count) { return load_part(row, count); }
  static Values broadcast(const S* a, int64_t) { return Values(*a); }
  static Values multiply_add(Values a, Values b, Values sum) { return at::vec::fmadd(a, b, sum); }
};

// In float32, with a right-hand matrix of 16-bit numbers, which are converted where they are read.
template <class Storage>
struct Converting : Arithmetic<float> {
  using Stored = Storage;

  using Arithmetic<float>::load;
  static Values load(const Storage* row) { return load_converted(row); }
  static Values load(const Storage* row, int64_t count) { return load_converted(row, count); }
};

// Whether rows that lie as they are are fetched before the tile that needs them. With AVX2 they are few enough for the
// processor to foresee. Measured.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr bool fetches_rows = true;
#else
inline constexpr bool fetches_rows = false;
#endif

// How the left-hand matrix of a tile lies: element (i, k) at a[i * a_stride + k], packed at a[k * rows + i], of a part
// of a tile at a[k * a_stride + i], or transposed at a[k * a_stride + i].
enum class Left { as_is, packed, transposed };

// Where sums go: rows `stride` apart. What lies at `addend` is added, if it is not null.
template <class S>
struct Sums {
  S* data;
  int64_t stride;
  const S* addend;
  int64_t addend_stride;

  static Sums strip(S* data, bool add) { return {data, panel_columns<S>, add ? data : nullptr, panel_columns<S>}; }
  Sums from_row(int64_t row) const {
    return {data + row * stride, stride, addend ? addend + row * addend_stride : nullptr, addend_stride};
  }
  Sums from_column(int64_t column) const {
    return {data + column, stride, addend ? addend + column : nullptr, addend_stride};
  }
  Sums more() const { return {data, stride, data, stride}; }  // of the next part of the depth
};

// sums[rows, vectors] = a[rows, depth] * panel[depth, vectors]. Where several steps are multiplied at once, a packed
// matrix and the panels have those of an element beside each other, and zeros beyond the depth.
template <class M, int rows, int vectors, Left left>
FASTOPS_TILE void tile(const typename M::Operand* a, int64_t a_stride, const typename M::Operand* panel,
                       int64_t panel_stride, int64_t depth, const Sums<typename M::Sum>& sums,
                       const typename M::Operand* next_a, const typename M::Operand* next_panel) {
  using S = typename M::Sum;
  using V = at::vec::Vectorized<S>;
  constexpr int width = V::size();
  constexpr int64_t at_once = M::at_once;
  const int64_t packed_rows = parts_of_tile(vectors) > 1 ? a_stride : rows;
  V sum[rows][vectors];
  FASTOPS_UNROLL(16)
  for (int i = 0; i < rows; ++i) {
    FASTOPS_UNROLL(4)
    for (int j = 0; j < vectors; ++j) sum[i][j] = V(S(0));
  }
  // `present`: how many of the steps that are multiplied at once there are.
  const auto step = [&](int64_t k, int64_t present) FASTOPS_INLINE_LAMBDA {
    typename M::Values b[vectors];
    FASTOPS_UNROLL(4)
    for (int j = 0; j < vectors; ++j) b[j] = M::load(panel + (k * panel_stride + j * width) * at_once);
    FASTOPS_UNROLL(16)
    for (int i = 0; i < rows; ++i) {
      const auto x = left == Left::packed       ? M::broadcast(a + (k * packed_rows + i) * at_once, at_once)
                     : left == Left::transposed ? M::broadcast(a + k * a_stride + i, at_once)
                                                : M::broadcast(a + i * a_stride + k * at_once, present);
      FASTOPS_UNROLL(4)
      for (int j = 0; j < vectors; ++j) sum[i][j] = M::multiply_add(x, b[j], sum[i][j]);
    }
  };
  const int64_t steps = depth / at_once;
  int64_t k = 0;
  for (; k + 4 <= steps; k += 4) {
    FASTOPS_PREFETCH_OUTER(next_panel + k * 4 * at_once);
    if constexpr (left == Left::packed) {
      FASTOPS_UNROLL(4)
      for (int line = 0; line < (rows * 4 + 15) / 16; ++line) {
        FASTOPS_PREFETCH(next_a + (k * packed_rows + line * 16) * at_once);
      }
    } else if constexpr (left == Left::transposed) {
      FASTOPS_UNROLL(4)
      for (int ahead = 8; ahead < 12; ++ahead) FASTOPS_PREFETCH(a + (k + ahead) * a_stride);
    } else if constexpr (fetches_rows) {
      const auto* const line = next_a + (k / 4 % 4) * ((rows + 3) / 4) * a_stride + k * at_once;
      FASTOPS_UNROLL(4)
      for (int i = 0; i < (rows + 3) / 4; ++i) FASTOPS_PREFETCH(line + i * a_stride);
    }
    step(k, at_once);
    step(k + 1, at_once);
    step(k + 2, at_once);
    step(k + 3, at_once);
  }
  for (; k < steps; ++k) step(k, at_once);
  if (at_once > 1 && depth % at_once) step(k, depth % at_once);
  const Sums<S> to = sums;
  FASTOPS_UNROLL(16)
  for (int i = 0; i < rows; ++i) {
    FASTOPS_UNROLL(4)
    for (int j = 0; j < vectors; ++j) {
      const V total = to.addend ? V::loadu(to.addend + i * to.addend_stride + j * width) + sum[i][j] : sum[i][j];
      total.store(to.data + i * to.stride + j * width);
    }
  }
}

template <class M>
using Tile = void (*)(const typename M::Operand* a, int64_t a_stride, const typename M::Operand* panel,
                      int64_t panel_stride, int64_t depth, const Sums<typename M::Sum>& sums,
                      const typename M::Operand* next_a, const typename M::Operand* next_panel);

// The tile function for a number of rows.
template <class M, int vectors, Left left>
Tile<M> tile_for(int64_t rows) {
  constexpr int most = tile_rows / parts_of_tile(vectors);
  static constexpr auto table = []<int... rows_less_1>(std::integer_sequence<int, rows_less_1...>) {
    return std::array<Tile<M>, most>{tile<M, rows_less_1 + 1, vectors, left>...};
  }(std::make_integer_sequence<int, most>());
  return table[rows - 1];
}
template <class M, Left left>
Tile<M> tile_for(int64_t rows, int64_t vectors) {
  if constexpr (tile_vectors == 4) {
    if (vectors == 4) return tile_for<M, 4, left>(rows);
    if (vectors == 3) return tile_for<M, 3, left>(rows);
  }
  return vectors == 2 ? tile_for<M, 2, left>(rows) : tile_for<M, 1, left>(rows);
}
template <class M>
Tile<M> tile_for(int64_t rows, int64_t vectors, const Product& product) {
  if (product.packed) return tile_for<M, Left::packed>(rows, vectors);
  if constexpr (M::at_once == 1) {
    if (product.transposed) return tile_for<M, Left::transposed>(rows, vectors);
  }
  return tile_for<M, Left::as_is>(rows, vectors);
}

// The sums of one product for the columns of a panel.
template <class M>
void multiply_panel(const Product& product, int64_t first_row, const Tiles& tiles, int64_t panel, int64_t columns,
                    const Sums<typename M::Sum>& sums) {
  using S = typename M::Sum;
  using Operand = typename M::Operand;
  constexpr int64_t at_once = M::at_once;
  const int64_t width = panel_width<S>(panel, columns);
  const int64_t padded = (product.depth + at_once - 1) / at_once * at_once;
  const bool in_place = product.matrix.data && !product.pack;
  const int64_t b_stride = in_place ? product.matrix.stride : width;
  alignas(64) Operand part[depth_block<S> * at_once * panel_columns<S>];
  const auto* const b = product.pack ? part
                        : in_place   ? row<Operand>(product.matrix, 0) + panel * panel_columns<S>
                                     : static_cast<const Operand*>(product.panels) + panel * panel_columns<S> * padded;
  const bool by_depth = product.packed || product.transposed;
  const auto* const a = row<Operand>(product.a, by_depth ? 0 : first_row);
  const int64_t vectors = width / Vec<S>::width;
  const int parts = parts_of_tile(vectors);
  const int pieces = parts * tiles.count;
  const bool goes_far = sums.stride != panel_columns<S>;
  const Parts blocks(padded / at_once, depth_block<S>);
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t k = blocks.begin(block) * at_once;
    const int64_t depth = std::min(product.depth, blocks.end(block) * at_once) - k;
    if (product.pack) pack_part<typename M::Stored, S>(product, k, depth, panel, columns, part);
    const auto* const b_block = product.pack ? part : b + k * b_stride;
    // What the panel has next, if it is not known to the processor.
    const auto* const next_b = product.pack || in_place ? b : b_block + depth * width;
    for (int p = 0; p < pieces; ++p) {
      const int t = p / parts;
      const int of_tile = p % parts;
      const int64_t size = tiles.size(t);
      const int64_t offset = size * of_tile / parts;
      const int64_t rows = size * (of_tile + 1) / parts - offset;
      if (rows == 0) continue;
      const int64_t first = tiles.first[t] + offset;
      const int64_t a_stride = product.packed ? size : product.a.stride;
      const auto* const a_tile = product.packed       ? a + tiles.first[t] * padded + k * size + offset * at_once
                                 : product.transposed ? a + first + k * a_stride
                                                      : a + first * a_stride + k;
      const auto* next_a = a_tile;
      if (!product.packed) {
        if (p + 1 < pieces) next_a += rows * a_stride;
      } else if (t + 1 < tiles.count) {
        next_a += size * padded + of_tile * 32 * at_once;  // parts fetch lines of their own of the next tile
      }
      const Sums<S> part_of_sums = (block == 0 ? sums : sums.more()).from_row(first);
      if (goes_far) {  // from rows to rows of a result, which the processor does not foresee
        for (int64_t r = 0; r < rows; ++r) FASTOPS_PREFETCH_WRITE(part_of_sums.data + r * sums.stride);
      }
      tile_for<typename M::Packed>(rows, vectors, product)(a_tile, a_stride, b_block, b_stride, depth, part_of_sums,
                                                           next_a,
                                                           next_b == b ? b : next_b + p * width * depth / pieces);
    }
  }
}

// ---- with the transpose of the right-hand matrix in place ----

inline bool reads_rows(const Product& product) { return product.transpose.data && !product.pack; }

// What fits the vector registers.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int dot_rows = 4;
#else
inline constexpr int dot_rows = 2;
#endif
inline constexpr int dot_columns = 4;
inline constexpr int few_columns = 2;
static_assert(few_columns <= dot_rows);

// The sums of the elements of four vectors.
inline __m128 sums_of(const Floats (&v)[dot_columns]) {
#if defined(CPU_CAPABILITY_AVX512)
  const auto merge = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  };
  const __m512d even = _mm512_castps_pd(merge(v[0], v[2]));  // 0 2 0 2, four times
  const __m512d odd = _mm512_castps_pd(merge(v[1], v[3]));
  const __m512 quarters = merge(_mm512_castpd_ps(even), _mm512_castpd_ps(odd));  // 0 1 2 3, four times
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
#else
  const auto merge = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  };
  const __m256 halves = merge(merge(v[0], v[2]), merge(v[1], v[3]));  // 0 1 2 3, twice
#endif
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

// sums[rows, 4] (+)= a[rows, depth] * the transpose of four rows of b. Of b's next rows, what is read next is fetched.
template <class M, int rows>
void dots(const typename M::Operand* a, int64_t a_stride, const typename M::Stored* const (&b)[dot_columns],
          int64_t ahead, int64_t depth, float* sums, bool add) {
  Floats sum[rows][dot_columns];
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < dot_columns; ++j) sum[i][j] = Floats(0.0F);
  }
  const auto step = [&](int64_t k, auto load) FASTOPS_INLINE_LAMBDA {
    typename M::Values values[dot_columns];
    for (int j = 0; j < dot_columns; ++j) {
      values[j] = load(b[j] + k);
      FASTOPS_PREFETCH(b[j] + ahead + k);
    }
    for (int i = 0; i < rows; ++i) {
      const auto x = load(a + i * a_stride + k);
      for (int j = 0; j < dot_columns; ++j) sum[i][j] = M::multiply_add(x, values[j], sum[i][j]);
    }
  };
  int64_t k = 0;
  for (; k + M::width <= depth; k += M::width) step(k, [](const auto* p) { return M::load(p); });
  if (k < depth) step(k, [&](const auto* p) { return M::load(p, depth - k); });
  for (int i = 0; i < rows; ++i) {
    float* const place = sums + i * panel_columns<float>;
    const __m128 four = sums_of(sum[i]);
    _mm_storeu_ps(place, add ? _mm_add_ps(_mm_loadu_ps(place), four) : four);
  }
}

// strip[rows, columns] (+)= a[rows, depth] * the transpose of few rows of b: as dots(), with the roles changed.
template <class M, int columns>
void dots_of_rows(const typename M::Operand* b, int64_t b_stride, ConstRows a, int64_t first_row, int64_t rows,
                  int64_t depth, float* strip, bool add) {
  using Operand = typename M::Operand;
  for (int64_t r = 0; r < rows; r += dot_columns) {
    const Operand* four[dot_columns];  // beyond the last row, that again
    for (int j = 0; j < dot_columns; ++j) four[j] = row<Operand>(a, first_row + std::min(r + j, rows - 1));
    float sums[columns * panel_columns<float>];
    dots<M, columns>(b, b_stride, four, dot_columns * a.stride, depth, sums, /*add=*/false);
    for (int64_t j = 0; j < std::min<int64_t>(dot_columns, rows - r); ++j) {
      for (int c = 0; c < columns; ++c) {
        float& place = strip[(r + j) * panel_columns<float> + c];
        const float sum = sums[c * panel_columns<float> + j];
        place = add ? place + sum : sum;
      }
    }
  }
}

// As multiply_panel, where the panel is of rows of the transpose.
template <class M>
void multiply_rows(const Product& product, int64_t first_row, int64_t rows, int64_t panel, int64_t columns,
                   float* strip, bool add) {
  using Operand = typename M::Operand;
  using Stored = typename M::Stored;
  const int64_t column = panel * panel_columns<float>;
  const int64_t last = std::min(columns, column + panel_columns<float>) - 1;
  if constexpr (std::is_same_v<Stored, Operand>) {
    if (last < column + few_columns) {
      const auto run = last == column ? dots_of_rows<M, 1> : dots_of_rows<M, few_columns>;
      return run(row<Operand>(product.transpose, column), product.transpose.stride, product.a, first_row, rows,
                 product.depth, strip, add);
    }
  }
  for (int64_t c = column; c <= last; c += dot_columns) {
    const Stored* four[dot_columns];  // beyond the last column, that again
    for (int j = 0; j < dot_columns; ++j) four[j] = row<Stored>(product.transpose, std::min(c + j, last));
    for (int64_t r = 0; r < rows; r += dot_rows) {
      const auto run = [&]<int count>(std::integral_constant<int, count>) {
        dots<M, count>(row<Operand>(product.a, first_row + r), product.a.stride, four,
                       dot_columns * product.transpose.stride, product.depth,
                       strip + r * panel_columns<float> + c - column, add);
      };
      switch (std::min<int64_t>(dot_rows, rows - r)) {
        case 1:
          run(std::integral_constant<int, 1>());
          break;
        case 2:
          run(std::integral_constant<int, 2>());
          break;
        case 3:
          run(std::integral_constant<int, std::min(3, dot_rows)>());
          break;
        default:
          run(std::integral_constant<int, dot_rows>());
      }
    }
  }
}

// Adds one product to a strip of sums [rows, panel_columns]; overwrites what is there if `add` is false.
template <class M>
void multiply_strip(const Product& product, int64_t row, const Tiles& tiles, int64_t panel, int64_t columns,
                    typename M::Sum* strip, bool add) {
  using S = typename M::Sum;
  if constexpr (M::takes_transpose) {
    if (reads_rows(product)) {
      return multiply_rows<M>(product, row, tiles.first[tiles.count], panel, columns, strip, add);
    }
  }
  if (product.depth == 0 && !add) std::fill(strip, strip + tiles.first[tiles.count] * panel_columns<S>, S(0));
  multiply_panel<M>(product, row, tiles, panel, columns, Sums<S>::strip(strip, add));
}

// fill(product, panel, strip, add) makes a strip of at most `most_rows` rows of sums from `row` on, which the epilogue
// takes, for each panel.
template <class S, int64_t most_rows = block_rows, class Fill>
void for_each_strip(const Product* products, int count, int64_t row, int64_t rows, int64_t columns, int64_t first_panel,
                    int64_t last_panel, const Epilogue& epilogue, Fill fill) {
  alignas(64) S strips[2][most_rows * panel_columns<S>];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    bool filled[2] = {false, false};
    for (int f = 0; f < count; ++f) {
      bool& add = filled[products[f].sum];
      fill(products[f], panel, strips[products[f].sum], add);
      add = true;
    }
    const int64_t column = panel * panel_columns<S>;
    epilogue.run(
        epilogue.arguments,
        {{strips[0], strips[1]}, panel_columns<S>, row, rows, column, std::min(panel_columns<S>, columns - column)});
  }
}

// The sums of whole panels go where the epilogue would leave them, if it adds something at most and they are complete
// at once.
template <class M>
void multiply(const Product* products, int count, int64_t row, int64_t rows, int64_t columns, int64_t first_panel,
              int64_t last_panel, const Epilogue& epilogue) {
  using S = typename M::Sum;
  const Tiles tiles(rows);
  const Product& first = products[0];
  if (epilogue.result.data && count == 1 && !reads_rows(first) && first.depth > 0 &&
      first.depth <= depth_block<S> * M::at_once) {
    const Sums<S> result{CPU_CAPABILITY::row<S>(epilogue.result, row), epilogue.result.stride,
                         epilogue.addend.data ? CPU_CAPABILITY::row<S>(epilogue.addend, row) : nullptr,
                         epilogue.addend.stride};
    for (const int64_t whole = std::min(last_panel, columns / panel_columns<S>); first_panel < whole; ++first_panel) {
      multiply_panel<M>(first, row, tiles, first_panel, columns, result.from_column(first_panel * panel_columns<S>));
    }
  }
  for_each_strip<typename M::Sum>(products, count, row, rows, columns, first_panel, last_panel, epilogue,
                                  [&](const Product& product, int64_t panel, auto* strip, bool add) {
                                    multiply_strip<M>(product, row, tiles, panel, columns, strip, add);
                                  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
