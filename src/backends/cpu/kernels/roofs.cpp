// Loops that do nothing but multiply and add, or copy: the roofs that other kernels are measured against.
#include "backends/cpu/roofs.h"

#include <ATen/cpu/vec/vec.h>

#include "backends/cpu/cpu_traits.h"
#include "compiler.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define FASTOPS_STREAM
#endif

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class S>
using Vectorized = at::vec::Vectorized<S>;

// Sums that do not wait for each other: at least latency times instructions per cycle, at most what the registers hold.
#if defined(CPU_CAPABILITY_AVX512) || defined(__aarch64__)
constexpr int chains = 16;
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int chains = 12;
#else
constexpr int chains = 4;  // each is two of the baseline's registers
#endif

template <class S>
float multiply_add(int64_t iterations) {
  Vectorized<S> sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = Vectorized<S>(S(i));
  const Vectorized<S> factor(S(0.999));
  const Vectorized<S> term(S(0.001));
  for (int64_t k = 0; k < iterations; ++k) {
    FASTOPS_UNROLL(16)
    for (int i = 0; i < chains; ++i) sums[i] = at::vec::fmadd(sums[i], factor, term);
  }
  S lanes[Vectorized<S>::size()];
  float total = 0;
  for (const auto& sum : sums) {
    sum.store(lanes);
    total += static_cast<float>(lanes[0]);
  }
  return total;
}

template <class S>
MultiplyAdd multiply_add_of() {
  return {multiply_add<S>, 2 * chains * Vectorized<S>::size()};
}

#if defined(CPU_CAPABILITY_AVX512)
// The instruction set has a name of its own: it is not part of the tier, so only this function may have it.
FASTOPS_TARGET("avx512bf16") float dot_product(int64_t iterations) {
  __m512 sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh zeros = _mm512_cvtne2ps_pbh(_mm512_setzero_ps(), _mm512_setzero_ps());
  for (int64_t k = 0; k < iterations; ++k) {
    FASTOPS_UNROLL(16)
    for (int i = 0; i < chains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], zeros, zeros);
  }
  float total = 0;
  for (const auto& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}
#endif

MultiplyAdd bfloat16_dot_product() {
#if defined(CPU_CAPABILITY_AVX512)
  if (cpu_traits().has_bfloat16) return {dot_product, 2 * chains * 32};
#endif
  return {nullptr, 0};
}

// Multiplied on the way, or the compiler would make a call of memcpy of it, which has its own mind about caches.
void copy(const float* in, float* out, int64_t n, float factor) {
  constexpr int64_t width = Vectorized<float>::size();
  const Vectorized<float> factors(factor);
  int64_t i = 0;
  for (; i + width <= n; i += width) (Vectorized<float>::loadu(in + i) * factors).store(out + i);
  for (; i < n; ++i) out[i] = in[i] * factor;
}

#ifdef FASTOPS_STREAM
#if defined(CPU_CAPABILITY_AVX512)
constexpr int64_t stream_width = 16;
void stream(const float* in, float* out, float factor) {
  _mm512_stream_ps(out, _mm512_mul_ps(_mm512_loadu_ps(in), _mm512_set1_ps(factor)));
}
#elif defined(CPU_CAPABILITY_AVX2)
constexpr int64_t stream_width = 8;
void stream(const float* in, float* out, float factor) {
  _mm256_stream_ps(out, _mm256_mul_ps(_mm256_loadu_ps(in), _mm256_set1_ps(factor)));
}
#else
constexpr int64_t stream_width = 4;
void stream(const float* in, float* out, float factor) {
  _mm_stream_ps(out, _mm_mul_ps(_mm_loadu_ps(in), _mm_set1_ps(factor)));
}
#endif

void copy_nontemporal(const float* in, float* out, int64_t n, float factor) {
  constexpr int64_t width_bytes = stream_width * sizeof(float);
  int64_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(out + i) % width_bytes != 0; ++i) out[i] = in[i] * factor;
  for (; i + stream_width <= n; i += stream_width) stream(in + i, out + i, factor);
  for (; i < n; ++i) out[i] = in[i] * factor;
  _mm_sfence();
}
#else
constexpr CopyKernel copy_nontemporal = copy;
#endif

}  // namespace

RoofKernels roof_kernels() {
  return {multiply_add_of<float>(), multiply_add_of<double>(), bfloat16_dot_product(), copy, copy_nontemporal};
}

}  // namespace fastops::cpu::CPU_CAPABILITY
