// 16-bit numbers as two vectors of floats, and back.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "backends/cpu/kernels/simd.h"

namespace fastops::cpu::CPU_CAPABILITY {

struct TwoFloats {
  Floats low;
  Floats high;
};

#if defined(FASTOPS_SVE)

// As they are in memory: at::vec has no vectors of float16, and its stores of bfloat16 go by way of the stack.
template <class Storage>
struct Halves {
  vls_uint16_t bits;
  static constexpr int64_t size() { return 16; }
};
template <class Storage>
TwoFloats widened(Halves<Storage> v) {
  if constexpr (std::is_same_v<Storage, c10::BFloat16>) {
    const svuint16_t zeros = svdup_n_u16(0);
    return {svreinterpret_f32_u16(svzip1_u16(zeros, v.bits)), svreinterpret_f32_u16(svzip2_u16(zeros, v.bits))};
  } else {
    // Of each 32 bits the conversion takes the lower half.
    const auto floats = [](svuint16_t twice) { return svcvt_f32_f16_x(all(), svreinterpret_f16_u16(twice)); };
    return {floats(svzip1_u16(v.bits, v.bits)), floats(svzip2_u16(v.bits, v.bits))};
  }
}
template <class Storage>
Halves<Storage> narrowed(Floats low, Floats high) {
  const auto halves = [](Floats v) {
    if constexpr (std::is_same_v<Storage, c10::BFloat16>) {
      return svreinterpret_u16_bf16(svcvt_bf16_f32_x(all(), v));
    } else {
      return svreinterpret_u16_f16(svcvt_f16_f32_x(all(), v));
    }
  };
  return {svuzp1_u16(halves(low), halves(high))};
}

#else

template <class Storage>
TwoFloats widened(Vectorized<Storage> v) {
  const auto [low, high] = at::vec::convert_to_float<Storage>(v);
  return {low, high};
}
template <class Storage>
Vectorized<Storage> narrowed(Floats low, Floats high) {
  return at::vec::convert_from_float<Storage>(low, high);
}

#if defined(FASTOPS_NEON)
// Of bfloat16, at::vec's take half as many instructions again.
using BFloat16s = Vectorized<c10::BFloat16>;
inline TwoFloats widened(BFloat16s v) {
  const auto bits = std::bit_cast<uint16x8_t>(v);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}
// Rounded to nearest, ties to even; NaN is the one that is positive and quiet.
template <>
inline BFloat16s narrowed<c10::BFloat16>(Floats low, Floats high) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return std::bit_cast<BFloat16s>(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
#else
  const auto rounded = [](Floats v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    return vsraq_n_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), vshlq_n_u32(bits, 15), 31);
  };
  const auto is_number = [](Floats v) { return vreinterpretq_u16_u32(vceqq_f32(v, v)); };
  const uint16x8_t result = vshrn_high_n_u32(vshrn_n_u32(rounded(low), 16), rounded(high), 16);
  const uint16x8_t numbers = vuzp1q_u16(is_number(low), is_number(high));
  return std::bit_cast<BFloat16s>(vbslq_u16(numbers, result, vdupq_n_u16(0x7fc0)));
#endif
}
#endif

// Of bfloat16 the numbers of even places and those of odd ones: neither takes a permutation. Back they are rounded to
// nearest, ties to even.
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
#define FASTOPS_EVENS_AND_ODDS
using BFloat16s = Vectorized<c10::BFloat16>;
struct EvensAndOdds {
  Floats evens;
  Floats odds;
};
#endif
#if defined(CPU_CAPABILITY_AVX512)
inline EvensAndOdds evens_and_odds(BFloat16s v) {
  const __m512i bits = v;
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
// In 16 bits: the upper half, and one more where the lower half and the upper one's last bit are more than a half. NaN
// stays NaN by its upper half, which has the bit that makes it quiet.
inline BFloat16s rounded(EvensAndOdds v) {
  const __m512i evens = _mm512_castps_si512(v.evens);
  const __m512i odds = _mm512_castps_si512(v.odds);
  const __mmask32 odd_places = 0xaaaaaaaa;
  const __m512i upper = _mm512_mask_blend_epi16(odd_places, _mm512_srli_epi32(evens, 16), odds);
  const __m512i lower = _mm512_mask_blend_epi16(odd_places, evens, _mm512_slli_epi32(odds, 16));
  const __m512i above = _mm512_adds_epu16(lower, _mm512_and_si512(upper, _mm512_set1_epi16(1)));
  const __mmask32 is_number = _mm512_cmple_epu16_mask(_mm512_add_epi16(upper, upper), _mm512_set1_epi16(-0x100));
  const __mmask32 up = _mm512_mask_cmpgt_epu16_mask(is_number, above, _mm512_set1_epi16(-0x8000));
  return BFloat16s(_mm512_mask_add_epi16(upper, up, upper, _mm512_set1_epi16(1)));
}
template <>
inline BFloat16s narrowed<c10::BFloat16>(Floats low, Floats high) {
  alignas(64) static constexpr int16_t places[] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                   1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return BFloat16s(_mm512_permutexvar_epi16(_mm512_load_si512(places), rounded({low, high})));
}
#elif defined(CPU_CAPABILITY_AVX2)
inline EvensAndOdds evens_and_odds(BFloat16s v) {
  const __m256i bits = v;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline BFloat16s rounded(EvensAndOdds v) {
  const auto upper_halves = [](__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last);
    return _mm256_or_si256(sum, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  };
  constexpr int odd_places = 0xaa;
  const __m256i evens = _mm256_srli_epi32(upper_halves(v.evens), 16);
  return BFloat16s(_mm256_blend_epi16(evens, upper_halves(v.odds), odd_places));
}
#endif

#endif

}  // namespace fastops::cpu::CPU_CAPABILITY
