// What math.h has, for results that are stored in 16 bits, of which float16 has 11 and bfloat16 8.
//
// Relative errors are below 3e-6, but for what is magnified as said below: next to half a unit in the last
// place, 2.4e-4 of a float16 or more and 2e-3 of a bfloat16, they do not show. The polynomials are from
// tools/fit_polynomials.py, too.
#pragma once

#include "backends/cpu/kernels/math.h"

namespace fastops::cpu::CPU_CAPABILITY::in_16_bits {

// 2^r - 1 for |r| <= 1/2, with a relative error of 5e-7.
inline Floats exp2m1_reduced(Floats r) {
  return r * polynomial(r, 6.931471229e-01f, 2.402235866e-01f, 5.550523102e-02f, 9.665898979e-03f, 1.332749147e-03f);
}

inline Floats exp2(Floats x) {
  const auto [n, r] = split(x);
  const Floats q = polynomial(r, 6.931241751e-01f, 2.402409613e-01f, 5.590651184e-02f, 9.582970291e-03f);
  return scale(fmadd(q, r, Floats(1.0f)), n);
}

// The rounding of the exponent is magnified by it: 6e-8 |x|.
inline Floats exp(Floats x) { return exp2(x * Floats(1.442695041f)); }
inline Floats decay(Floats x) { return exp2(negative_magnitude(x) * Floats(1.442695041f)); }

// 2^n (2^r - 1 + 1 - 2^-n); from -25 on it is -1.
inline Floats expm1(Floats x) {
  const auto [n, r] = split(clamp_min(x, Floats(-25.0f)) * Floats(1.442695041f));
  const Floats one(1.0f);
  const Floats shifted = exp2m1_reduced(r) + (one - scale(one, n.neg()));
  return with_sign_of(x, scale(shifted, n));
}

// tanh(|x|) = -E / (E + 2) with E = expm1(-2 |x|) = 2^n - 1 + 2^n (2^r - 1).
inline Floats tanh(Floats x) {
  const Floats a = clamp_min(negative_magnitude(x), Floats(-12.0f));
  const Floats twice_log2_e(2.885390082f), one(1.0f);
#if defined(CPU_CAPABILITY_AVX512)
  const Floats sum = fmadd(a, twice_log2_e, Floats(sixteenths_constant));
  const Floats n = sum - Floats(sixteenths_constant);
  const Floats r = product_less(n, a, twice_log2_e);
  const Floats power = scale(sixteenth_power(sum), n);
  const Floats rest = r * polynomial(r, 6.931471825e-01f, 2.402335405e-01f, 5.550238118e-02f);
#else
  const auto [n, r] = split(a * twice_log2_e);
  const Floats power = scale(one, n);
  const Floats rest = exp2m1_reduced(r);
#endif
  const Floats e = fmadd(power, rest, power - one);
  return with_sign_of(x, bounded_quotient(e, e + Floats(2.0f)));
}

// Near 0 |x|^3 q(x^2); elsewhere |x| - 1 + 2 / (exp(2 |x|) + 1). A zero is +0.
inline Floats tanh_remainder(Floats x) {
  const Floats a = magnitude(x);
  const Floats square = a * a;
  const Floats q = polynomial(square, 3.333324492e-01f, -1.332545727e-01f, 5.284778401e-02f, -1.657783799e-02f);
  const Floats e = exp2(a * Floats(-2.885390082f));
  const Floats one(1.0f);
  const Floats far = bounded_quotient(e + e, e + one) + (a - one);
  return with_sign_of(x, choose(less(a, Floats(0.6f)), a * square * q, far)) + Floats(0.0f);
}

// max(x, 0) + log1p(e), e = exp(-|x|).
inline Floats log1p_exp(Floats x) {
  const Floats e = decay(x);
  const Floats q = polynomial(e, 9.999987483e-01f, -4.998701215e-01f, 3.310981691e-01f, -2.350510955e-01f,
                              1.492445171e-01f, -6.641819328e-02f, 1.414603647e-02f);
  return fmadd(e, q, clamp_min(x, Floats(0.0f)));
}

// As there, with R of lower degrees. The rounding of b and of its square is magnified by 3 b^2: relative error below
// 3e-6 up to |x| = 5.4, where float16 ends, and 2e-5 up to 13, where bfloat16 ends.
inline NormalTail normal_tail(Floats x) {
  const Floats b = least_magnitude(x * Floats(0.8493218003f), Floats(12.3f));
  const Floats power = exp2(subtract_product(Floats(0.0f), b, b));
  const Floats p = polynomial(b, 4.999997914e-01f, 4.277159870e-01f, 1.667479426e-01f, 2.812008560e-02f);
  const Floats q = polynomial(b, 1.0f, 1.794845223e+00f, 1.326714516e+00f, 4.918148816e-01f, 8.300053328e-02f);
  return {power, bounded_quotient(power * p, q)};
}

}  // namespace fastops::cpu::CPU_CAPABILITY::in_16_bits
