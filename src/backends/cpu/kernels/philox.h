// The random numbers of dropout: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) of
// the counters that ops/sequential.h says, for many elements at once.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/vec.h"

namespace fastops::cpu::CPU_CAPABILITY {

// Words of 32 bits, each in the lower half of 64; what is in the upper half means nothing, but in numbers that are
// counted.
struct Words {
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int width = 8;
  __m512i v;
  static Words of(uint32_t word) { return {_mm512_set1_epi64(word)}; }
  static Words counting_from(uint64_t number) {
    return {
        _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(number)), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0))};
  }
  Words operator*(Words b) const { return {_mm512_mul_epu32(v, b.v)}; }
  Words operator^(Words b) const { return {_mm512_xor_si512(v, b.v)}; }
  Words upper() const { return {_mm512_srli_epi64(v, 32)}; }
  void store(uint32_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(v)); }
#elif defined(CPU_CAPABILITY_AVX2)
  static constexpr int width = 4;
  __m256i v;
  static Words of(uint32_t word) { return {_mm256_set1_epi64x(word)}; }
  static Words counting_from(uint64_t number) {
    return {_mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(number)), _mm256_set_epi64x(3, 2, 1, 0))};
  }
  Words operator*(Words b) const { return {_mm256_mul_epu32(v, b.v)}; }
  Words operator^(Words b) const { return {_mm256_xor_si256(v, b.v)}; }
  Words upper() const { return {_mm256_srli_epi64(v, 32)}; }
  void store(uint32_t* to) const {
    const __m256i lower = _mm256_permutevar8x32_epi32(v, _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(lower));
  }
#else
  static constexpr int width = 1;
  uint64_t v;
  static Words of(uint32_t word) { return {word}; }
  static Words counting_from(uint64_t number) { return {number}; }
  Words operator*(Words b) const { return {uint64_t{static_cast<uint32_t>(v)} * static_cast<uint32_t>(b.v)}; }
  Words operator^(Words b) const { return {v ^ b.v}; }
  Words upper() const { return {v >> 32}; }
  void store(uint32_t* to) const { *to = static_cast<uint32_t>(v); }
#endif
};

// How many calls of Philox are computed at once.
constexpr int philox_calls = 16;
struct Counters {
  static constexpr int parts = philox_calls / Words::width;
  Words word[4][parts];

  // The four numbers of each call.
  void numbers(uint64_t seed, uint32_t (&numbers)[4][philox_calls]) {
    const Words multiplier0 = Words::of(0xD2511F53);
    const Words multiplier1 = Words::of(0xCD9E8D57);
    auto key0 = static_cast<uint32_t>(seed);
    auto key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int p = 0; p < parts; ++p) {
        const Words product0 = multiplier0 * word[0][p];
        const Words product1 = multiplier1 * word[2][p];
        word[0][p] = product1.upper() ^ word[1][p] ^ Words::of(key0);
        word[1][p] = product1;
        word[2][p] = product0.upper() ^ word[3][p] ^ Words::of(key1);
        word[3][p] = product0;
      }
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    for (int i = 0; i < 4; ++i) {
      for (int p = 0; p < parts; ++p) word[i][p].store(numbers[i] + p * Words::width);
    }
  }
};

// For 64 neighbours in a row, that begin with `column`: element 16 * i + c has the number [i][c].
inline void numbers_of_row(uint64_t seed, uint32_t stream, uint64_t row, int64_t column,
                           uint32_t (&numbers)[4][philox_calls]) {
  Counters counters;
  for (int p = 0; p < Counters::parts; ++p) {
    counters.word[0][p] = Words::counting_from(static_cast<uint64_t>(column / 4 + p * Words::width));
    counters.word[1][p] = Words::of(static_cast<uint32_t>(row));
    counters.word[2][p] = Words::of(static_cast<uint32_t>(row >> 32));
    counters.word[3][p] = Words::of(stream);
  }
  counters.numbers(seed, numbers);
}

// For 16 rows, that begin with `row`: element `column` + 16 * i of row r has the number [i][r]. The column is one of
// the first 16 of 64.
inline void numbers_of_column(uint64_t seed, uint32_t stream, uint64_t row, int64_t column,
                              uint32_t (&numbers)[4][philox_calls]) {
  Counters counters;
  for (int p = 0; p < Counters::parts; ++p) {
    const Words rows = Words::counting_from(row + static_cast<uint64_t>(p * Words::width));
    counters.word[0][p] = Words::of(static_cast<uint32_t>(column / 64 * 16 + column % 16));
    counters.word[1][p] = rows;
    counters.word[2][p] = rows.upper();
    counters.word[3][p] = Words::of(stream);
  }
  counters.numbers(seed, numbers);
}

}  // namespace fastops::cpu::CPU_CAPABILITY
