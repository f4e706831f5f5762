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

#endif

}  // namespace fastops::cpu::CPU_CAPABILITY
