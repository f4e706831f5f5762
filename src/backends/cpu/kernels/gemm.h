// Matrix products: packed panels of the right-hand matrix, and a tile of sums that stays in registers.
//
// The sum over the depth is cut into blocks of at most `depth_block` steps whose number depends on the depth alone;
// within a block each element of the result is one chain of fused multiply-adds, and the blocks' sums are added in
// order. So an element's bits do not depend on the tile it falls into, nor on how rows and columns are shared among
// threads, and its rounding error grows with the block's size rather than with the depth.
//
// Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, describes the
// scheme; unlike there, the left-hand matrix is read in place where its rows are contiguous.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "backends/cpu/kernels/vec.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {

// The largest tile whose sums, with the vectors that they are made from, fit the vector registers.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int tile_rows = 12;
#else
inline constexpr int tile_rows = 6;
#endif
inline constexpr int tile_vectors = 2;

template <class S>
inline constexpr int64_t panel_columns = tile_vectors * Vec<S>::width;

// A panel's part for one block of the depth is 32 KiB: it stays in the L1 cache while the rows pass by.
template <class S>
inline constexpr int64_t depth_block = 32 * 1024 / (panel_columns<S> * sizeof(S));

// The width of a panel: the last one is one vector wide if that is enough.
template <class S>
int64_t panel_width(int64_t panel, int64_t columns) {
  return columns - panel * panel_columns<S> > Vec<S>::width ? panel_columns<S> : Vec<S>::width;
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

// sums[rows, vectors] (+)= a[rows, depth] * panel[depth, vectors]. Element (i, k) of `a` is at a[i * a_stride + k], or
// at a[k * rows + i] if it is packed.
template <class S, int rows, int vectors, bool packed>
void tile(const S* a, int64_t a_stride, const S* panel, int64_t panel_stride, int64_t depth, S* sums, bool add,
          const S* next_a, const S* next_panel) {
  using V = at::vec::Vectorized<S>;
  constexpr int width = V::size();
  V sum[rows][vectors];
  FASTOPS_UNROLL(16)
  for (int i = 0; i < rows; ++i) {
    FASTOPS_UNROLL(2)
    for (int j = 0; j < vectors; ++j) sum[i][j] = V(S(0));
  }
  const auto step = [&](int64_t k) FASTOPS_INLINE_LAMBDA {
    V b[vectors];
    FASTOPS_UNROLL(2)
    for (int j = 0; j < vectors; ++j) b[j] = V::loadu(panel + k * panel_stride + j * width);
    FASTOPS_UNROLL(16)
    for (int i = 0; i < rows; ++i) {
      const V x(packed ? a[k * rows + i] : a[i * a_stride + k]);
      FASTOPS_UNROLL(2)
      for (int j = 0; j < vectors; ++j) sum[i][j] = at::vec::fmadd(x, b[j], sum[i][j]);
    }
  };
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    FASTOPS_PREFETCH_OUTER(next_panel + k * 4);
    if constexpr (packed) {
      FASTOPS_UNROLL(4)
      for (int line = 0; line < (rows * 4 + 15) / 16; ++line) FASTOPS_PREFETCH(next_a + k * rows + line * 16);
    } else {
      const S* const line = next_a + (k / 4 % 4) * ((rows + 3) / 4) * a_stride + k;
      FASTOPS_UNROLL(4)
      for (int i = 0; i < (rows + 3) / 4; ++i) FASTOPS_PREFETCH(line + i * a_stride);
    }
    step(k);
    step(k + 1);
    step(k + 2);
    step(k + 3);
  }
  for (; k < depth; ++k) step(k);
  FASTOPS_UNROLL(16)
  for (int i = 0; i < rows; ++i) {
    FASTOPS_UNROLL(2)
    for (int j = 0; j < vectors; ++j) {
      S* const place = sums + i * panel_columns<S> + j * width;
      (add ? V::loadu(place) + sum[i][j] : sum[i][j]).store(place);
    }
  }
}

template <class S>
using Tile = void (*)(const S* a, int64_t a_stride, const S* panel, int64_t panel_stride, int64_t depth, S* sums,
                      bool add, const S* next_a, const S* next_panel);

// The tile function for a number of rows.
template <class S>
Tile<S> tile_for(int64_t rows, int64_t vectors, bool packed) {
  static constexpr auto table = []<int... rows_less_1>(std::integer_sequence<int, rows_less_1...>) {
    return std::array<std::array<std::array<Tile<S>, 2>, 2>, tile_rows>{
        {{{{{tile<S, rows_less_1 + 1, 1, false>, tile<S, rows_less_1 + 1, 1, true>}},
           {{tile<S, rows_less_1 + 1, 2, false>, tile<S, rows_less_1 + 1, 2, true>}}}}...}};
  }(std::make_integer_sequence<int, tile_rows>());
  return table[rows - 1][vectors - 1][packed];
}

// Adds one product to a strip of sums [rows, panel_columns]; overwrites what is there if `add` is false.
template <class S>
void multiply_panel(const Product& product, int64_t first_row, const Tiles& tiles, int64_t panel, int64_t columns,
                    S* strip, bool add) {
  const int64_t width = panel_width<S>(panel, columns);
  const S* const b = static_cast<const S*>(product.panels) + panel * panel_columns<S> * product.depth;
  const S* const a = row<S>(product.a, first_row);
  const Parts blocks(product.depth, depth_block<S>);
  if (product.depth == 0 && !add) std::fill(strip, strip + tiles.first[tiles.count] * panel_columns<S>, S(0));
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t k = blocks.begin(block);
    const int64_t depth = blocks.size(block);
    for (int t = 0; t < tiles.count; ++t) {
      const int64_t first = tiles.first[t];
      const int64_t size = tiles.size(t);
      const S* const a_tile = product.packed ? a + first * product.depth + k * size : a + first * product.a.stride + k;
      tile_for<S>(size, width / Vec<S>::width, product.packed)(
          a_tile, product.a.stride, b + k * width, width, depth, strip + first * panel_columns<S>, add || block > 0,
          t + 1 < tiles.count ? (product.packed ? a_tile + size * product.depth : a_tile + size * product.a.stride)
                              : a_tile,
          b + (k + depth) * width + t * width * depth / tiles.count);
    }
  }
}

template <class S>
void multiply(const Product* products, int count, int64_t row, int64_t rows, int64_t columns, int64_t first_panel,
              int64_t last_panel, const Epilogue& epilogue) {
  alignas(64) S strips[2][block_rows * panel_columns<S>];
  const Tiles tiles(rows);
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    bool filled[2] = {false, false};
    for (int f = 0; f < count; ++f) {
      bool& add = filled[products[f].sum];
      multiply_panel<S>(products[f], row, tiles, panel, columns, strips[products[f].sum], add);
      add = true;
    }
    const int64_t column = panel * panel_columns<S>;
    epilogue.run(
        epilogue.arguments,
        {{strips[0], strips[1]}, panel_columns<S>, row, rows, column, std::min(panel_columns<S>, columns - column)});
  }
}

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

// Rows of a matrix, converted: what is beyond the last column becomes 0.
template <class S, class Storage>
void convert_row(const Storage* source, int64_t columns, S* target, int64_t width) {
  int64_t c = 0;
  for_each_packet<Storage>(columns, [&](int64_t i, auto load, auto) {
    const auto value = load(source);
    for (int part = 0; part < Packet<Storage>::parts; ++part) {
      const int64_t place = i + part * Vec<S>::width;
      if (place < width) value.part[part].v.store(target + place);
    }
    c = i + Packet<Storage>::width;
  });
  for (; c < width; ++c) target[c] = S(0);
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
// target[c, r] = source[r, c] for 16 rows and columns.
inline void transpose_16x16(const float* source, int64_t source_stride, float* target, int64_t target_stride) {
  // Four rows at a time: in each 128 bits of a vector, a square of 4 x 4 is transposed.
  __m512 part[4][4];
  FASTOPS_UNROLL(4)
  for (int g = 0; g < 4; ++g) {
    const auto row = [&](int k) { return _mm512_loadu_ps(source + (4 * g + k) * source_stride); };
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

// target[c, r] = source[r, c] for a square of a vector's size.
template <class S>
void transpose_square(const S* source, int64_t source_stride, S* target, int64_t target_stride) {
  constexpr int width = Vec<S>::width;
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<S, float>) return transpose_16x16(source, source_stride, target, target_stride);
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<S, float>) {
    return at::vec::transpose_mxn<float, width, width>(source, source_stride, target, target_stride);
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
  const auto [matrix, unused, depth, columns, panels, params] = to;
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
        if constexpr (std::is_same_v<S, Storage>) {
          if (rows == width && steps == width) {
            for (int64_t r = 0; r < width; ++r) FASTOPS_PREFETCH(row<Storage>(matrix, first + r) + k + 4 * width);
            transpose_square<S>(row<Storage>(matrix, first) + k, matrix.stride, target, panel_size);
            continue;
          }
        }
        for (int64_t r = 0; r < rows; ++r) {
          convert_row<S, Storage>(row<Storage>(matrix, first + r) + k, steps, square + r * width, width);
        }
        for (int64_t r = rows; r < width; ++r) std::fill(square + r * width, square + (r + 1) * width, S(0));
        if (steps == width) {
          transpose_square<S>(square, width, target, panel_size);
        } else {
          for (int64_t s = 0; s < steps; ++s) {
            for (int64_t r = 0; r < width; ++r) target[s * panel_size + r] = square[r * width + s];
          }
        }
      }
    }
  }
}

// Tiles of the transpose of a matrix [depth, rows], with the sums over the depth on the way: those of each block of the
// depth are added to the total in order.
template <class S, class Storage>
void pack_tiles(ConstRows matrix, int64_t depth, int64_t rows, void* packed, void* sums) {
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
      for (int t = 0; t < tiles.count; ++t) {
        const int64_t first = tiles.first[t];
        const int64_t size = tiles.size(t);
        // Whole vectors: what they write past the tile's line belongs to its next lines, which come later.
        S* const target = static_cast<S*>(packed) + first * depth + k * size;
        if ((depth - k) * size >= size + width) {
          for (int64_t i = 0; i < size; i += width) Vec<S>::Base::loadu(line + first + i).store(target + i);
        } else {
          std::copy(line + first, line + first + size, target);
        }
      }
    }
    for (int64_t i = 0; sums && i < rows; ++i) static_cast<S*>(sums)[i] += block_sums[i];
  }
}

// Of the first `count` numbers of a packet, those in its part k.
template <class Storage>
int64_t count_in_part(int64_t count, int k) {
  constexpr int64_t width = Packet<Storage>::Number::width;
  return Packet<Storage>::parts == 1 ? count : std::clamp<int64_t>(count - k * width, 0, width);
}

// Packets of numbers in the type that is computed with, as epilogues take and give them. `count` is that of a packet,
// or less at the end of a row.
template <class Storage>
Packet<Storage> load_computed(const Compute<Storage>* p, int64_t count) {
  constexpr int64_t width = Packet<Storage>::Number::width;
  Packet<Storage> out;
  for (int k = 0; k < Packet<Storage>::parts; ++k) {
    out.part[k] = load_part(p + k * width, count_in_part<Storage>(count, k));
  }
  return out;
}
template <class Storage>
void store_computed(const Packet<Storage>& value, Compute<Storage>* p, int64_t count) {
  constexpr int64_t width = Packet<Storage>::Number::width;
  for (int k = 0; k < Packet<Storage>::parts; ++k) {
    store_part(value.part[k].v, p + k * width, count_in_part<Storage>(count, k));
  }
}

// Calls step(sum, load, store, store_computed) for each packet of a block: sum(s) is the packet of sum s; load(rows)
// and store(value, rows) are for the same place of a matrix in the storage type, store_computed(value, rows) for that
// of one in the type that is computed with. Nothing is stored to a matrix without data. The matrices' rows lie far
// apart, where the processor does not foresee them: what comes `rows_ahead` rows later is fetched ahead.
template <class Storage, class Step>
void for_each_sum(const Block& block, Step step) {
  using S = Compute<Storage>;
  constexpr int64_t width = Packet<Storage>::width;
  constexpr int64_t rows_ahead = 8;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t i = 0; i < block.columns; i += width) {
      const int64_t count = std::min(width, block.columns - i);
      const int64_t c = block.column + i;
      step(
          [&](int s) {
            return load_computed<Storage>(static_cast<const S*>(block.sums[s]) + r * block.stride + i, count);
          },
          [&](ConstRows rows) {
            const Storage* p = row<Storage>(rows, block.row + r) + c;
            FASTOPS_PREFETCH(p + rows_ahead * rows.stride);
            return Packet<Storage>::load(p, count);
          },
          [&](const Packet<Storage>& value, Rows rows) {
            if (!rows.data) return;
            Storage* p = row<Storage>(rows, block.row + r) + c;
            FASTOPS_PREFETCH_WRITE(p + rows_ahead * rows.stride);
            value.store(p, count);
          },
          [&](const Packet<Storage>& value, Rows rows) {
            if (!rows.data) return;
            S* p = row<S>(rows, block.row + r) + c;
            FASTOPS_PREFETCH_WRITE(p + rows_ahead * rows.stride);
            store_computed<Storage>(value, p, count);
          });
    }
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY
