// exp, expm1, log1p, tanh, erf, the normal distribution, sin and cos of SIMD vectors.
//
// float32: own polynomials, fitted for least maximum error by tools/fit_polynomials.py, after the classical argument
// reductions (Cody and Waite, "Software Manual for the Elementary Functions", 1980; Muller, "Elementary Functions",
// 3rd ed.). Straight-line code without branches, but for large sines; the one table fits into a register. Errors
// against the true value are below 2 ulp (a unit in the last place), of sin and cos below 2.2, for every float32
// (benchmarks/accuracy.py); infinities, NaN, signed zeros and denormals come out as the mathematics has it. float64:
// see math_float64.cpp.
#pragma once

#include <limits>

#include "backends/cpu/kernels/simd.h"

namespace fastops::cpu::CPU_CAPABILITY {

using at::vec::clamp_max;
using at::vec::clamp_min;

// Horner's rule, coefficients from the lowest on.
template <class... Rest>
Floats polynomial(Floats x, float lowest, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return Floats(lowest);
  } else {
    return fmadd(polynomial(x, rest...), x, Floats(lowest));
  }
}

// ln 2 in two parts: products of the first with integers up to 2^11 are exact.
inline constexpr float ln2_high = 0.693145751953125f;
inline constexpr float ln2_low = 1.428606765e-6f;

// An integer n close to x / ln 2, so that |x - n ln 2| <= ln(2) / 2, and the sum that power_of_two() takes.
struct Exponent {
  Floats sum;
  Floats n;
};
inline Exponent nearest_exponent(Floats x) {
  const Floats sum = fmadd(x, Floats(1.442695041f), Floats(rounding_constant));
  return {sum, sum - Floats(rounding_constant)};
}
// x - n ln 2
inline Floats subtract_exponent(Floats x, Floats n) {
  return fmadd(n, Floats(-ln2_low), fmadd(n, Floats(-ln2_high), x));
}

// q in exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2.
inline Floats exp_tail(Floats r) {
  return polynomial(r, 4.999999702e-01f, 1.666654646e-01f, 4.166743532e-02f, 8.366254158e-03f, 1.387063297e-03f);
}
inline Floats exp_reduced(Floats r) { return fmadd(fmadd(exp_tail(r), r, Floats(1.0f)), r, Floats(1.0f)); }
inline Floats expm1_reduced(Floats r) { return fmadd(r * r, exp_tail(r), r); }

#if defined(CPU_CAPABILITY_AVX512)
// Added to a number n, this leaves it rounded to sixteenths, those below 1 in the lowest bits of the sum.
inline constexpr float sixteenths_constant = 0x1.8p19f;

// A number for each sixteenth.
inline Floats from_table(const float* sixteenths, Floats sum) {
  return _mm512_permutexvar_ps(_mm512_castps_si512(sum), _mm512_load_ps(sixteenths));
}
// 2^(k / 16) and what these numbers lack.
alignas(64) inline constexpr float powers[] = {1.000000000e+00f, 1.044273734e+00f, 1.090507746e+00f, 1.138788581e+00f,
                                               1.189207077e+00f, 1.241857767e+00f, 1.296839595e+00f, 1.354255557e+00f,
                                               1.414213538e+00f, 1.476826191e+00f, 1.542210817e+00f, 1.610490322e+00f,
                                               1.681792855e+00f, 1.756252170e+00f, 1.834008098e+00f, 1.915206552e+00f};
alignas(64) inline constexpr float lacking[] = {
    0.000000000e+00f,  4.833470157e-08f,  -1.307753994e-08f, 5.386222313e-08f,  3.797635273e-08f, 4.496838102e-08f,
    -4.018999533e-08f, -1.012334927e-08f, 2.420323497e-08f,  -4.500898854e-08f, 8.070904833e-09f, 9.836217174e-09f,
    -2.475532668e-08f, -9.235770371e-09f, -1.123927795e-08f, 9.845328108e-09f};
#endif

// exp(x) for x from -104, below which it is 0, to 89, above which it is infinite.
inline Floats exp_bounded(Floats x) {
#if defined(CPU_CAPABILITY_AVX512)
  const Floats log2_e(1.442695041f), constant(sixteenths_constant);
  const Floats sum = fmadd(x, log2_e, constant);
  const Floats n = sum - constant;
  const Floats r = fmadd(x, Floats(1.925963033e-8f), product_less(n, x, log2_e));
  const Floats q = polynomial(r, 6.931471825e-01f, 2.402342856e-01f, 5.550236627e-02f);
  const Floats power = from_table(powers, sum);
  // By the power of the integer that is n or below it.
  return scale(fmadd(power * r, q, from_table(lacking, sum)) + power, n);
#else
  const Floats n = nearest_exponent(x).n;
  return scale(exp_reduced(subtract_exponent(x, n)), n);
#endif
}

inline Floats exp(Floats x) { return exp_bounded(at::vec::clamp(x, Floats(-104.0f), Floats(89.0f))); }

// 2^r for |r| <= 1/2, and 2^x with a relative error below 2^-23.
inline Floats exp2_reduced(Floats r) {
  const Floats q =
      polynomial(r, 6.931470037e-01f, 2.402224690e-01f, 5.550711229e-02f, 9.671294130e-03f, 1.326940604e-03f);
  return fmadd(q, r, Floats(1.0f));
}
inline Floats exp2(Floats x) {
  const auto [n, r] = split(x);
  return scale(exp2_reduced(r), n);
}

// exp(-|x|)
inline Floats decay(Floats x) {
#if defined(FASTOPS_NEON)
  const Floats bounded = clamp_min(negative_magnitude(x), Floats(-104.0f));
  // 2^n may not be a normal number; 2^(n + 24) is one, and exact, so that the last product rounds alone.
  const Floats constant(rounding_constant + 24.0f);
  const Floats sum = fmadd(bounded, Floats(1.442695041f), constant);
  return exp_reduced(subtract_exponent(bounded, sum - constant)) * power_of_two(sum) * Floats(0x1p-24f);
#else
  return exp_bounded(clamp_min(negative_magnitude(x), Floats(-104.0f)));
#endif
}

// 2^n (expm1(r) + 1 - 2^-n)
inline Floats expm1(Floats x) {
  const Floats bounded = at::vec::clamp(x, Floats(-20.0f), Floats(89.0f));
  const Floats n = nearest_exponent(bounded).n;
  const Floats one(1.0f);
  const Floats shifted = expm1_reduced(subtract_exponent(bounded, n)) + (one - scale(one, n.neg()));
  // -0 has lost its sign in the reduction.
  return with_sign_of(x, scale(shifted, n));
}

// tanh(|x|) = -E / (E + 2) with E = expm1(-2 |x|); from |x| = 9.5 on it is 1. The reduction is that of 2 |x| with
// everything halved, -|x| = n ln(2) / 2 + r, and the coefficients those of exp_tail(2r). As n is small and E matters
// less the larger it is, ln 2 need not be split.
inline Floats tanh(Floats x) {
  const Floats a = clamp_min(negative_magnitude(x), Floats(-9.5f));
  const Floats constant(rounding_constant + 1.0f);
  const Floats sum = fmadd(a, Floats(2.885390082f), constant);
  const Floats twice_power = power_of_two(sum);
  const Floats r = fmadd(sum - constant, Floats(-0.3465735903f), a);
  const Floats tail =
      polynomial(r, 9.999999404e-01f, 6.666618586e-01f, 3.333394825e-01f, 1.338600665e-01f, 4.438602552e-02f);
  const Floats half_expm1 = fmadd(r * r, tail, r);
  const Floats e = fmadd(twice_power, half_expm1, fmadd(twice_power, Floats(0.5f), Floats(-1.0f)));
  return with_sign_of(x, quotient_by_sum(e, Floats(2.0f)));
}

inline Floats log1p(Floats x) {
  const Floats u = x + Floats(1.0f);
  // What the sum lost, as a change of its logarithm.
  const Floats lost = (x - (u - Floats(1.0f))) / u;
  const Floats e = exponent(u);
  const Floats f = scale(u, e.neg()) - Floats(1.0f);
  const Floats q = polynomial(f, 3.333345056e-01f, -2.500010431e-01f, 1.999082118e-01f, -1.664698571e-01f,
                              1.447824836e-01f, -1.316401660e-01f, 1.046982333e-01f, -4.512202367e-02f);
  Floats tail = fmadd(e, Floats(ln2_low), lost);
  tail = fmadd(f * f, fmadd(f, q, Floats(-0.5f)), tail);
  Floats result = fmadd(e, Floats(ln2_high), f + tail);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  result = choose(less(magnitude(x), Floats(0x1p-24f)), x, result);
  result = choose(equal(x, Floats(infinity)), x, result);
  result = choose(equal(x, Floats(-1.0f)), Floats(-infinity), result);
  return choose(less(x, Floats(-1.0f)), Floats(std::numeric_limits<float>::quiet_NaN()), result);
}

// log(1 + exp(x)): near 0, where max(x, 0) and the logarithm would both be rounded, x/2 + log(2 cosh(x/2)), and beyond
// max(x, 0) + log1p(e), e = exp(-|x|), with log1p(e) = e + e^2 q(e) and what was lost in rounding e.
inline Floats log1p_exp(Floats x) {
  const Floats one(1.0f);
  const Floats square = x * x;
  const Floats even =
      square * polynomial(square, 1.249998808e-01f, -5.207153969e-03f, 3.435676044e-04f, -2.179118383e-05f);
  const Floats near = fmadd(x, Floats(0.5f), even) + Floats(6.931471806e-01f);

  const Floats argument = clamp_min(negative_magnitude(x), Floats(-104.0f));
  const Floats n = nearest_exponent(argument).n;
  const Floats p = expm1_reduced(subtract_exponent(argument, n));
  const Floats sum = p + one;
  const Floats e = scale(sum, n);
  const Floats lost = scale(p - (sum - one), n);
  const Floats q =
      polynomial(e, -4.999993145e-01f, 3.333047628e-01f, -2.495824695e-01f, 1.969374567e-01f, -1.535084993e-01f,
                 1.067316905e-01f, -5.759408697e-02f, 2.016826533e-02f, -3.310628003e-03f);
  const Floats log1p_e = fmadd(e * e, q, subtract_product(lost, lost, e)) + e;
  return choose(less(magnitude(x), one), near, clamp_min(x, Floats(0.0f)) + log1p_e);
}

// x - tanh(x), where both are close a polynomial; never -0.
inline Floats tanh_remainder(Floats x) {
  const Floats square = x * x;
  const Floats q = polynomial(square, 3.333333135e-01f, -1.333309859e-01f, 5.392243713e-02f, -2.153774351e-02f,
                              7.750955410e-03f, -1.758698374e-03f);
  return choose(less(magnitude(x), Floats(0.7f)), fmadd(x * square, q, Floats(0.0f)), x - tanh(x));
}

// Up to 1 a polynomial in x; beyond, 1 - exp(-x q(x)), which is 1 from 3.95 on.
inline Floats erf(Floats x) {
  const Floats a = magnitude(x);
  const Floats near = fmadd(a,
                            polynomial(a * a, 1.283791661e-01f, -3.761262596e-01f, 1.128357872e-01f, -2.685334720e-02f,
                                       5.187162198e-03f, -7.997853099e-04f, 7.806903159e-05f),
                            a);
  const Floats t = clamp_max(a, Floats(3.95f));
  const Floats q = polynomial(t, 1.128694296e+00f, 6.349697113e-01f, 1.065305397e-01f, -2.400976047e-02f,
                              3.757316852e-03f, -3.505490604e-04f, 1.395779600e-05f);
  const Floats far = Floats(1.0f) - exp_bounded((t * q).neg());
  return with_sign_of(x, choose(less(Floats(1.0f), a), far, near));
}

// The lower tail of the standard normal distribution at -a, a = |x|: Phi(-a) = 2^(-b^2) R(b) with b = a sqrt(log2(e) /
// 2), where R, the Mills ratio over sqrt(2 pi), is a rational function. The rounding of b is magnified by 2 b^2:
// relative error below 2 ulp up to a = 1, 20 ulp at 5, 100 at 13, and down to the denormals; PyTorch's is absolute.
struct NormalTail {
  Floats power;  // exp(-a^2 / 2)
  Floats tail;   // Phi(-a)
};
inline NormalTail normal_tail(Floats x) {
  const Floats b = least_magnitude(x * Floats(0.8493218003f), Floats(12.3f));  // both are 0 from there on
  const Floats n = subtract_product(Floats(rounding_constant), b, b) - Floats(rounding_constant);
  const Floats e = scale(exp2_reduced(negated_product_less(n, b, b)), n);
  const Floats p =
      polynomial(b, 5.000000000e-01f, 5.151862502e-01f, 2.532447278e-01f, 6.601040065e-02f, 7.853914052e-03f);
  const Floats q =
      polynomial(b, 1.0f, 1.969810128e+00f, 1.663849711e+00f, 7.638787031e-01f, 1.948311925e-01f, 2.317920513e-02f);
  return {e, bounded_quotient(e * p, q)};
}

struct NormalFloats {
  Floats cumulative;
  Floats density;
};
inline NormalFloats normal(Floats x, NormalTail t) {
  return {choose(less(Floats(0.0f), x), Floats(1.0f) - t.tail, t.tail), t.power * Floats(0.3989422804f)};
}

#if defined(FASTOPS_VECTORS)

// x - k pi for k up to 2^15, and |x| up to 2^16, with pi in three parts: without rounding in the first step.
inline constexpr float most_by_half_turns = 65536.0f;
inline Floats subtract_half_turns(Floats x, Floats k) {
  const Floats near = subtract_product(x, k, Floats(3.14159274f));
  return subtract_product(subtract_product(near, k, Floats(-8.74227766e-08f)), k, Floats(-3.43024902e-15f));
}

// sin(r) for |r| <= pi / 2.
inline Floats sin_reduced(Floats r) {
  const Floats square = r * r;
  const Floats q = polynomial(square, -1.666665971e-01f, 8.333068341e-03f, -1.980966626e-04f, 2.605783948e-06f);
  return fmadd(r * square, q, r);
}

// y, and the C library's function where |x| is too large for what is above.
[[gnu::const, gnu::cold]] Floats with_large_sines(Floats x, Floats y);
[[gnu::const, gnu::cold]] Floats with_large_cosines(Floats x, Floats y);

inline Floats sin(Floats x) {
  const Floats a = magnitude(x);
  const Floats sum = fmadd(a, Floats(0.318309886f), Floats(integer_constant));
  const Floats r = subtract_half_turns(a, sum - Floats(integer_constant));
  const Floats y = negate_where_odd(sin_reduced(r), sum) ^ (x & Floats(-0.0f));
  if (any(less(Floats(most_by_half_turns), a))) [[unlikely]]
    return with_large_sines(x, y);
  return y;
}

// By the zero that is nearest, n - 1/2 half turns, from which it falls for an odd n, as for n = 1.
inline Floats cos(Floats x) {
  const Floats a = magnitude(x);
  const Floats half(0.5f);
  const Floats sum = fmadd(a, Floats(0.318309886f), half) + Floats(integer_constant);
  const Floats r = subtract_half_turns(a, sum - Floats(integer_constant) - half);
  const Floats y = negate_where_odd(sin_reduced(r), sum);
  if (any(less(Floats(most_by_half_turns), a))) [[unlikely]]
    return with_large_cosines(x, y);
  return y;
}

#else

Floats sin(Floats x);
Floats cos(Floats x);

#endif

// Pure functions: a call whose result is not used is dropped.
[[gnu::const]] Doubles exp(Doubles x);
[[gnu::const]] Doubles expm1(Doubles x);
[[gnu::const]] Doubles tanh(Doubles x);
[[gnu::const]] Doubles log1p(Doubles x);
[[gnu::const]] Doubles erf(Doubles x);
[[gnu::const]] Doubles sin(Doubles x);
[[gnu::const]] Doubles cos(Doubles x);

}  // namespace fastops::cpu::CPU_CAPABILITY
