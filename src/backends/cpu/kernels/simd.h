// What the kernels need of a SIMD vector and at::vec does not have, or has in a slower form.
//
// Error of `bounded_quotient` and `quotient`: with AVX-512 0.50x units in the last place (a 14-bit reciprocal and a
// correction of the quotient by its exact remainder, as in Markstein, "IA-64 and Elementary Functions", 2000),
// elsewhere correctly rounded. `reciprocal`: below 0.6 units.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <bit>
#include <cstdint>

namespace fastops::cpu::CPU_CAPABILITY {

template <class S>
using Vectorized = at::vec::Vectorized<S>;
using Floats = Vectorized<float>;
using Doubles = Vectorized<double>;
using at::vec::fmadd;

// SVE with vectors of 256 bits, or NEON, whose vectors those of at::vec are on Arm elsewhere.
#if defined(CPU_CAPABILITY_SVE256)
#define FASTOPS_SVE
#elif defined(__aarch64__)
#define FASTOPS_NEON
#endif

#if defined(FASTOPS_SVE)
inline svbool_t all() { return svptrue_b8(); }
#endif

// Instructions for vectors are known here: elsewhere at::vec's arrays are taken element by element.
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2) || defined(FASTOPS_NEON) || defined(FASTOPS_SVE)
#define FASTOPS_VECTORS
#endif

// f of each element, or of each two, for what there are no instructions for.
template <class S, class F>
Vectorized<S> each(Vectorized<S> x, F f) {
  alignas(64) S values[Vectorized<S>::size()];
  x.store(values);
  for (S& value : values) value = f(value);
  return Vectorized<S>::loadu(values);
}
template <class F>
Floats each(Floats a, Floats b, F f) {
  alignas(64) float x[Floats::size()], y[Floats::size()];
  a.store(x);
  b.store(y);
  for (int i = 0; i < Floats::size(); ++i) x[i] = f(x[i], y[i]);
  return Floats::loadu(x);
}

// c - a * b, fused where the hardware does that.
inline Floats subtract_product(Floats c, Floats a, Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_fnmadd_ps(a, b, c);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_fnmadd_ps(a, b, c);
#elif defined(FASTOPS_NEON)
  return vfmsq_f32(c, a, b);
#elif defined(FASTOPS_SVE)
  return svmls_f32_x(all(), c, a, b);
#else
  return fmadd(a.neg(), b, c);
#endif
}

// a * b - c, fused likewise.
inline Floats product_less(Floats c, Floats a, Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_fmsub_ps(a, b, c);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_fmsub_ps(a, b, c);
#else
  return subtract_product(c, a, b).neg();
#endif
}

// -(a * b) - c, fused likewise.
inline Floats negated_product_less(Floats c, Floats a, Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_fnmsub_ps(a, b, c);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_fnmsub_ps(a, b, c);
#elif defined(FASTOPS_SVE)
  return svnmad_f32_x(all(), a, b, c);
#else
  return fmadd(a, b, c).neg();
#endif
}

// ---- comparisons ----

#if defined(CPU_CAPABILITY_AVX512)

// AVX-512 has registers for the results of comparisons; at::vec turns them into vectors and back.
template <class S>
struct Mask;
template <>
struct Mask<float> {
  __mmask16 bits;
};
template <>
struct Mask<double> {
  __mmask8 bits;
};

template <int predicate>
Mask<float> compare(Floats a, Floats b) {
  return {_mm512_cmp_ps_mask(a, b, predicate)};
}
template <int predicate>
Mask<double> compare(Doubles a, Doubles b) {
  return {_mm512_cmp_pd_mask(a, b, predicate)};
}
template <class S>
Mask<S> less(Vectorized<S> a, Vectorized<S> b) {
  return compare<_CMP_LT_OQ>(a, b);
}
template <class S>
Mask<S> less_equal(Vectorized<S> a, Vectorized<S> b) {
  return compare<_CMP_LE_OQ>(a, b);
}
template <class S>
Mask<S> equal(Vectorized<S> a, Vectorized<S> b) {
  return compare<_CMP_EQ_OQ>(a, b);
}

// a where the mask is set, else b.
inline Floats choose(Mask<float> mask, Floats a, Floats b) { return _mm512_mask_blend_ps(mask.bits, b, a); }
inline Doubles choose(Mask<double> mask, Doubles a, Doubles b) { return _mm512_mask_blend_pd(mask.bits, b, a); }

#elif defined(FASTOPS_SVE)

// As has SVE.
template <class S>
struct Mask {
  vls_pred_t bits;
};
inline Mask<float> less(Floats a, Floats b) { return {svcmplt_f32(all(), a, b)}; }
inline Mask<double> less(Doubles a, Doubles b) { return {svcmplt_f64(all(), a, b)}; }
inline Mask<float> less_equal(Floats a, Floats b) { return {svcmple_f32(all(), a, b)}; }
inline Mask<double> less_equal(Doubles a, Doubles b) { return {svcmple_f64(all(), a, b)}; }
inline Mask<float> equal(Floats a, Floats b) { return {svcmpeq_f32(all(), a, b)}; }
inline Mask<double> equal(Doubles a, Doubles b) { return {svcmpeq_f64(all(), a, b)}; }
inline Floats choose(Mask<float> mask, Floats a, Floats b) { return svsel_f32(mask.bits, a, b); }
inline Doubles choose(Mask<double> mask, Doubles a, Doubles b) { return svsel_f64(mask.bits, a, b); }

#else

template <class S>
struct Mask {
  Vectorized<S> bits;
};
template <class S>
Mask<S> less(Vectorized<S> a, Vectorized<S> b) {
  return {a < b};
}
template <class S>
Mask<S> less_equal(Vectorized<S> a, Vectorized<S> b) {
  return {a <= b};
}
template <class S>
Mask<S> equal(Vectorized<S> a, Vectorized<S> b) {
  return {a == b};
}
template <class S>
Vectorized<S> choose(Mask<S> mask, Vectorized<S> a, Vectorized<S> b) {
  return Vectorized<S>::blendv(b, a, mask.bits);
}

#endif

#if defined(FASTOPS_VECTORS)
// Whether the mask is set anywhere.
template <class S>
bool any(Mask<S> mask) {
#if defined(CPU_CAPABILITY_AVX512)
  return mask.bits != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_movemask_epi8(std::bit_cast<__m256i>(mask.bits)) != 0;
#elif defined(FASTOPS_NEON)
  return vmaxvq_u32(std::bit_cast<uint32x4_t>(mask.bits)) != 0;
#else
  return svptest_any(all(), mask.bits);
#endif
}
#endif

// ---- signs ----

inline Floats magnitude(Floats x) {
#if defined(FASTOPS_NEON)
  return vabsq_f32(x);
#elif defined(FASTOPS_SVE)
  return svabs_f32_x(all(), x);
#else
  return x & Floats(std::bit_cast<float>(0x7fffffff));
#endif
}
// min(|x|, bound) for a positive bound; where x is NaN, the bound or NaN.
inline Floats least_magnitude(Floats x, Floats bound) {
#if defined(CPU_CAPABILITY_AVX512)
  constexpr int of_the_smaller_magnitude_clear_the_sign = 0b1010;
  return _mm512_range_ps(x, bound, of_the_smaller_magnitude_clear_the_sign);
#else
  return at::vec::clamp_max(magnitude(x), bound);
#endif
}
// -|x|
inline Floats negative_magnitude(Floats x) { return x | Floats(-0.0f); }
// y with the sign of x.
inline Floats with_sign_of(Floats x, Floats y) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i sign = _mm512_set1_epi32(static_cast<int32_t>(0x80000000));
  constexpr int bits_of_x_where_sign_else_y = 0xe4;
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y), sign, bits_of_x_where_sign_else_y));
#elif defined(FASTOPS_NEON)
  return vbslq_f32(vdupq_n_u32(0x80000000), x, y);
#else
  return magnitude(y) | (x & Floats(-0.0f));
#endif
}

// ---- powers of two ----

// v * 2^n for an integral n of magnitude below 252, rounded once.
inline Floats scale(Floats v, Floats n) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(v, n);
#elif defined(CPU_CAPABILITY_AVX2)
  // In two steps, as 2^n itself may not be a normal number.
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const auto power = [](__m256i k) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(v, power(half)), power(_mm256_sub_epi32(exponent, half)));
#elif defined(FASTOPS_NEON)
  const int32x4_t exponent = vcvtq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(exponent, 1);
  const auto power = [](int32x4_t k) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k, vdupq_n_s32(127)), 23)); };
  return vmulq_f32(vmulq_f32(v, power(half)), power(vsubq_s32(exponent, half)));
#elif defined(FASTOPS_SVE)
  return svscale_f32_x(all(), v, svcvt_s32_f32_x(all(), n));
#else
  return each(v, n, [](float x, float k) {
    const int32_t exponent = k == k ? static_cast<int32_t>(k) : 0;
    const auto power = [](int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
    return x * power(exponent >> 1) * power(exponent - (exponent >> 1));
  });
#endif
}

// x as an integer n and the rest r from -1/2 to 1/2; n beyond 2^+-150 may be nearer to 0 than x is.
struct Split {
  Floats n;
  Floats r;
};
inline Split split(Floats x) {
#if defined(CPU_CAPABILITY_AVX512)
  const Floats r = _mm512_reduce_ps(x, 0);  // 0 where x is infinite
  return {x - r, r};
#else
  const Floats bounded = at::vec::clamp(x, Floats(-151.0f), Floats(129.0f));
  const Floats n = bounded.round();
  return {n, bounded - n};
#endif
}

#if defined(FASTOPS_VECTORS)
// Added to a number of magnitude up to 2^22, this leaves it rounded to an integer n, whose lowest bit is that of the
// sum.
inline constexpr float integer_constant = 0x1.8p23f;

// y, with the other sign where the lowest bit of a sum is set.
inline Floats negate_where_odd(Floats y, Floats sum) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(sum), 31)));
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_xor_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum), 31)));
#elif defined(FASTOPS_NEON)
  return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(y), vshlq_n_u32(vreinterpretq_u32_f32(sum), 31)));
#else
  return svreinterpret_f32_u32(
      sveor_u32_x(all(), svreinterpret_u32_f32(y), svlsl_n_u32_x(all(), svreinterpret_u32_f32(sum), 31)));
#endif
}
#endif

// Added to a small number, this leaves it rounded to an integer n, with n + 127 in the lowest bits of the sum.
inline constexpr float rounding_constant = 0x1.8p23f + 127.0f;

// 2^n from n + rounding_constant, for n from -126 to 127.
inline Floats power_of_two(Floats sum) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(sum), 23));
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(sum), 23));
#elif defined(FASTOPS_NEON)
  return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(sum), 23));
#elif defined(FASTOPS_SVE)
  return svreinterpret_f32_s32(svlsl_n_s32_x(all(), svreinterpret_s32_f32(sum), 23));
#else
  return each(sum, [](float s) { return std::bit_cast<float>(std::bit_cast<uint32_t>(s) << 23); });
#endif
}

// The exponent e of x = m * 2^e with m from 3/4 to 3/2; x is positive and normal.
inline Floats exponent(Floats x) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i bits = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x3f400000));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(bits, 23));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i bits = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f400000));
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(bits, 23));
#elif defined(FASTOPS_NEON)
  const int32x4_t bits = vsubq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x3f400000));
  return vcvtq_f32_s32(vshrq_n_s32(bits, 23));
#elif defined(FASTOPS_SVE)
  const svint32_t bits = svsub_n_s32_x(all(), svreinterpret_s32_f32(x), 0x3f400000);
  return svcvt_f32_s32_x(all(), svasr_n_s32_x(all(), bits, 23));
#else
  return each(x, [](float a) { return static_cast<float>((std::bit_cast<int32_t>(a) - 0x3f400000) >> 23); });
#endif
}

// ---- quotients ----
//
// A division of 512 bits occupies Intel's divider for 16 cycles, in which two ports do 32 other operations.

// a / b for finite b from 1 to 2^125 and a * b^-1 that neither overflows nor is infinite.
inline Floats bounded_quotient(Floats a, Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 r = _mm512_rcp14_ps(b);
  const __m512 q = _mm512_mul_ps(a, r);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, b, a), r, q);
#else
  return a / b;
#endif
}

// a / (a + b) for a from -b/2 to 0, as if the sum were exact.
inline Floats quotient_by_sum(Floats a, Floats b) {
  const Floats sum = a + b;
#if defined(CPU_CAPABILITY_AVX512)
  const Floats r = _mm512_rcp14_ps(sum);
#else
  const Floats r = Floats(1.0f) / sum;
#endif
  const Floats q = a * r;
  // a and bq are within a factor of 2 of each other: their difference is exact.
  const Floats remainder = subtract_product(subtract_product(a, q, b), q, a);
  return fmadd(remainder, r, q);
}

// a / b for b >= 1, which may be infinite, and any a.
inline Floats quotient(Floats a, Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 r = _mm512_rcp14_ps(b);
  const __m512 q = _mm512_mul_ps(a, r);
  const __m512 remainder = _mm512_fnmadd_ps(q, b, a);
  // Where a or b is infinite the remainder is NaN, and q is the quotient already; where it is 0, q is exact and may be
  // -0.
  return _mm512_mask3_fmadd_ps(remainder, r, q, _mm512_cmp_ps_mask(remainder, _mm512_setzero_ps(), _CMP_NEQ_OQ));
#else
  return a / b;
#endif
}

// a / b for an a that is not infinite; 1 / b is computed when this is compiled.
inline Floats quotient_by_number(Floats a, float b) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  const Floats r(1.0f / b);
  const Floats q = a * r;
  return fmadd(subtract_product(a, q, Floats(b)), r, q);
#else
  return a / Floats(b);
#endif
}

// 1 / b for b from 1 to 2^100.
inline Floats reciprocal(Floats b) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 r = _mm512_rcp14_ps(b);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(r, b, _mm512_set1_ps(1.0f)), r, r);
#else
  return Floats(1.0f) / b;
#endif
}

}  // namespace fastops::cpu::CPU_CAPABILITY
