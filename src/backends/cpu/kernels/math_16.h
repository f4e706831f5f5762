// What math.h has, for results that are stored in 16 bits, of which float16 has 11 and bfloat16 8.
//
// Relative errors are below 3e-6, but for what is magnified as said below: next to half a unit in the last place, 2e-4
// of a float16 or more and 2e-3 of a bfloat16, they do not show. tools/fit_polynomials.py has these polynomials, too.
#pragma once

#include "backends/cpu/kernels/math.h"

namespace fastops::cpu::CPU_CAPABILITY::in_16_bits {

// 2^r for |r| <= 1/2, and 2^r - 1 with a relative error of 5e-7.
inline Floats exp2_reduced(Floats r) {
  const Floats q = polynomial(r, 6.931241751e-01f, 2.402409613e-01f, 5.590651184e-02f, 9.582970291e-03f);
  return fmadd(q, r, Floats(1.0f));
}
inline Floats exp2m1_reduced(Floats r) {
  return r * polynomial(r, 6.931471229e-01f, 2.402235866e-01f, 5.550523102e-02f, 9.665898979e-03f, 1.332749147e-03f);
}

inline Floats exp2(Floats x) {
  const auto [n, r] = split(x);
  return scale(exp2_reduced(r), n);
}

// The rounding of the exponent is magnified by it: 6e-8 |x|.
inline Floats exp(Floats x) { return exp2(x * Floats(1.442695041f)); }

// 2^(n + shift) and r for n + r = x * factor and an n + shift from -126 to 127.
struct Power {
  Floats power;
  Floats r;
};
inline Power split_product(Floats x, Floats factor, float shift) {
  const Floats constant(rounding_constant + shift);
  const Floats sum = fmadd(x, factor, constant);
  return {power_of_two(sum), product_less(sum - constant, x, factor)};
}

// 2^(x * factor) for products from -150 to 0.
inline Floats exp2_of_product(Floats x, Floats factor) {
#if defined(CPU_CAPABILITY_AVX512)
  return exp2(x * factor);
#else
  const auto [power, r] = split_product(x, factor, 24.0f);
  return exp2_reduced(r) * power * Floats(0x1p-24f);
#endif
}

inline Floats decay(Floats x) {
  const Floats log2_e(1.442695041f);
#if defined(CPU_CAPABILITY_AVX512)
  return exp2(negative_magnitude(x) * log2_e);
#else
  return exp2_of_product(clamp_min(negative_magnitude(x), Floats(-104.0f)), log2_e);
#endif
}

// 2^n (2^r - 1) + 2^n - 1, by halves, as 2^n may be no number.
inline Floats expm1(Floats x) {
  const auto [half, r] = split_product(at::vec::clamp(x, Floats(-25.0f), Floats(89.0f)), Floats(1.442695041f), -1.0f);
  const Floats half_result = fmadd(half, exp2m1_reduced(r), half - Floats(0.5f));
  return with_sign_of(x, half_result + half_result);
}

// tanh(|x|) = -E / (E + 2) with E = expm1(-2 |x|).
inline Floats tanh(Floats x) {
  const auto [power, r] = split_product(clamp_min(negative_magnitude(x), Floats(-12.0f)), Floats(2.885390082f), 0.0f);
  const Floats e = fmadd(power, exp2m1_reduced(r), power - Floats(1.0f));
  return with_sign_of(x, bounded_quotient(e, e + Floats(2.0f)));
}

// Near 0 |x|^3 q(x^2); elsewhere |x| - 1 + 2 / (exp(2 |x|) + 1). A zero is +0.
inline Floats tanh_remainder(Floats x) {
  const Floats a = magnitude(x);
  const Floats square = a * a;
  const Floats q = polynomial(square, 3.333324492e-01f, -1.332545727e-01f, 5.284778401e-02f, -1.657783799e-02f);
  const Floats e = decay(a + a);
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
  const Floats power = exp2_of_product(b, b.neg());
  const Floats p = polynomial(b, 4.999997914e-01f, 4.277159870e-01f, 1.667479426e-01f, 2.812008560e-02f);
  const Floats q = polynomial(b, 1.0f, 1.794845223e+00f, 1.326714516e+00f, 4.918148816e-01f, 8.300053328e-02f);
  return {power, bounded_quotient(power * p, q)};
}

}  // namespace fastops::cpu::CPU_CAPABILITY::in_16_bits
