// bfloat16 in pairs, for instructions that multiply two steps of the depth at once: they lie beside each other in 4
// bytes. Panels and tiles are those of panels.h with such pairs in place of numbers.
#pragma once

#include "backends/cpu/kernels/panels.h"

namespace fastops::cpu::CPU_CAPABILITY {

using BFloat16 = c10::BFloat16;

struct Pairs {
  using Operand = BFloat16;
  using Stored = BFloat16;
  using Packed = Pairs;
  using Sum = float;
  static constexpr int64_t at_once = 2;
  static constexpr bool takes_transpose = true;

  using Values = __m512bh;
  static constexpr int64_t width = 32;
  static Values load(const BFloat16* panel) { return as_pairs(_mm512_loadu_si512(panel)); }
  static Values load(const BFloat16* row, int64_t count) {
    return as_pairs(_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, row));
  }
  // Without a second number, it is 0: what lies behind a row is not read.
  static Values broadcast(const BFloat16* a, int64_t present) {
    uint32_t pair = 0;
    std::memcpy(&pair, a, present == at_once ? sizeof(pair) : sizeof(BFloat16));
    return as_pairs(_mm512_set1_epi32(static_cast<int>(pair)));
  }
  static Floats multiply_add(Values a, Values b, Floats sum) { return _mm512_dpbf16_ps(sum, a, b); }

 private:
  static Values as_pairs(__m512i bits) { return std::bit_cast<__m512bh>(bits); }
};

inline constexpr int64_t panel_width_max = panel_columns<float>;

// The pairs of a depth, of which so many are multiplied at once: the last ones have zeros.
template <int64_t at_once>
int64_t pair_count(int64_t depth) {
  return (depth + at_once - 1) / at_once * (at_once / 2);
}

// The first `count` numbers of a row, at most 16, each in the lower half of 4 bytes.
inline __m512i load_16(const BFloat16* row, int64_t count) {
  const auto first = static_cast<__mmask16>((1U << std::clamp<int64_t>(count, 0, 16)) - 1);
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, row));
}

// target[c] = (row[c], next[c]) for the first `valid` columns, and zeros up to `width`. A row that is null is of zeros.
inline void interleave(const BFloat16* row, const BFloat16* next, int64_t valid, float* target, int64_t width) {
  for (int64_t c = 0; c < width; c += 16) {
    __m512i pairs = row ? load_16(row + c, valid - c) : _mm512_setzero_si512();
    if (next) pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(load_16(next + c, valid - c), 16));
    _mm512_storeu_si512(target + c, pairs);
  }
}

// Two rows beside each other, pair by pair: target[k, c] = (source[2 k, c], source[2 k + 1, c]), in whole vectors.
inline void interleave_rows(ConstRows source, int64_t rows, int64_t columns, Rows target) {
  const int64_t width = (columns + 15) / 16 * 16;
  for (int64_t r = 0; r < rows; r += 2) {
    const BFloat16* const next = r + 1 < rows ? row<BFloat16>(source, r + 1) : nullptr;
    interleave(row<BFloat16>(source, r), next, columns, reinterpret_cast<float*>(row<BFloat16>(target, r / 2)), width);
  }
}

// sums[i] += both numbers of pair i, for 16 pairs.
inline void add_pairs(const float* pairs, float* sums) {
  const __m512i both = _mm512_load_si512(pairs);
  const Floats even(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
  const Floats odd(_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)))));
  (Floats::loadu(sums) + even + odd).store(sums);
}

// Panels of a matrix [depth, columns].
template <int64_t at_once>
void pack_pairs(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  constexpr int64_t panels_at_once = 16;
  const int64_t pairs = pair_count<at_once>(to.depth);
  for (int64_t panel = first_panel; panel < last_panel; panel += panels_at_once) {
    const int64_t end = std::min(last_panel, panel + panels_at_once);
    const int64_t column = panel * panel_width_max;
    const int64_t columns = std::min(to.columns, end * panel_width_max) - column;
    // Row k from `column` on.
    const auto line = [&](int64_t k) { return k < to.depth ? row<BFloat16>(to.source, k) + column : nullptr; };
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const BFloat16* const even = line(2 * pair);
      const BFloat16* const odd = line(2 * pair + 1);
      for (int64_t p = panel; p < end; ++p) {
        const int64_t width = panel_width<float>(p, to.columns);
        const int64_t first = (p - panel) * panel_width_max;
        float* const target = static_cast<float*>(to.panels) + p * panel_width_max * pairs + pair * width;
        interleave(even ? even + first : nullptr, odd ? odd + first : nullptr, columns - first, target, width);
      }
    }
  }
}

// Panels of the transpose of a matrix [columns, depth], whose rows have the pairs as they are wanted.
template <int64_t at_once>
void pack_transposed_pairs(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  constexpr int64_t width = 16;
  const int64_t pairs = pair_count<at_once>(to.depth);
  alignas(64) BFloat16 square[width][2 * width];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t panel_size = panel_width<float>(panel, to.columns);
    float* const panel_data = static_cast<float*>(to.panels) + panel * panel_width_max * pairs;
    for (int64_t part = 0; part < panel_size; part += width) {
      const int64_t first = panel * panel_width_max + part;
      const int64_t rows = std::clamp<int64_t>(to.columns - first, 0, width);
      for (int64_t pair = 0; pair < pairs; pair += width) {
        const int64_t numbers = std::min(2 * width, to.depth - 2 * pair);
        float* const target = panel_data + pair * panel_size + part;
        if (rows == width && numbers == 2 * width) {
          transpose_16x16(row<BFloat16>(to.source, first) + 2 * pair, to.source.stride * int64_t{sizeof(BFloat16)},
                          target, panel_size);
          continue;
        }
        std::memset(square, 0, sizeof(square));
        for (int64_t r = 0; r < rows; ++r) {
          std::memcpy(square[r], row<BFloat16>(to.source, first + r) + 2 * pair, numbers * sizeof(BFloat16));
        }
        alignas(64) float transposed[width][width];
        transpose_16x16(square, sizeof(square[0]), transposed[0], width);
        for (int64_t s = 0; s < std::min(width, pairs - pair); ++s) {
          std::memcpy(target + s * panel_size, transposed[s], sizeof(transposed[s]));
        }
      }
    }
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY
