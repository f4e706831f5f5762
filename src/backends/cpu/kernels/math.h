// exp, expm1, log1p, tanh and erf of SIMD vectors.
//
// float32: own polynomials, fitted for least maximum error by tools/fit_polynomials.py, after the classical argument
// reductions (Cody and Waite, "Software Manual for the Elementary Functions", 1980; Muller, "Elementary Functions",
// 3rd ed.). Straight-line code: no tables and no branches. Errors against the true value are below 2 ulp (a unit in the
// last place); infinities, NaN, signed zeros and denormals come out as the mathematics has it.
// float64: the SLEEF functions that at::vec uses (1 ulp).
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <bit>
#include <cstdint>
#include <limits>

namespace fastops::cpu::CPU_CAPABILITY {

using Floats = at::vec::Vectorized<float>;
using Doubles = at::vec::Vectorized<double>;

// Horner's rule, coefficients from the lowest on.
template <class... Rest>
Floats polynomial(Floats x, float lowest, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return Floats(lowest);
  } else {
    return at::vec::fmadd(polynomial(x, rest...), x, Floats(lowest));
  }
}

// f of each element, for instruction sets without an instruction for it.
template <class F>
Floats each(Floats a, Floats b, F f) {
  alignas(64) float x[Floats::size()], y[Floats::size()];
  a.store(x);
  b.store(y);
  for (int i = 0; i < Floats::size(); ++i) x[i] = f(x[i], y[i]);
  return Floats::loadu(x);
}

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
#else
  return each(v, n, [](float x, float k) {
    const int32_t exponent = k == k ? static_cast<int32_t>(k) : 0;
    const auto power = [](int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
    return x * power(exponent >> 1) * power(exponent - (exponent >> 1));
  });
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
#else
  return each(x, x, [](float a, float) { return static_cast<float>((std::bit_cast<int32_t>(a) - 0x3f400000) >> 23); });
#endif
}

inline Floats magnitude(Floats x) { return x & Floats(std::bit_cast<float>(0x7fffffff)); }
// y with the sign of x, for y that is not negative or has that sign.
inline Floats with_sign_of(Floats x, Floats y) { return y | (x & Floats(-0.0f)); }
// a where the mask is set, else b.
inline Floats choose(Floats mask, Floats a, Floats b) { return Floats::blendv(b, a, mask); }

// x = n ln 2 + r with |r| <= ln(2) / 2, and expm1(r). ln 2 is split so that n times its first part is exact.
struct ReducedExp {
  Floats n;
  Floats expm1_r;
};
inline ReducedExp reduce_exp(Floats x) {
  const Floats n = (x * Floats(1.442695041f)).round();
  Floats r = at::vec::fmadd(n, Floats(-0.693145751953125f), x);
  r = at::vec::fmadd(n, Floats(-1.428606765e-6f), r);
  const Floats q =
      polynomial(r, 4.999999702e-01f, 1.666654646e-01f, 4.166743532e-02f, 8.366254158e-03f, 1.387063297e-03f);
  return {n, at::vec::fmadd(r * r, q, r)};
}

inline Floats exp(Floats x) {
  // Beyond these bounds the result is 0 or infinite.
  const ReducedExp e = reduce_exp(at::vec::clamp(x, Floats(-104.0f), Floats(89.0f)));
  return scale(e.expm1_r + Floats(1.0f), e.n);
}

inline Floats expm1(Floats x) {
  const ReducedExp e = reduce_exp(at::vec::clamp(x, Floats(-20.0f), Floats(89.0f)));
  // Half of it, as 2^n may be infinite where the result is not.
  const Floats half_power = scale(Floats(0.5f), e.n);
  const Floats half = at::vec::fmadd(half_power, e.expm1_r, half_power - Floats(0.5f));
  // For n = 0 the halves are not exact where they are denormal; -0 has lost its sign in the reduction.
  return with_sign_of(x, choose(e.n == Floats(0.0f), e.expm1_r, half + half));
}

// With E = exp(-2 |x|), tanh(|x|) = (1 - E) / (1 + E), or 1 - 2 E / (1 + E) where that is more exact; from |x| = 10 on
// it is 1. E = 2^n (1 + p), and 1 + 2^n and 1 - 2^n are exact as long as they matter.
inline Floats tanh(Floats x) {
  const Floats one(1.0f);
  const ReducedExp e = reduce_exp(at::vec::clamp(magnitude(x) * Floats(-2.0f), Floats(-20.0f), Floats(0.0f)));
  const Floats power = scale(one, e.n);
  const Floats denominator = at::vec::fmadd(power, e.expm1_r, one + power);
  const Floats difference = at::vec::fmadd(power.neg(), e.expm1_r, one - power);
  const Floats twice = at::vec::fmadd(power + power, e.expm1_r, power + power);
  const Floats large = e.n < Floats(-2.0f);
  const Floats quotient = choose(large, twice, difference) / denominator;
  return with_sign_of(x, choose(large, one - quotient, magnitude(quotient)));
}

inline Floats log1p(Floats x) {
  const Floats u = x + Floats(1.0f);
  // What the sum lost, as a change of its logarithm.
  const Floats lost = (x - (u - Floats(1.0f))) / u;
  const Floats e = exponent(u);
  const Floats f = scale(u, e.neg()) - Floats(1.0f);
  const Floats q = polynomial(f, 3.333345056e-01f, -2.500010431e-01f, 1.999082118e-01f, -1.664698571e-01f,
                              1.447824836e-01f, -1.316401660e-01f, 1.046982333e-01f, -4.512202367e-02f);
  Floats tail = at::vec::fmadd(e, Floats(1.428606765e-6f), lost);
  tail = at::vec::fmadd(f * f, at::vec::fmadd(f, q, Floats(-0.5f)), tail);
  Floats result = at::vec::fmadd(e, Floats(0.693145751953125f), f + tail);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  result = choose(magnitude(x) < Floats(0x1p-24f), x, result);
  result = choose(x == Floats(infinity), x, result);
  result = choose(x == Floats(-1.0f), Floats(-infinity), result);
  return choose(x < Floats(-1.0f), Floats(std::numeric_limits<float>::quiet_NaN()), result);
}

// Up to 1 a polynomial in x; beyond, 1 - exp(-x q(x)), which is 1 from 3.95 on.
inline Floats erf(Floats x) {
  const Floats a = magnitude(x);
  const Floats near =
      at::vec::fmadd(a,
                     polynomial(a * a, 1.283791661e-01f, -3.761262596e-01f, 1.128357872e-01f, -2.685334720e-02f,
                                5.187162198e-03f, -7.997853099e-04f, 7.806903159e-05f),
                     a);
  const Floats t = at::vec::clamp(a, Floats(0.0f), Floats(3.95f));
  const ReducedExp e =
      reduce_exp((t * polynomial(t, 1.128694296e+00f, 6.349697113e-01f, 1.065305397e-01f, -2.400976047e-02f,
                                 3.757316852e-03f, -3.505490604e-04f, 1.395779600e-05f))
                     .neg());
  const Floats far = Floats(1.0f) - scale(e.expm1_r + Floats(1.0f), e.n);
  return with_sign_of(x, choose(a > Floats(1.0f), far, near));
}

inline Doubles exp(Doubles x) { return x.exp(); }
inline Doubles expm1(Doubles x) { return x.expm1(); }
inline Doubles tanh(Doubles x) { return x.tanh(); }
inline Doubles log1p(Doubles x) { return x.log1p(); }
inline Doubles erf(Doubles x) { return x.erf(); }

}  // namespace fastops::cpu::CPU_CAPABILITY
