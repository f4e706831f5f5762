// Layers of networks in panels of pairs of bfloat16 (panel_rows.h, pairs.h): a pair of features of 16 rows is a vector,
// and weights are broadcast, pair by pair, from where they are.
#pragma once

#include "backends/cpu/kernels/pairs.h"
#include "backends/cpu/kernels/panel_rows.h"
#include "backends/cpu/kernels/plain_products.h"

namespace fastops::cpu::CPU_CAPABILITY {

// As Numbers of panel_rows.h: elements have the bits of pairs.
struct PairsOfRows {
  using Storage = BFloat16;
  using Element = float;
  static constexpr int64_t at_once = Pairs::at_once;
  static constexpr int64_t columns = 32;
  static constexpr bool as_stored = true;

  static void transpose(const BFloat16* rows, int64_t stride, float* panel, int64_t panel_stride) {
    transpose_16x16(rows, stride * int64_t{sizeof(BFloat16)}, panel, panel_stride);
  }
  static void load(const BFloat16* row, int64_t count, float* elements) {
    _mm512_storeu_si512(elements, _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << count) - 1), row));
  }
  static void store(const float* elements, BFloat16* row, int64_t count) {
    store_part(std::bit_cast<Vectorized<BFloat16>>(_mm512_loadu_si512(elements)), row, count);
  }
  static void set(float* panel, int64_t place, BFloat16 number) {
    std::memcpy(reinterpret_cast<char*>(panel) + place * int64_t{sizeof(number)}, &number, sizeof(number));
  }
  static BFloat16 get(const float* panel, int64_t place) {
    BFloat16 number;
    std::memcpy(&number, reinterpret_cast<const char*>(panel) + place * int64_t{sizeof(number)}, sizeof(number));
    return number;
  }
};

// The bits of a bfloat16 in the upper half of 4 bytes, rounded to nearest, ties to even; below them is anything.
inline __m512i rounded_up_in_place(Floats v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_blend_epi32(is_nan, rounded, _mm512_set1_epi32(0x7fc00000));
}

// Elements from the numbers of a panel: (even, odd), rounded to nearest, ties to even. The odd ones may be null, which
// are zeros. What is only multiplied may be 0 where it is subnormal, as it is for the products, which is faster.
template <bool only_multiplied>
void pair_features(const float* even, const float* odd, float* target, int64_t n) {
  // In two registers the evens lie before the odds.
  const __m512i order = [] {
    alignas(64) uint16_t places[32];
    for (int i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
    return _mm512_load_si512(places);
  }();
  for (int64_t i = 0; i < n; i += 16) {
    const Floats low = Floats::loadu(even + i);
    const Floats high = odd ? Floats::loadu(odd + i) : Floats(0.0F);
    __m512i pairs;
    if constexpr (only_multiplied) {
      pairs = _mm512_permutexvar_epi16(order, std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    } else {
      pairs = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(rounded_up_in_place(low), 16),
                                      rounded_up_in_place(high));
    }
    _mm512_storeu_si512(target + i, pairs);
  }
}
template <bool only_multiplied>
void pair_panel(const float* numbers, int64_t features, int64_t stride, float* elements) {
  for (int64_t c = 0; c < features; c += 2, numbers += 2 * stride, elements += stride) {
    pair_features<only_multiplied>(numbers, c + 1 < features ? numbers + stride : nullptr, elements, stride);
  }
}

// As PanelKernels; features are from a multiple of 32 on, and panels have room for one.
inline void read_pairs(ConstRows matrix, const PanelRows& rows, int64_t first, int64_t end, void* panel) {
  matrix.data = static_cast<const BFloat16*>(matrix.data) + first;
  read_panel<PairsOfRows>(matrix, rows, end - first, static_cast<float*>(panel) + first / 2 * rows.stride);
}
inline void write_pairs(const void* panel, Rows matrix, const PanelRows& rows, int64_t first, int64_t end) {
  matrix.data = static_cast<BFloat16*>(matrix.data) + first;
  write_panel<PairsOfRows>(static_cast<const float*>(panel) + first / 2 * rows.stride, matrix, rows, end - first);
}

// The most rows of such panels.
inline constexpr int64_t most_panel_rows = 128;

// A layer's outputs from `first` to `end`; multiply(c, next, sums) makes the sums, with the bias, of those from c on.
template <class Multiply>
void through_product_of_pairs(const UnpackedLayer& layer, const PanelRows& rows, int64_t first, int64_t end, void* y,
                              const Multiply& multiply) {
  // As many sums are in the L1 cache until they are elements: those of 32 features or more.
  constexpr int64_t most_sums = PairsOfRows::columns * most_panel_rows;
  alignas(64) float sums[most_sums];
  const int64_t stride = rows.stride;
  const int64_t step = most_sums / stride / PairsOfRows::columns * PairsOfRows::columns;
  for (int64_t c = first; c < end; c += step) {
    const int64_t next = std::min(end, c + step);
    const int64_t features = next - c;
    multiply(c, next, sums);
    float* const results = static_cast<float*>(y) + c / Pairs::at_once * stride;
    if (layer.kept.data && !layer.keeps_output) {
      pair_panel<false>(sums, features, stride, results);
      write_pairs(y, layer.kept, rows, c, next);
    }
    if (layer.activation) layer.activation->forward(sums, sums, features * stride, layer.params, /*stream=*/false);
    (layer.only_multiplied ? pair_panel<true> : pair_panel<false>)(sums, features, stride, results);
  }
  if (layer.kept.data && layer.keeps_output) write_pairs(y, layer.kept, rows, first, end);
}
inline void through_product_of_pairs(const UnpackedLayer& layer, const PanelRows& rows, int64_t first, int64_t end,
                                     const void* x, void* y) {
  const plain::Factors<BFloat16> weight{static_cast<const BFloat16*>(layer.weight.data), layer.weight.stride,
                                        Pairs::at_once};
  const auto* const bias = static_cast<const float*>(layer.bias);
  through_product_of_pairs(layer, rows, first, end, y, [&](int64_t c, int64_t next, float* sums) {
    plain::multiply<Pairs>(
        {weight.from_row(c), layer.in_features, static_cast<const BFloat16*>(x), Pairs::at_once * rows.stride,
         bias ? bias + c : nullptr, sums, rows.stride, /*adds=*/false, /*pads=*/true},
        0, next - c, rows.stride);
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
