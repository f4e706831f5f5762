// sin and cos of a GPU's float and double, in registers: for large arguments, those of the libraries call functions or
// take memory of the thread.
//
// x is taken as n half turns, in float64 n quarter turns, and a rest: by products with pi in three parts (Cody and
// Waite, "Software Manual for the Elementary Functions", 1980), and where it is too large for that by those bits of 1 /
// pi that matter there (Payne and Hanek, "Radian Reduction for Trigonometric Functions", 1983). The polynomials are
// those of the CPU's vectors (tools/fit_polynomials.py), and so are the bounds of the errors: 2.2 and 1 units in the
// last place.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backends/hip/kernels/device.h"

namespace fastops::hip::sines {

// 2 / pi, after 64 zeros.
static __constant__ const uint32_t words_of_2_over_pi[] = {
    0x00000000, 0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
    0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
    0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b,
    0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d,
    0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab};

// 32 times `count` bits of that, from one on.
template <int count>
struct Bits {
  uint32_t word[count];
};
template <int count>
FASTOPS_HOST_DEVICE Bits<count> bits_of_2_over_pi(int from) {
  const uint32_t* first = words_of_2_over_pi + (from >> 5);
  const int shift = from & 31;
  Bits<count> bits;
  for (int i = 0; i < count; ++i) {
    bits.word[i] = static_cast<uint32_t>((uint64_t{first[i]} << 32 | first[i + 1]) << shift >> 32);
  }
  return bits;
}

// ---- float ----

// size / pi in units of 2^-63, but for multiples of 2, for a size from 2^16 on.
FASTOPS_HOST_DEVICE inline uint64_t half_turns_of_large(float size) {
  uint32_t bits;
  memcpy(&bits, &size, sizeof(bits));
  const uint64_t significand = (bits & 0x7fffffu) | 0x800000u;
  // size = significand 2^e. Bits of 2 / pi that make multiples of four quarter turns are left out.
  const Bits<3> factor = bits_of_2_over_pi<3>(static_cast<int>(bits >> 23 & 0xffu) - 150 + 62);
  const uint64_t low = significand * factor.word[1] + (significand * factor.word[2] >> 32);
  return (significand * factor.word[0] << 32) + low;
}

// The sine of `size` and some more quarter turns, for a size from 0 on.
template <int quarters>
FASTOPS_HOST_DEVICE float sine_after(float size) {
  bool is_odd;
  float r;
  if (size < 65536.0f) {
    constexpr float shift = quarters * 0.5f;
    const float n = ::rintf(::fmaf(size, 0.318309886f, shift));
    const float k = n - shift;
    const float near = ::fmaf(-k, 3.14159274f, size);
    r = ::fmaf(-k, -3.43024902e-15f, ::fmaf(-k, -8.74227766e-08f, near));
    is_odd = static_cast<int>(n) & 1;
  } else {
    const uint64_t turns = half_turns_of_large(size) + (uint64_t{quarters} << 62);
    is_odd = (turns + (uint64_t{1} << 62)) >> 63;
    const uint64_t rest = turns - (static_cast<uint64_t>(is_odd) << 63);
    const int64_t whole = static_cast<int64_t>(rest);
    const float part = static_cast<float>(whole);
    const float lost = static_cast<float>(whole - static_cast<int64_t>(part));
    constexpr float scale = 3.40612167e-19f, scale_lost = -9.47839643e-27f;  // pi 2^-63
    r = ::fmaf(part, scale, ::fmaf(lost, scale, part * scale_lost));
    r += size - size;  // NaN where that is infinite or NaN
  }
  const float square = r * r;
  float q = ::fmaf(2.605783948e-06f, square, -1.980966626e-04f);
  q = ::fmaf(q, square, 8.333068341e-03f);
  q = ::fmaf(q, square, -1.666665971e-01f);
  const float y = ::fmaf(r * square, q, r);
  return is_odd ? -y : y;
}

// ---- double ----

// n quarter turns, but for multiples of 4, and the rest: high + low, which is what high lacks.
struct QuarterTurns {
  int n;
  double high;
  double low;
};

FASTOPS_HOST_DEVICE inline uint64_t high_product(uint64_t a, uint64_t b) {
  constexpr uint64_t half = 0xffffffff;
  const uint64_t low = (a & half) * (b & half), first = (a >> 32) * (b & half), second = (a & half) * (b >> 32);
  const uint64_t middle = (low >> 32) + (first & half) + (second & half);
  return (a >> 32) * (b >> 32) + (first >> 32) + (second >> 32) + (middle >> 32);
}

// For a size from 2^30 on.
FASTOPS_HOST_DEVICE inline QuarterTurns quarter_turns_of_large(double size) {
  uint64_t bits;
  memcpy(&bits, &size, sizeof(bits));
  const uint64_t significand = (bits & 0xfffffffffffff) | uint64_t{1} << 52;
  // Bits of 2 / pi that make multiples of four quarter turns are left out.
  const Bits<6> factor = bits_of_2_over_pi<6>(static_cast<int>(bits >> 52 & 0x7ff) - 1075 + 62);
  const auto pair = [&factor](int i) { return uint64_t{factor.word[i]} << 32 | factor.word[i + 1]; };
  const uint64_t carried = high_product(significand, pair(4));
  const uint64_t low = significand * pair(2) + carried;
  uint64_t high = significand * pair(0) + high_product(significand, pair(2)) + (low < carried);
  // In units of 2^-62 and 2^-126 quarter turns: to the nearest of these.
  const uint64_t nearest = (high + (uint64_t{1} << 61)) >> 62;
  high -= nearest << 62;
  const double first_part = static_cast<double>(static_cast<int64_t>(high));
  const int64_t left = static_cast<int64_t>(high - static_cast<uint64_t>(static_cast<int64_t>(first_part)));
  const double second_part = ::fma(static_cast<double>(low), 0x1p-64, static_cast<double>(left));
  const double turns = first_part + second_part;
  const double turns_lost = (first_part - turns) + second_part;
  const double scale = 1.5707963267948966 * 0x1p-62, scale_lost = 6.123233995736766e-17 * 0x1p-62;
  const double r = turns * scale;
  const double lost = ::fma(turns, scale, -r) + ::fma(turns, scale_lost, turns_lost * scale);
  return {static_cast<int>(nearest), r + (size - size), lost};
}

template <int quarters>
FASTOPS_HOST_DEVICE double sine_after(double size) {
  QuarterTurns r;
  if (size < 0x1p30) {
    const double k = ::rint(size * 0.63661977236758138);
    r.n = static_cast<int>(k);
    const double near = ::fma(-k, 1.5707963267948966, size);
    r.high = ::fma(-k, 6.123233995736766e-17, near);
    r.low = ::fma(-k, -1.4973849048591698e-33, ::fma(-k, 6.123233995736766e-17, near - r.high));
  } else {
    r = quarter_turns_of_large(size);
  }
  const int n = r.n + quarters;
  const double square = r.high * r.high;
  const double half_square = square * 0.5;
  const double one_less = 1.0 - half_square;
  double y;
  if (n & 1) {
    double q = ::fma(-1.1358514662538695e-11, square, 2.0875700430530263e-09);
    q = ::fma(q, square, -2.7557314176352877e-07);
    q = ::fma(q, square, 2.4801587288841821e-05);
    q = ::fma(q, square, -0.0013888888888873041);
    q = ::fma(q, square, 0.041666666666666595);
    y = one_less + ::fma(-r.high, r.low, ::fma(square * square, q, (1.0 - one_less) - half_square));
  } else {
    double q = ::fma(1.5896198133535922e-10, square, -2.505074722533497e-08);
    q = ::fma(q, square, 2.7557313618049607e-06);
    q = ::fma(q, square, -0.00019841269829580198);
    q = ::fma(q, square, 0.008333333333322108);
    q = ::fma(q, square, -0.1666666666666663);
    y = r.high + ::fma(r.high * square, q, r.low * one_less);
  }
  return n & 2 ? -y : y;
}

// ---- either ----

FASTOPS_HOST_DEVICE inline float sin(float x) { return ::copysignf(1.0f, x) * sine_after<0>(::fabsf(x)); }
FASTOPS_HOST_DEVICE inline double sin(double x) { return ::copysign(1.0, x) * sine_after<0>(::fabs(x)); }
FASTOPS_HOST_DEVICE inline float cos(float x) { return sine_after<1>(::fabsf(x)); }
FASTOPS_HOST_DEVICE inline double cos(double x) { return sine_after<1>(::fabs(x)); }

}  // namespace fastops::hip::sines
