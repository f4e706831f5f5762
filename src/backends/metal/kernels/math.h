// exp, exp2, expm1, log1p, tanh, erf, sin and cos of a float, in arithmetic that rounds the same on every GPU and CPU.
//
// Metal has no expm1, log1p and erf, and its exp and tanh may be off by 4 and 5 ulp (units in the last place); some
// versions of its tanh overflow. Errors here are below 2 ulp, of sin and cos 2.2, tanh 3 (tests/metal/test_math.py);
// infinities, NaN and signed zeros come out as the mathematics has it. The polynomials are those of the CPU's vectors
// (tools/fit_polynomials.py).
#pragma once

#include <metal_stdlib>

namespace fastops {
namespace mps {

// 2^n for n from -126 to 127.
inline float power_of_two(int n) { return as_type<float>((n + 127) << 23); }

// x * 2^n, in two steps as 2^n itself may not be a normal number.
inline float scale(float x, int n) { return x * power_of_two(n >> 1) * power_of_two(n - (n >> 1)); }

// NaN becomes `low`.
inline float bounded(float x, float low, float high) { return x > low ? (x < high ? x : high) : low; }

// x = n ln 2 + r with |r| <= ln(2) / 2.
struct Reduced {
  int n;
  float r;
};
inline Reduced reduce(float x) {
  const float n = metal::rint(x * 1.442695041f);
  // ln 2 in two parts: products of the first with such n are exact.
  return {int(n), metal::fma(n, -1.428606765e-6f, metal::fma(n, -0.693145751953125f, x))};
}

// exp(r) - 1 for |r| <= ln(2) / 2.
inline float expm1_reduced(float r) {
  float q = metal::fma(1.387063297e-03f, r, 8.366254158e-03f);
  q = metal::fma(q, r, 4.166743532e-02f);
  q = metal::fma(q, r, 1.666654646e-01f);
  q = metal::fma(q, r, 4.999999702e-01f);
  return metal::fma(r * r, q, r);
}

// Below -104 the exponential is 0, above 89 infinite.
inline float exp(float x) {
  const Reduced x_ = reduce(bounded(x, -104.0f, 89.0f));
  const float y = scale(expm1_reduced(x_.r) + 1.0f, x_.n);
  return x == x ? y : x;
}

inline float exp2(float x) {
  const float limited = bounded(x, -151.0f, 129.0f);
  const float n = metal::rint(limited);
  const float y = scale(expm1_reduced((limited - n) * 0.6931471806f) + 1.0f, int(n));
  return x == x ? y : x;
}

// 2^n (exp(r) - 1 + 1 - 2^-n)
inline float expm1(float x) {
  const Reduced x_ = reduce(bounded(x, -20.0f, 89.0f));
  const float y = scale(expm1_reduced(x_.r) + (1.0f - scale(1.0f, -x_.n)), x_.n);
  return x == x ? metal::copysign(y, x) : x;
}

// tanh(|x|) = -e / (e + 2) with e = expm1(-2 |x|); from |x| = 9.5 on it is 1.
inline float tanh(float x) {
  const float size = metal::fabs(x);
  const float e = expm1(-2.0f * (size > 9.5f ? 9.5f : size));
  return metal::copysign(e / (e + 2.0f), x);
}

inline float log1p(float x) {
  if (metal::fabs(x) < 5.9604645e-08f) return x;
  if (!(x > -1.0f)) return x == -1.0f ? -INFINITY : NAN;
  if (x == INFINITY) return x;
  const float u = x + 1.0f;
  const float lost = (x - (u - 1.0f)) / u;  // what the sum lost, as a change of its logarithm
  // u = m 2^e with m from 3/4 to 3/2
  const int exponent = (as_type<int>(u) - 0x3f400000) >> 23;
  const float e = float(exponent);
  const float f = scale(u, -exponent) - 1.0f;
  float q = metal::fma(-4.512202367e-02f, f, 1.046982333e-01f);
  q = metal::fma(q, f, -1.316401660e-01f);
  q = metal::fma(q, f, 1.447824836e-01f);
  q = metal::fma(q, f, -1.664698571e-01f);
  q = metal::fma(q, f, 1.999082118e-01f);
  q = metal::fma(q, f, -2.500010431e-01f);
  q = metal::fma(q, f, 3.333345056e-01f);
  float tail = metal::fma(e, 1.428606765e-6f, lost);
  tail = metal::fma(f * f, metal::fma(f, q, -0.5f), tail);
  return metal::fma(e, 0.693145751953125f, f + tail);
}

// Up to 1 a polynomial in x; beyond, 1 - exp(-x q(x)), which is 1 from 3.95 on.
inline float erf(float x) {
  const float size = metal::fabs(x);
  if (!(size > 1.0f)) {
    const float square = x * x;
    float p = metal::fma(7.806903159e-05f, square, -7.997853099e-04f);
    p = metal::fma(p, square, 5.187162198e-03f);
    p = metal::fma(p, square, -2.685334720e-02f);
    p = metal::fma(p, square, 1.128357872e-01f);
    p = metal::fma(p, square, -3.761262596e-01f);
    p = metal::fma(p, square, 1.283791661e-01f);
    return metal::fma(x, p, x);
  }
  const float t = size > 3.95f ? 3.95f : size;
  float q = metal::fma(1.395779600e-05f, t, -3.505490604e-04f);
  q = metal::fma(q, t, 3.757316852e-03f);
  q = metal::fma(q, t, -2.400976047e-02f);
  q = metal::fma(q, t, 1.065305397e-01f);
  q = metal::fma(q, t, 6.349697113e-01f);
  q = metal::fma(q, t, 1.128694296e+00f);
  return metal::copysign(1.0f - exp(-(t * q)), x);
}

// x - k pi for k <= 2^15 and what is left no larger than pi / 2, with pi in three parts.
inline float subtract_half_turns(float x, float k) {
  const float near = metal::fma(-k, 3.14159274f, x);  // exact
  return metal::fma(-k, -3.43024902e-15f, metal::fma(-k, -8.74227766e-08f, near));
}

// sin(r) for |r| <= pi / 2; for an odd n with the other sign.
inline float sin_reduced(float r, int n) {
  const float square = r * r;
  float q = metal::fma(2.605783948e-06f, square, -1.980966626e-04f);
  q = metal::fma(q, square, 8.333068341e-03f);
  q = metal::fma(q, square, -1.666665971e-01f);
  const float y = metal::fma(r * square, q, r);
  return n & 1 ? -y : y;
}

// Beyond, where pi in three parts does not suffice, Metal's own, which may be off by 4 ulp.
constant constexpr float most_by_half_turns = 65536.0f;

inline float sin(float x) {
  const float size = metal::fabs(x);
  if (!(size <= most_by_half_turns)) return metal::precise::sin(x);
  const float n = metal::rint(size * 0.318309886f);
  return metal::copysign(1.0f, x) * sin_reduced(subtract_half_turns(size, n), int(n));
}

// By the zero that is nearest, n + 1/2 half turns.
inline float cos(float x) {
  const float size = metal::fabs(x);
  if (!(size <= most_by_half_turns)) return metal::precise::cos(x);
  const float n = metal::rint(metal::fma(size, 0.318309886f, -0.5f));
  return -sin_reduced(subtract_half_turns(size, n + 0.5f), int(n));
}

}  // namespace mps
}  // namespace fastops
