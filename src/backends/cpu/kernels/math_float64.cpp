// exp, expm1, log1p, tanh, erf, sin and cos of float64 vectors: functions of their own, as they are too long to be
// inlined into every kernel. And the C library's functions of single elements, where there is nothing else.
//
// With AVX2, AVX-512, NEON and SVE: own polynomials, fitted for least maximum error by tools/fit_polynomials.py, after
// the argument reductions of math.h. What a rounding loses is carried along where it would show in the result (Dekker,
// "A floating-point technique for extending the available precision", 1971). Straight-line code: no tables and no
// branches, but for large sines. Errors are below 1 ulp (benchmarks/accuracy.py); infinities, NaN, signed zeros,
// denormals, overflow and underflow come out as the mathematics has it. Elsewhere the C library's functions, one
// element after another.
#include <cmath>
#include <cstddef>

#include "backends/cpu/kernels/math.h"

namespace fastops::cpu::CPU_CAPABILITY {
#if defined(FASTOPS_VECTORS)

namespace {

// ---- vectors ----

#if defined(CPU_CAPABILITY_AVX512)
// c - a * b and a * b - c, rounded once.
C10_ALWAYS_INLINE Doubles subtract_product(Doubles c, Doubles a, Doubles b) { return _mm512_fnmadd_pd(a, b, c); }
C10_ALWAYS_INLINE Doubles product_less(Doubles c, Doubles a, Doubles b) { return _mm512_fmsub_pd(a, b, c); }
// y with the sign of x.
C10_ALWAYS_INLINE Doubles with_sign_of(Doubles x, Doubles y) {
  constexpr int bits_of_x_where_sign_else_y = 0xe4;
  return _mm512_castsi512_pd(_mm512_ternarylogic_epi64(
      _mm512_castpd_si512(x), _mm512_castpd_si512(y), _mm512_castpd_si512(Doubles(-0.0)), bits_of_x_where_sign_else_y));
}
// 2^n from n + rounding_constant<1023>, for n from -1022 to 1023.
C10_ALWAYS_INLINE Doubles power_of_two(Doubles sum) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(sum), 52));
}
#elif defined(FASTOPS_SVE)
C10_ALWAYS_INLINE Doubles subtract_product(Doubles c, Doubles a, Doubles b) { return svmls_f64_x(all(), c, a, b); }
C10_ALWAYS_INLINE Doubles product_less(Doubles c, Doubles a, Doubles b) { return svnmls_f64_x(all(), c, a, b); }
C10_ALWAYS_INLINE Doubles with_sign_of(Doubles x, Doubles y) {
  const Doubles sign(-0.0);
  return Doubles(svabs_f64_x(all(), y)) | (x & sign);
}
C10_ALWAYS_INLINE Doubles power_of_two(Doubles sum) {
  return svreinterpret_f64_s64(svlsl_n_s64_x(all(), svreinterpret_s64_f64(sum), 52));
}
// v * 2^n for an integral n, rounded once.
C10_ALWAYS_INLINE Doubles scale(Doubles v, Doubles n) { return svscale_f64_x(all(), v, svcvt_s64_f64_x(all(), n)); }
#elif defined(FASTOPS_NEON)
C10_ALWAYS_INLINE Doubles subtract_product(Doubles c, Doubles a, Doubles b) { return vfmsq_f64(c, a, b); }
C10_ALWAYS_INLINE Doubles product_less(Doubles c, Doubles a, Doubles b) { return vfmaq_f64(vnegq_f64(c), a, b); }
C10_ALWAYS_INLINE Doubles with_sign_of(Doubles x, Doubles y) { return vbslq_f64(vdupq_n_u64(uint64_t{1} << 63), x, y); }
C10_ALWAYS_INLINE Doubles power_of_two(Doubles sum) {
  return vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(sum), 52));
}
#else
C10_ALWAYS_INLINE Doubles subtract_product(Doubles c, Doubles a, Doubles b) { return _mm256_fnmadd_pd(a, b, c); }
C10_ALWAYS_INLINE Doubles product_less(Doubles c, Doubles a, Doubles b) { return _mm256_fmsub_pd(a, b, c); }
C10_ALWAYS_INLINE Doubles with_sign_of(Doubles x, Doubles y) {
  const Doubles sign(-0.0);
  return _mm256_or_pd(_mm256_andnot_pd(sign, y), _mm256_and_pd(sign, x));
}
C10_ALWAYS_INLINE Doubles power_of_two(Doubles sum) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(sum), 52));
}
#endif
C10_ALWAYS_INLINE Doubles magnitude(Doubles x) { return x & Doubles(std::bit_cast<double>(0x7fffffffffffffff)); }
C10_ALWAYS_INLINE Doubles negative_magnitude(Doubles x) { return x | Doubles(-0.0); }

// A number in two parts, the second of which is what the first lacks.
struct Sum {
  Doubles high;
  Doubles low;
};
// a + b, exactly, where a is 0 or the larger one.
C10_ALWAYS_INLINE Sum sorted_sum(Doubles a, Doubles b) {
  const Doubles high = a + b;
  return {high, (a - high) + b};
}

// ---- polynomials ----

// The terms of the powers first, first + step, first + 2 step, ..., over x^first, by Horner's rule; x_step is x^step.
template <size_t count>
C10_ALWAYS_INLINE Doubles terms(Doubles x_step, const double (&c)[count], size_t first, size_t step) {
  size_t k = count - 1 - (count - 1 - first) % step;
  Doubles sum(c[k]);
  while (k > first) {
    k -= step;
    sum = fmadd(sum, x_step, Doubles(c[k]));
  }
  return sum;
}

// Coefficients from the lowest on. In two chains of products and sums, or four: a single one of that length would leave
// the processor waiting for it. Of the long ones, the two lowest come last: each is rounded into a sum but once.
template <size_t count>
C10_ALWAYS_INLINE Doubles polynomial(Doubles x, const double (&c)[count]) {
  const Doubles square = x * x;
  if constexpr (count < 12) {
    return fmadd(terms(square, c, 1, 2), x, terms(square, c, 0, 2));
  } else {
    const Doubles fourth = square * square;
    const Doubles even = fmadd(terms(fourth, c, 4, 4), square, terms(fourth, c, 2, 4));
    const Doubles odd = fmadd(terms(fourth, c, 5, 4), square, terms(fourth, c, 3, 4));
    return fmadd(fmadd(fmadd(odd, x, even), x, Doubles(c[1])), x, Doubles(c[0]));
  }
}

// q in exp(r) = 1 + r + r^2 q(r) for |r| <= ln(2) / 2
constexpr double exp_coefficients[] = {0.5,
                                       0.16666666666666433,
                                       0.041666666666603951,
                                       0.0083333333335001026,
                                       0.0013888888926798153,
                                       0.00019841269466081877,
                                       2.480150867964535e-05,
                                       2.7557640986068512e-06,
                                       2.7625188224162388e-07,
                                       2.4978343059957598e-08};
// q in expm1(r) = r + r^2/2 + r^3/2 q(r) for the same r.
constexpr double expm1_coefficients[] = {0.33333333333333354,    0.083333333333333162,   0.01666666666664432,
                                         0.0027777777777885397,  0.00039682539769884571, 4.9603174396315937e-05,
                                         5.5114490588679159e-06, 5.5114774197255642e-07, 5.0217372837365931e-08,
                                         4.1757790262389295e-09};
// q in log((1 + s) / (1 - s)) = 2 s + s^3 q(s^2)
constexpr double log1p_coefficients[] = {0.6666666666666734,  0.39999999999413999, 0.28571428742556032,
                                         0.22222198554333417, 0.18183565381401204, 0.15314021739615391,
                                         0.14796255169170197};
// q in erf(x) = x + x q(x^2 - 1/2) for 0 <= x <= 1
constexpr double erf_near_coefficients[] = {-0.034531261330132693,   -0.28107217804543422,    0.07940998675593483,
                                            -0.018283884489152902,   0.0034802744966653983,   -0.00056118942211606142,
                                            7.8296495258291474e-05,  -9.6148086862375133e-06, 1.0536449241395695e-06,
                                            -1.0420369677653549e-07, 9.387732011022276e-09,   -7.7985082761252507e-10,
                                            5.945228176984277e-11};
// q in erf(x) = 1 - exp(-x q(x - 1)) for 1 <= x <= 5.93
constexpr double erf_far_coefficients[] = {1.8496055099332482,      0.78936200430154946,     0.053745252056592897,
                                           -0.012184154003083505,   0.0021503284969261946,   -0.00017242504790469776,
                                           -6.4901245035682684e-05, 3.8634635723337345e-05,  -1.1499126480453458e-05,
                                           1.9261492565338091e-06,  9.3283105586853926e-08,  -2.0246531214729982e-07,
                                           8.3965388292639205e-08,  -2.2291055857655093e-08, 4.1550824135639667e-09,
                                           -5.2978583505256624e-10, 4.1622950621302387e-11,  -1.5186378707034812e-12};

// q in sin(r) = r + r^3 q(r^2) and in cos(r) = 1 - r^2/2 + r^4 q(r^2) for |r| <= pi / 4
constexpr double sin_coefficients[] = {-0.1666666666666663,    0.008333333333322108,   -0.00019841269829580198,
                                       2.7557313618049607e-06, -2.505074722533497e-08, 1.5896198133535922e-10};
constexpr double cos_coefficients[] = {0.041666666666666595,    -0.0013888888888873041, 2.4801587288841821e-05,
                                       -2.7557314176352877e-07, 2.0875700430530263e-09, -1.1358514662538695e-11};

// ---- reductions ----

// ln 2 in two parts: products of the first with integers up to 2^11 are exact.
constexpr double ln2_first = 0.69314718055989033;
constexpr double ln2_rest = 5.4979230187083712e-14;

// Added to a small number, this leaves it rounded to an integer n, with n + bias in the lowest bits of the sum.
template <int bias>
constexpr double rounding_constant = 0x1.8p52 + bias;

// x = n ln 2 + r + lost with |r| <= ln(2) / 2; sum = n + rounding_constant<bias>.
struct Reduced {
  Doubles sum;
  Doubles n;
  Doubles r;
  Doubles lost;
};
template <int bias>
C10_ALWAYS_INLINE Reduced reduce(Doubles x) {
  const Doubles constant(rounding_constant<bias>);
  const Doubles sum = fmadd(x, Doubles(1.4426950408889634), constant);
  const Doubles n = sum - constant;
  const Doubles near = subtract_product(x, n, Doubles(ln2_first));  // exact
  const Doubles r = subtract_product(near, n, Doubles(ln2_rest));
  return {sum, n, r, subtract_product(near - r, n, Doubles(ln2_rest))};
}

// exp(r) = 1 + r + r^2 q(r)
C10_ALWAYS_INLINE Doubles exp_reduced(Doubles r) {
  const Sum sum = sorted_sum(Doubles(1.0), r);
  return sum.high + fmadd(r * r, polynomial(r, exp_coefficients), sum.low);
}

// expm1(x) / 2, which does not overflow before expm1(x) does: with p = 2^n / 2 it is p expm1(r) + (p - 1/2).
template <bool negative>
C10_ALWAYS_INLINE Sum half_expm1(Doubles x) {
  const auto [sum, n, r, lost] = reduce<1022>(x);
  const Doubles half(0.5);
  const Doubles half_r = r * half;
  const Doubles square = half_r * r;  // r^2 / 2
  const Doubles square_lost = product_less(square, half_r, r);
  const Sum start = sorted_sum(r, square);
  const Doubles rest = start.low + fmadd(square * r, polynomial(r, expm1_coefficients), square_lost + lost);
  const Doubles p = power_of_two(sum);
  const Doubles c = p - half;
  const Doubles c_lost = negative ? p - (c + half) : (p - c) - half;
  const Doubles high = fmadd(p, start.high, c);
  const Doubles low = fmadd(p, start.high, c - high) + c_lost;
  return {high, fmadd(p, rest, low)};
}

// u + lost = (m + m_lost) 2^e with m from sqrt(1/2) to sqrt(2), for u > 0.
struct Normalized {
  Doubles e;
  Doubles m;
  Doubles m_lost;
};
C10_ALWAYS_INLINE Normalized normalize(Doubles u, Doubles lost) {
  constexpr double root = 0.70710678118654752;
#if defined(CPU_CAPABILITY_AVX512)
  const Doubles e = Doubles(_mm512_getexp_pd(u * Doubles(root))) + Doubles(1.0);
  return {e, _mm512_scalef_pd(u, e.neg()), _mm512_scalef_pd(lost, e.neg())};
#elif defined(FASTOPS_SVE)
  const svint64_t bits = svsub_n_s64_x(all(), svreinterpret_s64_f64(u), std::bit_cast<int64_t>(root));
  const Doubles e = svcvt_f64_s64_x(all(), svasr_n_s64_x(all(), bits, 52));
  return {e, scale(u, e.neg()), scale(lost, e.neg())};
#elif defined(FASTOPS_NEON)
  const int64x2_t bits = vreinterpretq_s64_f64(u);
  const int64x2_t e = vshrq_n_s64(vsubq_s64(bits, vdupq_n_s64(std::bit_cast<int64_t>(root))), 52);
  const int64x2_t exponent = vshlq_n_s64(e, 52);
  // 2^(1 - e): that is a finite number for every e.
  const Doubles twice_power = vreinterpretq_f64_s64(vsubq_s64(vdupq_n_s64(int64_t{1024} << 52), exponent));
  return {vcvtq_f64_s64(e), vreinterpretq_f64_s64(vsubq_s64(bits, exponent)), lost * twice_power * Doubles(0.5)};
#else
  const auto multiple = [](int64_t k) { return _mm256_set1_epi64x(k << 52); };
  const __m256i bits = _mm256_castpd_si256(u);
  const __m256i raised =
      _mm256_add_epi64(bits, _mm256_set1_epi64x((int64_t{1024} << 52) - std::bit_cast<int64_t>(root)));
  const __m256i biased = _mm256_srli_epi64(raised, 52);  // e + 1024
  const Doubles offset(0x1p52);                          // with a small integer in its lowest bits it is their sum
  const Doubles e =
      Doubles(_mm256_castsi256_pd(_mm256_or_si256(biased, _mm256_castpd_si256(offset)))) - Doubles(0x1p52 + 1024.0);
  const __m256i exponent = _mm256_slli_epi64(biased, 52);
  const __m256i m = _mm256_add_epi64(_mm256_sub_epi64(bits, exponent), multiple(1024));
  // 2^(1 - e): that is a finite number for every e.
  const Doubles twice_power = _mm256_castsi256_pd(_mm256_sub_epi64(multiple(2048), exponent));
  return {e, _mm256_castsi256_pd(m), lost * twice_power * Doubles(0.5)};
#endif
}

}  // namespace

// ---- functions ----

Doubles exp(Doubles x) {
  const Doubles bounded = at::vec::clamp(x, Doubles(-746.0), Doubles(710.0));
#if defined(CPU_CAPABILITY_AVX512)
  const Reduced of = reduce<0>(bounded);
  return _mm512_scalef_pd(exp_reduced(of.r), of.n);
#elif defined(FASTOPS_SVE)
  const Reduced of = reduce<0>(bounded);
  return scale(exp_reduced(of.r), of.n);
#elif defined(FASTOPS_NEON)
  // In two steps, as 2^n itself may not be a normal number.
  const Reduced of = reduce<2 * 1023>(bounded);
  const int64x2_t exponent = vreinterpretq_s64_f64(of.sum);
  const int64x2_t half = vreinterpretq_s64_u64(vshrq_n_u64(vreinterpretq_u64_s64(exponent), 1));
  const auto power = [](int64x2_t k) { return Doubles(vreinterpretq_f64_s64(vshlq_n_s64(k, 52))); };
  return exp_reduced(of.r) * power(half) * power(vsubq_s64(exponent, half));
#else
  // In two steps, as 2^n itself may not be a normal number.
  const Reduced of = reduce<2 * 1023>(bounded);
  const __m256i exponent = _mm256_castpd_si256(of.sum);
  const __m256i half = _mm256_srli_epi64(exponent, 1);
  const auto power = [](__m256i k) { return Doubles(_mm256_castsi256_pd(_mm256_slli_epi64(k, 52))); };
  return exp_reduced(of.r) * power(half) * power(_mm256_sub_epi64(exponent, half));
#endif
}

Doubles expm1(Doubles x) {
  const Sum half = half_expm1<false>(at::vec::clamp(x, Doubles(-40.0), Doubles(710.0)));
  return choose(less(magnitude(x), Doubles(0x1p-54)), x, (half.high + half.low) * Doubles(2.0));
}

// tanh(|x|) = -H / (1 + H) with H = expm1(-2 |x|) / 2; from |x| = 22 on it is 1.
Doubles tanh(Doubles x) {
  const Doubles a = clamp_min(negative_magnitude(x), Doubles(-22.0));
  const Sum sum = half_expm1<true>(a + a);
  const Sum h = sorted_sum(sum.high, sum.low);
  const Sum below = sorted_sum(Doubles(1.0), h.high);
  const Doubles inverse = Doubles(1.0) / below.high;
  const Doubles q = h.high * inverse;
  const Doubles remainder = subtract_product(subtract_product(h.high, q, below.high) + h.low, q, below.low + h.low);
  return with_sign_of(x, fmadd(remainder, inverse, q));
}

// With s = f / (2 + f), log(1 + f) = f - f^2/2 + s (f^2/2 + s^2 q(s^2)).
Doubles log1p(Doubles x) {
  const Doubles one(1.0);
  const Doubles u = x + one;
  const auto [e, m, m_lost] = normalize(u, x - (u - one));
  const Sum f = sorted_sum(m - one, m_lost);
  const Doubles s = f.high / (f.high + Doubles(2.0));
  const Doubles square = s * s;
  const Doubles half_square = f.high * f.high * Doubles(0.5);
  Doubles rest = fmadd(e, Doubles(ln2_rest), subtract_product(f.low, f.low, f.high));
  rest = fmadd(s, fmadd(square, polynomial(square, log1p_coefficients), half_square), rest) - half_square;
  const Sum start = sorted_sum(e * Doubles(ln2_first), f.high);
  Doubles result = with_sign_of(x, start.high + (start.low + rest));
  constexpr double infinity = std::numeric_limits<double>::infinity();
  result = choose(equal(x, Doubles(infinity)), x, result);
  result = choose(equal(x, Doubles(-1.0)), Doubles(-infinity), result);
  return choose(less(x, Doubles(-1.0)), Doubles(std::numeric_limits<double>::quiet_NaN()), result);
}

// Up to 1 a polynomial in x; beyond, 1 - exp(-x q(x)), which is 1 from 5.93 on. Both polynomials are those of a shifted
// argument, which is small at 1, where roundings matter most.
Doubles erf(Doubles x) {
  const Doubles one(1.0);
  const Doubles a = magnitude(x);
  const Doubles near = fmadd(a, polynomial(product_less(Doubles(0.5), a, a), erf_near_coefficients), a);

  const Doubles t = clamp_max(a, Doubles(5.93));
  const Doubles q = polynomial(t - one, erf_far_coefficients);
  const Doubles product = t * q;
  const Reduced of = reduce<1023>(product.neg());
  const Doubles product_lost = subtract_product(product, t, q);
  const Doubles rest = fmadd(of.r * of.r, polynomial(of.r, exp_coefficients), product_lost);
  const Doubles p = power_of_two(of.sum);
  const Doubles c = one - p;
  const Doubles high = subtract_product(c, p, of.r);
  const Doubles low = subtract_product(c - high, p, of.r);
  const Doubles far = high + subtract_product(low, p, rest);
  return with_sign_of(x, choose(less(one, a), far, near));
}

namespace {

// f of the elements of x where the mask is set, else y.
template <class S, class F>
Vectorized<S> each_of(Mask<S> mask, Vectorized<S> x, F f, Vectorized<S> y) {
  if (any(mask)) [[unlikely]]
    return choose(mask, each(x, f), y);
  return y;
}

// From there on pi/2 in three parts does not suffice.
constexpr double most_by_quarter_turns = 0x1p30;

Mask<double> are_odd(Doubles n) {
  const Doubles half = n * Doubles(0.5);
  return less(half.floor(), half);
}

// The sine of x and some more quarter turns, for x from 0 on. With x = n pi/2 + r + lost it is sin(r + lost) or
// cos(r + lost), or what is opposite to that.
C10_ALWAYS_INLINE Doubles sin_after(Doubles x, double quarters) {
  const Doubles constant(rounding_constant<0>), one(1.0), half(0.5);
  const Doubles n = fmadd(x, Doubles(0.63661977236758138), constant) - constant;
  const Doubles second(6.123233995736766e-17);
  const Doubles near = subtract_product(x, n, Doubles(1.5707963267948966));  // exact
  const Doubles r = subtract_product(near, n, second);
  const Doubles lost = subtract_product(subtract_product(near - r, n, second), n, Doubles(-1.4973849048591698e-33));

  const Doubles square = r * r;
  const Doubles half_square = square * half;
  const Doubles rest = one - half_square;
  const Doubles sine = r + fmadd(r * square, polynomial(square, sin_coefficients), lost * rest);
  const Doubles fourth = fmadd(square * square, polynomial(square, cos_coefficients), (one - rest) - half_square);
  const Doubles cosine = rest + subtract_product(fourth, r, lost);

  const Doubles turned = n + Doubles(quarters);
  const Doubles y = choose(are_odd(turned), cosine, sine);
  return choose(are_odd((turned * half).floor()), y.neg(), y);
}

}  // namespace

Doubles sin(Doubles x) {
  const Doubles a = magnitude(x);
  const auto by_library = [](double v) { return std::sin(v); };
  return each_of(less(Doubles(most_by_quarter_turns), a), x, by_library, sin_after(a, 0.0) ^ (x & Doubles(-0.0)));
}

Doubles cos(Doubles x) {
  const Doubles a = magnitude(x);
  const auto by_library = [](double v) { return std::cos(v); };
  return each_of(less(Doubles(most_by_quarter_turns), a), x, by_library, sin_after(a, 1.0));
}

Floats with_large_sines(Floats x, Floats y) {
  const auto by_library = [](float v) { return std::sin(v); };
  return each_of(less(Floats(most_by_half_turns), magnitude(x)), x, by_library, y);
}
Floats with_large_cosines(Floats x, Floats y) {
  const auto by_library = [](float v) { return std::cos(v); };
  return each_of(less(Floats(most_by_half_turns), magnitude(x)), x, by_library, y);
}

#else

#define FASTOPS_BY_C_LIBRARY(Vector, function)               \
  Vector function(Vector x) {                                \
    return each(x, [](auto v) { return std::function(v); }); \
  }
FASTOPS_BY_C_LIBRARY(Doubles, exp)
FASTOPS_BY_C_LIBRARY(Doubles, expm1)
FASTOPS_BY_C_LIBRARY(Doubles, tanh)
FASTOPS_BY_C_LIBRARY(Doubles, log1p)
FASTOPS_BY_C_LIBRARY(Doubles, erf)
FASTOPS_BY_C_LIBRARY(Doubles, sin)
FASTOPS_BY_C_LIBRARY(Doubles, cos)
FASTOPS_BY_C_LIBRARY(Floats, sin)
FASTOPS_BY_C_LIBRARY(Floats, cos)
#undef FASTOPS_BY_C_LIBRARY

#endif

}  // namespace fastops::cpu::CPU_CAPABILITY
