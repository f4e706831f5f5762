// Steps on blocks of whole rows (ops/sequential.h), which lie one after another in the type that is computed with:
// between matrices and blocks, normalization, scales, dropout.
//
// Means and variances are sums of 4 vectors' elements over the row in the cache, in two passes: the error is that of
// about n / (4 * width) additions. Sums over rows are those of a block, added up for a part and then for all.
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/kernels/vec.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// step(i, count, ones) for each vector of n numbers; `ones` are 1 for the first `count`, and 0.
template <class S, class Step>
void for_each_vector(int64_t n, Step step) {
  using V = Vec<S>;
  alignas(64) static constexpr auto ones = [] {
    std::array<S, V::width> numbers{};
    numbers.fill(1);
    return numbers;
  }();
  int64_t i = 0;
  for (; i + V::width <= n; i += V::width) step(i, std::integral_constant<int64_t, V::width>(), V(S(1)));
  if (i < n) step(i, n - i, V(load_part(ones.data(), n - i)));
}

template <class S>
Vec<S> load(const void* p, int64_t i, int64_t count) {
  return Vec<S>(load_part(static_cast<const S*>(p) + i, count));
}
template <class S>
void store(Vec<S> value, void* p, int64_t i, int64_t count) {
  store_part(value.v, static_cast<S*>(p) + i, count);
}

// term(i, count, ones) added up over a row.
template <class S, class Term>
S sum_of(int64_t n, Term term) {
  Vec<S> sums[4] = {S(0), S(0), S(0), S(0)};
  int which = 0;
  for_each_vector<S>(n, [&](int64_t i, auto count, Vec<S> ones) {
    Vec<S>& sum = sums[which];
    which = (which + 1) % 4;
    sum = sum + term(i, count, ones);
  });
  const Vec<S> sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return at::vec::vec_reduce_all<S>([](auto a, auto b) { return a + b; }, sum.v);
}

// ---- between matrices and blocks ----

template <class Storage>
void widen(ConstRows source, int64_t rows, int64_t columns, bool add, void* block) {
  using P = Packet<Storage>;
  using S = Compute<Storage>;
  for (int64_t r = 0; r < rows; ++r) {
    const Storage* from = row<Storage>(source, r);
    S* const to = static_cast<S*>(block) + r * columns;
    for (int64_t i = 0; i < columns; i += P::width) {
      const int64_t count = std::min(P::width, columns - i);
      const P packet = P::load(from + i, count);
      for (int k = 0; k < P::parts && k * P::Number::width < count; ++k) {
        const int64_t part = std::min(P::Number::width, count - k * P::Number::width);
        S* const p = to + i + k * P::Number::width;
        store(add ? load<S>(p, 0, part) + packet.part[k] : packet.part[k], p, 0, part);
      }
    }
  }
}

template <class Storage>
void narrow(const void* block, int64_t rows, int64_t columns, Rows target) {
  using P = Packet<Storage>;
  using S = Compute<Storage>;
  for (int64_t r = 0; r < rows; ++r) {
    const S* from = static_cast<const S*>(block) + r * columns;
    Storage* const to = row<Storage>(target, r);
    for (int64_t i = 0; i < columns; i += P::width) {
      const int64_t count = std::min(P::width, columns - i);
      P packet{};
      for (int k = 0; k < P::parts && k * P::Number::width < count; ++k) {
        const int64_t first = k * P::Number::width;
        packet.part[k] = load<S>(from + i + first, 0, std::min(P::Number::width, count - first));
      }
      packet.store(to + i, count);
    }
  }
}

// ---- normalization and scales ----

// y = x * weight + bias
template <class S>
Vec<S> affine(Vec<S> value, const void* weight, const void* bias, int64_t i, int64_t count) {
  if (weight) value = value * load<S>(weight, i, count);
  return bias ? value + load<S>(bias, i, count) : value;
}

template <class S>
void normalize(const NormArguments& norm, const void* x, void* normalized, void* y, void* multipliers, int64_t rows,
               int64_t columns) {
  const S n = static_cast<S>(columns);
  for (int64_t r = 0; r < rows; ++r) {
    const S* const from = static_cast<const S*>(x) + r * columns;
    const auto at = [&](int64_t i, int64_t count) { return load<S>(from, i, count); };
    const S mean =
        norm.centered ? sum_of<S>(columns, [&](int64_t i, auto count, auto) { return at(i, count); }) / n : S(0);
    const S squares = sum_of<S>(columns, [&](int64_t i, auto count, Vec<S> ones) {
      const Vec<S> centered = (at(i, count) - mean) * ones;
      return centered * centered;
    });
    const S multiplier = S(1) / std::sqrt(squares / n + static_cast<S>(norm.eps));
    if (multipliers) static_cast<S*>(multipliers)[r] = multiplier;
    S* const kept = normalized ? static_cast<S*>(normalized) + r * columns : nullptr;
    S* const to = y ? static_cast<S*>(y) + r * columns : nullptr;
    for_each_vector<S>(columns, [&](int64_t i, auto count, auto) {
      const Vec<S> value = (at(i, count) - mean) * multiplier;
      if (kept) store(value, kept, i, count);
      if (to) store(affine(value, norm.weight, norm.bias, i, count), to, i, count);
    });
  }
}

template <class S>
void normalize_backward(const NormArguments& norm, const void* normalized, const void* multipliers, void* grad,
                        int64_t rows, int64_t columns) {
  const S n = static_cast<S>(columns);
  for (int64_t r = 0; r < rows; ++r) {
    const S* const value = static_cast<const S*>(normalized) + r * columns;
    S* const g = static_cast<S*>(grad) + r * columns;
    const auto scaled = [&](int64_t i, int64_t count) {
      return affine(load<S>(g, i, count), norm.weight, nullptr, i, count);
    };
    const S mean =
        norm.centered ? sum_of<S>(columns, [&](int64_t i, auto count, auto) { return scaled(i, count); }) / n : S(0);
    const S along =
        sum_of<S>(columns, [&](int64_t i, auto count, auto) { return scaled(i, count) * load<S>(value, i, count); }) /
        n;
    const S multiplier = static_cast<const S*>(multipliers)[r];
    for_each_vector<S>(columns, [&](int64_t i, auto count, auto) {
      const Vec<S> rest = scaled(i, count) - mean - load<S>(value, i, count) * along;
      store(rest * multiplier, g, i, count);
    });
  }
}

template <class S>
void scale(const void* x, const void* weight, void* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for_each_vector<S>(columns, [&](int64_t i, auto count, auto) {
      const int64_t at = r * columns + i;
      store(load<S>(x, at, count) * load<S>(weight, i, count), y, at, count);
    });
  }
}

// ---- sums over rows ----

template <class S>
void add_to_sums(const void* grad, const void* factor, void* sums, int64_t rows, int64_t columns) {
  for_each_vector<S>(columns, [&](int64_t i, auto count, auto) {
    Vec<S> sum(S(0));
    for (int64_t r = 0; r < rows; ++r) {
      const Vec<S> g = load<S>(grad, r * columns + i, count);
      sum = sum + (factor ? g * load<S>(factor, r * columns + i, count) : g);
    }
    store(load<S>(sums, i, count) + sum, sums, i, count);
  });
}

// ---- dropout ----

// Words of 32 bits, each in the lower half of 64; what is in the upper half means nothing.
struct Words {
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int width = 8;
  __m512i v;
  static Words of(uint32_t word) { return {_mm512_set1_epi64(word)}; }
  static Words counting_from(uint32_t word) {
    return {_mm512_add_epi64(_mm512_set1_epi64(word), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0))};
  }
  Words operator*(Words b) const { return {_mm512_mul_epu32(v, b.v)}; }
  Words operator^(Words b) const { return {_mm512_xor_si512(v, b.v)}; }
  Words upper() const { return {_mm512_srli_epi64(v, 32)}; }
  void store(uint32_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(v)); }
#elif defined(CPU_CAPABILITY_AVX2)
  static constexpr int width = 4;
  __m256i v;
  static Words of(uint32_t word) { return {_mm256_set1_epi64x(word)}; }
  static Words counting_from(uint32_t word) {
    return {_mm256_add_epi64(_mm256_set1_epi64x(word), _mm256_set_epi64x(3, 2, 1, 0))};
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
  static Words counting_from(uint32_t word) { return {word}; }
  Words operator*(Words b) const { return {uint64_t{static_cast<uint32_t>(v)} * static_cast<uint32_t>(b.v)}; }
  Words operator^(Words b) const { return {v ^ b.v}; }
  Words upper() const { return {v >> 32}; }
  void store(uint32_t* to) const { *to = static_cast<uint32_t>(v); }
#endif
};

// How many calls of Philox are computed at once, and the elements that share them (ops/sequential.h).
constexpr int lanes = 16;
constexpr int64_t group = 4 * lanes;

// Philox4x32-10 of the counters (first + lane, row, row >> 32, stream).
void philox(uint64_t seed, uint32_t first, uint64_t row, uint32_t stream, uint32_t (&numbers)[4][lanes]) {
  constexpr int parts = lanes / Words::width;
  const Words multiplier0 = Words::of(0xD2511F53);
  const Words multiplier1 = Words::of(0xCD9E8D57);
  Words c[4][parts];
  for (int p = 0; p < parts; ++p) {
    c[0][p] = Words::counting_from(first + p * Words::width);
    c[1][p] = Words::of(static_cast<uint32_t>(row));
    c[2][p] = Words::of(static_cast<uint32_t>(row >> 32));
    c[3][p] = Words::of(stream);
  }
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int p = 0; p < parts; ++p) {
      const Words product0 = multiplier0 * c[0][p];
      const Words product1 = multiplier1 * c[2][p];
      c[0][p] = product1.upper() ^ c[1][p] ^ Words::of(key0);
      c[1][p] = product1;
      c[2][p] = product0.upper() ^ c[3][p] ^ Words::of(key1);
      c[3][p] = product0;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  for (int i = 0; i < 4; ++i) {
    for (int p = 0; p < parts; ++p) c[i][p].store(numbers[i] + p * Words::width);
  }
}

template <class S>
void dropout(const DropoutArguments& dropout, const void* x, void* factors, void* y, int64_t first_row, int64_t rows,
             int64_t columns) {
  const S scale = static_cast<S>(dropout.scale);
  const uint32_t threshold = dropout.threshold;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; c += group) {
      uint32_t numbers[4][lanes];
      philox(dropout.seed, static_cast<uint32_t>(c / 4), static_cast<uint64_t>(first_row + r), dropout.stream, numbers);
      alignas(64) S kept[group];
      for (int i = 0; i < 4; ++i) {
        for (int l = 0; l < lanes; ++l) kept[i * lanes + l] = numbers[i][l] >= threshold ? scale : S(0);
      }
      const int64_t at = r * columns + c;
      for_each_vector<S>(std::min(group, columns - c), [&](int64_t i, auto count, auto) {
        const Vec<S> factor = load<S>(kept, i, count);
        const Vec<S> value = x ? load<S>(x, at + i, count) * factor : factor;
        if (factors) store(factor, factors, at + i, count);
        if (y) store(value, y, at + i, count);
      });
    }
  }
}

template <class S>
void multiply(const void* factors, void* grad, int64_t n) {
  for_each_vector<S>(n, [&](int64_t i, auto count, auto) {
    store(load<S>(grad, i, count) * load<S>(factors, i, count), grad, i, count);
  });
}

template <class Storage>
RowKernels row_kernels() {
  using S = Compute<Storage>;
  return {widen<Storage>, narrow<Storage>, normalize<S>, normalize_backward<S>,
          scale<S>,       add_to_sums<S>,  dropout<S>,   multiply<S>};
}

}  // namespace

void add_row_kernels(KernelTable& table) {
  const auto at = [&](Dtype dtype) -> RowKernels& { return table.rows[static_cast<int>(dtype)]; };
  at(Dtype::float32) = row_kernels<float>();
  at(Dtype::float64) = row_kernels<double>();
  at(Dtype::bfloat16) = row_kernels<c10::BFloat16>();
  at(Dtype::float16) = row_kernels<c10::Half>();
}

}  // namespace fastops::cpu::CPU_CAPABILITY
