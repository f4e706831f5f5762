// How matrices lie for products: the right-hand one in panels of columns, the left-hand one in tiles of rows where its
// rows are not contiguous; and what packs them.
#pragma once

#include <algorithm>
#include <tuple>

#include "backends/cpu/kernels/vec.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {

// The largest tiles whose sums, with the vectors that they are made from, fit the vector registers: of so many rows and
// two vectors, or half of the rows and four. These load 10 vectors and numbers for 24 multiply-adds and those 14, which
// is too many where a core's other thread loads, too.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int tile_rows = 12;
#else
inline constexpr int tile_rows = 6;
#endif
#if defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX512_BF16) && !defined(CPU_CAPABILITY_AMX)
inline constexpr int tile_vectors = 4;
#else
inline constexpr int tile_vectors = 2;
#endif
constexpr int parts_of_tile(int64_t vectors) { return vectors > 2 ? 2 : 1; }

// In front of a function that has a tile's sums: with 16 vector registers three of them would go to memory and back
// every four steps. Measured.
#if defined(CPU_CAPABILITY_AVX2)
#define FASTOPS_TILE FASTOPS_FEWER_REGISTERS
#else
#define FASTOPS_TILE
#endif

template <class S>
inline constexpr int64_t panel_columns = tile_vectors * Vec<S>::width;

// A panel's part for one block of the depth is 32 KiB: it stays in the L1 cache while the rows pass by.
template <class S>
inline constexpr int64_t depth_block = 32 * 1024 / (panel_columns<S> * sizeof(S));

// The width of a panel: the last one has as many vectors as are enough.
template <class S>
int64_t panel_width(int64_t panel, int64_t columns) {
  constexpr int64_t width = Vec<S>::width;
  return std::min(panel_columns<S>, (columns - panel * panel_columns<S> + width - 1) / width * width);
}

// The rows of a block as tiles.
struct Tiles {
  int count;
  int first[block_rows / tile_rows + 1];  // the first row of each, and the end of the last

  explicit Tiles(int64_t rows) : count(static_cast<int>((rows + tile_rows - 1) / tile_rows)) {
    const int n = static_cast<int>(rows);
    for (int t = 0; t <= count; ++t) first[t] = count ? n * t / count : 0;
  }
  int size(int t) const { return first[t + 1] - first[t]; }
};

// Calls fill(k, column, valid, target, width) for each depth step of each panel: `target` takes the `valid` elements of
// row k from `column` on, and zeros up to `width`. A few rows at a time, so that the matrix is read in its own order.
template <class S, class Fill>
void for_each_panel_row(const PackArguments& to, int64_t first_panel, int64_t last_panel, Fill fill) {
  constexpr int64_t rows_at_once = 16;
  for (int64_t k0 = 0; k0 < to.depth; k0 += rows_at_once) {
    const int64_t k1 = std::min(to.depth, k0 + rows_at_once);
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t column = panel * panel_columns<S>;
      const int64_t width = panel_width<S>(panel, to.columns);
      const int64_t valid = std::min(width, to.columns - column);
      S* target = static_cast<S*>(to.panels) + column * to.depth + k0 * width;
      for (int64_t k = k0; k < k1; ++k, target += width) fill(k, column, valid, target, width);
    }
  }
}

// A vector of numbers, in the type that they are computed with.
template <class S>
Vectorized<S> load_converted(const S* source) {
  return Vectorized<S>::loadu(source);
}
inline Floats load_converted(const c10::BFloat16* source) {
  Floats values;
  at::vec::load_fp32_from_bf16(source, values);
  return values;
}
inline Floats load_converted(const c10::Half* source) {
  Floats values;
  at::vec::load_fp32_from_fp16(source, values);
  return values;
}
// The first `count` of them; the others are 0.
template <class Storage>
auto load_converted(const Storage* source, int64_t count) {
  return Packet<Storage>::load(source, count).part[0].v;
}

// Rows of a matrix, converted: what is beyond the last column becomes 0.
template <class S, class Storage>
void convert_row(const Storage* source, int64_t columns, S* target, int64_t width) {
  int64_t c = 0;
  for (; c + Vec<S>::width <= columns; c += Vec<S>::width) load_converted(source + c).store(target + c);
  if (c < columns) {
    load_converted(source + c, columns - c).store(target + c);
    c += Vec<S>::width;
  }
  for (; c < width; ++c) target[c] = S(0);
}

template <class Storage>
void convert(ConstRows source, int64_t rows, int64_t columns, Rows target) {
  for (int64_t r = 0; r < rows; ++r) {
    convert_row<Compute<Storage>, Storage>(row<Storage>(source, r), columns, row<Compute<Storage>>(target, r), columns);
  }
}

// Panels of a matrix [depth, columns].
template <class S, class Storage>
void pack(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  for_each_panel_row<S>(to, first_panel, last_panel,
                        [&](int64_t k, int64_t column, int64_t valid, S* target, int64_t width) {
                          convert_row<S, Storage>(row<Storage>(to.source, k) + column, valid, target, width);
                        });
}

#if defined(CPU_CAPABILITY_AVX512)
// target[c, r] = source[r, c] for 16 rows, `source_bytes` apart, and 16 columns of 4 bytes each.
inline void transpose_16x16(const void* source, int64_t source_bytes, float* target, int64_t target_stride) {
  // Four rows at a time: in each 128 bits of a vector, a square of 4 x 4 is transposed.
  __m512 part[4][4];
  FASTOPS_UNROLL(4)
  for (int g = 0; g < 4; ++g) {
    const auto row = [&](int k) {
      return _mm512_loadu_ps(static_cast<const char*>(source) + (4 * g + k) * source_bytes);
    };
    const __m512 even_low = _mm512_unpacklo_ps(row(0), row(2));
    const __m512 even_high = _mm512_unpackhi_ps(row(0), row(2));
    const __m512 odd_low = _mm512_unpacklo_ps(row(1), row(3));
    const __m512 odd_high = _mm512_unpackhi_ps(row(1), row(3));
    part[g][0] = _mm512_unpacklo_ps(even_low, odd_low);
    part[g][1] = _mm512_unpackhi_ps(even_low, odd_low);
    part[g][2] = _mm512_unpacklo_ps(even_high, odd_high);
    part[g][3] = _mm512_unpackhi_ps(even_high, odd_high);
  }
  // Then the 4 x 4 squares change places.
  constexpr int evens = 0x88;
  constexpr int odds = 0xdd;
  FASTOPS_UNROLL(4)
  for (int k = 0; k < 4; ++k) {
    const auto store = [&](int c, __m512 value) { _mm512_storeu_ps(target + (c + k) * target_stride, value); };
    const __m512 upper_evens = _mm512_shuffle_f32x4(part[0][k], part[1][k], evens);
    const __m512 upper_odds = _mm512_shuffle_f32x4(part[0][k], part[1][k], odds);
    const __m512 lower_evens = _mm512_shuffle_f32x4(part[2][k], part[3][k], evens);
    const __m512 lower_odds = _mm512_shuffle_f32x4(part[2][k], part[3][k], odds);
    store(0, _mm512_shuffle_f32x4(upper_evens, lower_evens, evens));
    store(4, _mm512_shuffle_f32x4(upper_odds, lower_odds, evens));
    store(8, _mm512_shuffle_f32x4(upper_evens, lower_evens, odds));
    store(12, _mm512_shuffle_f32x4(upper_odds, lower_odds, odds));
  }
}
#endif

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
// Of 4 x 4 numbers.
inline void transpose_4x4(const double* source, int64_t source_stride, double* target, int64_t target_stride) {
  const auto row = [&](int r) { return _mm256_loadu_pd(source + r * source_stride); };
  const __m256d a = row(0), b = row(1), c = row(2), d = row(3);
  const __m256d even[] = {_mm256_unpacklo_pd(a, b), _mm256_unpacklo_pd(c, d)};
  const __m256d odd[] = {_mm256_unpackhi_pd(a, b), _mm256_unpackhi_pd(c, d)};
  _mm256_storeu_pd(target, _mm256_permute2f128_pd(even[0], even[1], 0x20));
  _mm256_storeu_pd(target + target_stride, _mm256_permute2f128_pd(odd[0], odd[1], 0x20));
  _mm256_storeu_pd(target + 2 * target_stride, _mm256_permute2f128_pd(even[0], even[1], 0x31));
  _mm256_storeu_pd(target + 3 * target_stride, _mm256_permute2f128_pd(odd[0], odd[1], 0x31));
}

// Of 8 x 8 numbers of 16 bits: each step puts the first half of the rows between the second half's numbers.
inline void transpose_8x8(const uint16_t* source, int64_t source_stride, uint16_t* target, int64_t target_stride) {
  __m128i rows[8], mixed[8];
  for (int r = 0; r < 8; ++r) {
    rows[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + r * source_stride));
  }
  const auto mix = [](const __m128i* from, __m128i* to) {
    for (int r = 0; r < 4; ++r) {
      to[2 * r] = _mm_unpacklo_epi16(from[r], from[r + 4]);
      to[2 * r + 1] = _mm_unpackhi_epi16(from[r], from[r + 4]);
    }
  };
  mix(rows, mixed);
  mix(mixed, rows);
  mix(rows, mixed);
  for (int c = 0; c < 8; ++c) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + c * target_stride), mixed[c]);
  }
}
#endif

// The rows and columns of the squares that transpose_square takes: a vector's, where S is computed with.
template <class S>
inline constexpr int square_size = Vec<S>::width;
template <>
inline constexpr int square_size<uint16_t> = 8;

// target[c, r] = source[r, c] for such a square.
template <class S>
void transpose_square(const S* source, int64_t source_stride, S* target, int64_t target_stride) {
  constexpr int width = square_size<S>;
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<S, float>) {
    return transpose_16x16(source, source_stride * int64_t{sizeof(float)}, target, target_stride);
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<S, float>) {
    return at::vec::transpose_mxn<float, width, width>(source, source_stride, target, target_stride);
  }
#endif
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<S, uint16_t>) return transpose_8x8(source, source_stride, target, target_stride);
  if constexpr (std::is_same_v<S, double>) {
    for (int r = 0; r < width; r += 4) {
      for (int c = 0; c < width; c += 4) {
        transpose_4x4(source + r * source_stride + c, source_stride, target + c * target_stride + r, target_stride);
      }
    }
    return;
  }
#endif
  for (int c = 0; c < width; ++c) {
    for (int r = 0; r < width; ++r) target[c * target_stride + r] = source[r * source_stride + c];
  }
}

// Panels of the transpose of a matrix [columns, depth].
template <class S, class Storage>
void pack_transposed(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  constexpr int64_t width = Vec<S>::width;
  const auto [matrix, depth, columns, panels] = std::tie(to.source, to.depth, to.columns, to.panels);
  alignas(64) S square[width * width];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t panel_size = panel_width<S>(panel, columns);
    S* const panel_data = static_cast<S*>(panels) + panel * panel_columns<S> * depth;
    for (int64_t part = 0; part < panel_size; part += width) {
      const int64_t first = panel * panel_columns<S> + part;
      const int64_t rows = std::clamp<int64_t>(columns - first, 0, width);
      for (int64_t k = 0; k < depth; k += width) {
        const int64_t steps = std::min(width, depth - k);
        S* const target = panel_data + k * panel_size + part;
        if (rows == width && steps == width) {
          for (int64_t r = 0; r < width; ++r) FASTOPS_PREFETCH(row<Storage>(matrix, first + r) + k + 4 * width);
          if constexpr (std::is_same_v<S, Storage>) {
            transpose_square<S>(row<Storage>(matrix, first) + k, matrix.stride, target, panel_size);
          } else {
            for (int64_t r = 0; r < width; ++r) {
              load_converted(row<Storage>(matrix, first + r) + k).store(square + r * width);
            }
            transpose_square<S>(square, width, target, panel_size);
          }
          continue;
        }
        if (steps < width) {
          for (int64_t s = 0; s < steps; ++s) typename Vec<S>::Base(S(0)).store(target + s * panel_size);
          for (int64_t r = 0; r < rows; ++r) {
            convert_row<S, Storage>(row<Storage>(matrix, first + r) + k, steps, square, width);
            for (int64_t s = 0; s < steps; ++s) target[s * panel_size + r] = square[s];
          }
          continue;
        }
        for (int64_t r = 0; r < rows; ++r) {
          convert_row<S, Storage>(row<Storage>(matrix, first + r) + k, steps, square + r * width, width);
        }
        for (int64_t r = rows; r < width; ++r) std::fill(square + r * width, square + (r + 1) * width, S(0));
        transpose_square<S>(square, width, target, panel_size);
      }
    }
  }
}

// Packs the panel of a product's right-hand matrix for `depth` steps from `k` on.
template <class Operand, class Sum>
void pack_part(const Product& product, int64_t k, int64_t depth, int64_t panel, int64_t columns, void* packed) {
  const int64_t column = panel * panel_columns<Sum>;
  const auto [matrix, transpose] = std::tie(product.matrix, product.transpose);
  const ConstRows source = matrix.data ? ConstRows{row<Operand>(matrix, k) + column, matrix.stride}
                                       : ConstRows{row<Operand>(transpose, column) + k, transpose.stride};
  product.pack({source, depth, columns - column, packed}, 0, 1);
}

// Copies a step of the depth to each of the tiles that are packed: `line` has its element for every row, and as many
// more as a vector has. The tiles are filled in the order of steps.
template <class S>
void copy_to_tiles(const S* line, const Tiles& tiles, int64_t step, int64_t steps, S* packed) {
  constexpr int64_t width = Vec<S>::width;
  for (int t = 0; t < tiles.count; ++t) {
    const int64_t first = tiles.first[t];
    const int64_t size = tiles.size(t);
    // Whole vectors: what they write past the tile's line belongs to its next lines, which come later.
    S* const target = packed + first * steps + step * size;
    if ((steps - step) * size >= size + width) {
      for (int64_t i = 0; i < size; i += width) Vec<S>::Base::loadu(line + first + i).store(target + i);
    } else {
      std::copy(line + first, line + first + size, target);
    }
  }
}

// sums[c] += the sums over the depth of a matrix [depth, columns]: those of each block of the depth, in order.
template <class S, class Storage>
void add_column_sums(ConstRows matrix, int64_t depth, int64_t columns, S* sums) {
  using V = typename Vec<S>::Base;
  const Parts blocks(depth, depth_block<S>);
  for (int64_t c = 0; c < columns; c += Vec<S>::width) {
    const int64_t count = std::min(Vec<S>::width, columns - c);
    V total = load_part(sums + c, count);
    for (int64_t block = 0; block < blocks.count; ++block) {
      V sum(S(0));
      for (int64_t k = blocks.begin(block); k < blocks.end(block); ++k) {
        sum = sum + load_converted(row<Storage>(matrix, k) + c, count);
      }
      total = total + sum;
    }
    store_part(total, sums + c, count);
  }
}

// Tiles of the transpose of a matrix [depth, rows], with the sums over the depth on the way: those of each block of the
// depth are added to the total in order.
template <class S, class Storage>
void pack_tiles(ConstRows matrix, int64_t depth, int64_t rows, void* packed, void* sums) {
  if (!packed) return add_column_sums<S, Storage>(matrix, depth, rows, static_cast<S*>(sums));
  constexpr int64_t width = Vec<S>::width;
  alignas(64) S line[block_rows + width];
  alignas(64) S block_sums[block_rows + width];
  const Tiles tiles(rows);
  const Parts blocks(depth, depth_block<S>);
  const int64_t padded = (rows + width - 1) / width * width;
  for (int64_t block = 0; block < blocks.count; ++block) {
    std::fill(block_sums, block_sums + padded, S(0));
    for (int64_t k = blocks.begin(block); k < blocks.end(block); ++k) {
      // Rows may lie far apart, where the processor does not foresee them.
      const auto* const ahead = reinterpret_cast<const char*>(row<Storage>(matrix, k + 16 < depth ? k + 16 : k));
      for (int64_t byte = 0; byte < rows * int64_t{sizeof(Storage)}; byte += 64) FASTOPS_PREFETCH(ahead + byte);
      convert_row<S, Storage>(row<Storage>(matrix, k), rows, line, padded);
      if (sums) {
        for (int64_t i = 0; i < padded; i += width) {
          (Vec<S>::Base::loadu(block_sums + i) + Vec<S>::Base::loadu(line + i)).store(block_sums + i);
        }
      }
      copy_to_tiles(line, tiles, k, depth, static_cast<S*>(packed));
    }
    for (int64_t i = 0; sums && i < rows; ++i) static_cast<S*>(sums)[i] += block_sums[i];
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY
