// The CPU's number type: a SIMD vector of floats or doubles, with what src/activations/README.md asks of a number.
//
// Everything here lives in a namespace named after the instruction set it is compiled for, as at::vec does, so that the
// linker cannot mix up the builds.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "activations/functions.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/halves.h"
#include "backends/cpu/kernels/math_16.h"

namespace fastops::cpu::CPU_CAPABILITY {

// With `short_formulas`, numbers that are stored in 16 bits: functions are as exact as that needs (math_16.h).
template <class S, bool short_formulas = false>
struct Vec {
  using scalar = S;
  using Base = Vectorized<S>;
  static constexpr int64_t width = Base::size();

  Base v;

  Vec() = default;
  Vec(S value) : v(value) {}
  Vec(Base value) : v(value) {}

  friend Vec operator-(Vec a) { return a.v.neg(); }
  friend Vec operator+(Vec a, Vec b) { return a.v + b.v; }
  friend Vec operator-(Vec a, Vec b) { return a.v - b.v; }
  friend Vec operator*(Vec a, Vec b) { return a.v * b.v; }
  friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }

  friend Mask<S> operator<(Vec a, Vec b) { return less(a.v, b.v); }
  friend Mask<S> operator<=(Vec a, Vec b) { return less_equal(a.v, b.v); }
  friend Mask<S> operator>(Vec a, Vec b) { return less(b.v, a.v); }
  friend Mask<S> operator>=(Vec a, Vec b) { return less_equal(b.v, a.v); }
  friend Vec select(Mask<S> mask, Vec a, Vec b) { return choose(mask, a.v, b.v); }

#define FASTOPS_VEC_FUNCTION(name)                  \
  friend Vec name(Vec a) {                          \
    if constexpr (short_formulas) {                 \
      return CPU_CAPABILITY::in_16_bits::name(a.v); \
    } else {                                        \
      return CPU_CAPABILITY::name(a.v);             \
    }                                               \
  }
  FASTOPS_VEC_FUNCTION(exp)
  FASTOPS_VEC_FUNCTION(expm1)
  FASTOPS_VEC_FUNCTION(tanh)
#undef FASTOPS_VEC_FUNCTION
  friend Vec log1p(Vec a) { return CPU_CAPABILITY::log1p(a.v); }
  friend Vec erf(Vec a) { return CPU_CAPABILITY::erf(a.v); }
  friend Vec sin(Vec a) { return CPU_CAPABILITY::sin(a.v); }
  friend Vec cos(Vec a) { return CPU_CAPABILITY::cos(a.v); }
};

// ---- what is faster here than the definitions in activations/functions.h ----

template <class S, bool short_formulas, class B, class C>
Vec<S, short_formulas> multiply_add(Vec<S, short_formulas> a, B b, C c) {
  using V = Vec<S, short_formulas>;
  return fmadd(a.v, V(b).v, V(c).v);
}
template <class S, bool short_formulas>
Vec<S, short_formulas> clamp(Vec<S, short_formulas> x, S low, S high) {
  return at::vec::clamp(x.v, Vectorized<S>(low), Vectorized<S>(high));
}
template <class S, bool short_formulas>
Vec<S, short_formulas> at_most(Vec<S, short_formulas> x, S high) {
  return clamp_max(x.v, Vectorized<S>(high));
}
template <class S, bool short_formulas>
Vec<S, short_formulas> at_least(Vec<S, short_formulas> x, S low) {
  return clamp_min(x.v, Vectorized<S>(low));
}

using FloatVec = Vec<float>;
inline FloatVec quotient(FloatVec a, FloatVec b) { return quotient(a.v, b.v); }
inline FloatVec quotient_by_number(FloatVec a, float b) { return quotient_by_number(a.v, b); }
inline FloatVec quotient_by_sum(FloatVec a, float b) { return quotient_by_sum(a.v, Floats(b)); }
inline FloatVec reciprocal(FloatVec b) { return reciprocal(b.v); }
inline FloatVec exp2(FloatVec x) { return exp2(x.v); }
inline FloatVec decay(FloatVec x) { return decay(x.v); }
inline FloatVec log1p_exp(FloatVec x) { return log1p_exp(x.v); }
inline FloatVec tanh_remainder(FloatVec x) { return tanh_remainder(x.v); }
inline activations::Normal<FloatVec> normal(FloatVec x) {
  const auto [cumulative, density] = normal(x.v, normal_tail(x.v));
  return {cumulative, density};
}

using Vec16 = Vec<float, true>;
inline Vec16 quotient(Vec16 a, Vec16 b) { return quotient(a.v, b.v); }
inline Vec16 quotient_by_number(Vec16 a, float b) { return a.v * Floats(1.0f / b); }
inline Vec16 quotient_by_sum(Vec16 a, float b) { return bounded_quotient(a.v, a.v + Floats(b)); }
inline Vec16 reciprocal(Vec16 b) { return reciprocal(b.v); }
inline Vec16 exp2(Vec16 x) { return in_16_bits::exp2(x.v); }
inline Vec16 decay(Vec16 x) { return in_16_bits::decay(x.v); }
inline Vec16 log1p_exp(Vec16 x) { return in_16_bits::log1p_exp(x.v); }
inline Vec16 tanh_remainder(Vec16 x) { return in_16_bits::tanh_remainder(x.v); }
inline activations::Normal<Vec16> normal(Vec16 x) {
  const auto [cumulative, density] = normal(x.v, in_16_bits::normal_tail(x.v));
  return {cumulative, density};
}

// The type that a storage type is computed with.
template <class Storage>
using Compute = std::conditional_t<std::is_same_v<Storage, double>, double, float>;

// Copies `count` numbers, fewer than 2 * piece, without a loop or a call.
template <int64_t piece, class S>
void copy_part(const S* from, S* to, int64_t count) {
  if constexpr (piece > 0) {
    const int64_t n = count & piece;
    if (n) std::memcpy(to, from, piece * sizeof(S));
    copy_part<piece / 2>(from + n, to + n, count);
  }
}

// The first `count` numbers, at most a vector's; the others are 0. Nearly always it is all of them. Where it is not, no
// function is called: that would cost the registers of the loop that this is part of.
#if defined(FASTOPS_SVE)
template <class S>
svbool_t first(int64_t count) {
  if constexpr (sizeof(S) == 2) return svwhilelt_b16(int64_t{0}, count);
  if constexpr (sizeof(S) == 4) return svwhilelt_b32(int64_t{0}, count);
  if constexpr (sizeof(S) == 8) return svwhilelt_b64(int64_t{0}, count);
}
template <class S>
auto load_part(const S* p, int64_t count) {
  if constexpr (sizeof(S) == 2) {
    return Halves<S>{svld1_u16(first<S>(count), reinterpret_cast<const uint16_t*>(p))};
  } else {
    return Vectorized<S>(svld1(first<S>(count), p));
  }
}
template <class S>
void store_part(Vectorized<S> v, S* p, int64_t count) {
  svst1(first<S>(count), p, v);
}
template <class S>
void store_part(Halves<S> v, S* p, int64_t count) {
  svst1_u16(first<S>(count), reinterpret_cast<uint16_t*>(p), v.bits);
}
#else
template <class S>
Vectorized<S> load_part(const S* p, int64_t count) {
  constexpr int64_t width = Vectorized<S>::size();
  if (count == width) [[likely]]
    return Vectorized<S>::loadu(p);
#if defined(CPU_CAPABILITY_AVX512)
  return Vectorized<S>::loadu(p, count);
#else
  alignas(64) S part[width] = {};
  copy_part<width / 2>(p, part, count);
  return Vectorized<S>::loadu(part);
#endif
}
template <class S>
void store_part(Vectorized<S> v, S* p, int64_t count) {
  constexpr int64_t width = Vectorized<S>::size();
  if (count == width) [[likely]]
    return v.store(p);
#if defined(CPU_CAPABILITY_AVX512)
  v.store(p, static_cast<int>(count));
#else
  alignas(64) S part[width];
  v.store(part);
  copy_part<width / 2>(part, p, count);
#endif
}
#endif
#if defined(CPU_CAPABILITY_AVX2)
inline __m256i first(int64_t count) {
  alignas(64) static constexpr int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones + 8 - count));
}
inline Floats load_part(const float* p, int64_t count) {
  return count == Floats::size() ? Floats::loadu(p) : Floats(_mm256_maskload_ps(p, first(count)));
}
inline Doubles load_part(const double* p, int64_t count) {
  return count == Doubles::size() ? Doubles::loadu(p) : Doubles(_mm256_maskload_pd(p, first(2 * count)));
}
#endif

// Whether 16-bit numbers have formulas of their own. On Arm these take more instructions than those of float32.
#if defined(FASTOPS_NEON) || defined(FASTOPS_SVE)
inline constexpr bool has_short_formulas = false;
#else
inline constexpr bool has_short_formulas = true;
#endif

// As many numbers as one vector of the storage type holds: one Vec, or two for the 16-bit types.
template <class Storage, bool in_order = true>
struct Packet {
  using Number = Vec<Compute<Storage>, has_short_formulas && sizeof(Storage) == 2>;
  using Stored = decltype(load_part(static_cast<const Storage*>(nullptr), 0));
  static constexpr int64_t width = Stored::size();
  static constexpr int parts = static_cast<int>(width / Number::width);

  Number part[parts];

  // The first `count` numbers, at most `width`; the others are 0.
  static Packet load(const Storage* p, int64_t count) { return from(load_part(p, count)); }
  void store(Storage* p, int64_t count) const { store_part(stored(), p, count); }
  // Past the caches where the instruction set can do that, once all is written and stream_end() called; p is aligned.
  void stream(Storage* p) const {
#if defined(CPU_CAPABILITY_AVX512)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), std::bit_cast<__m512i>(stored()));
#elif defined(CPU_CAPABILITY_AVX2)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), std::bit_cast<__m256i>(stored()));
#else
    store(p, width);
#endif
  }

 private:
  static Packet from(Stored value) {
    if constexpr (parts == 1) {
      return {{Number(value)}};
#if defined(FASTOPS_EVENS_AND_ODDS)
    } else if constexpr (!in_order && std::is_same_v<Storage, c10::BFloat16>) {
      const auto [evens, odds] = evens_and_odds(value);
      return {{Number(evens), Number(odds)}};
#endif
    } else {
      auto [low, high] = widened(value);  // GCC has constant vectors of SVE in memory
      return {{Number(low), Number(high)}};
    }
  }
  Stored stored() const {
    if constexpr (parts == 1) {
      return part[0].v;
#if defined(FASTOPS_EVENS_AND_ODDS)
    } else if constexpr (!in_order && std::is_same_v<Storage, c10::BFloat16>) {
      return rounded({part[0].v, part[1].v});
#endif
    } else {
      return narrowed<Storage>(part[0].v, part[1].v);
    }
  }
};

// f of the corresponding parts.
template <class F, class P, class... In>
C10_ALWAYS_INLINE P apply(F f, const P& first, const In&... in) {
  P out;
  for (int k = 0; k < P::parts; ++k) out.part[k] = f(first.part[k], in.part[k]...);
  return out;
}

template <class Storage>
C10_ALWAYS_INLINE Packet<Storage> product(const Packet<Storage>& x, const Packet<Storage>& y) {
  return apply([](auto a, auto b) { return a * b; }, x, y);
}

inline void stream_end() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  _mm_sfence();
#endif
}

// With masks, whole packets of rows and of 16-bit numbers are as fast in a loop that takes parts, too; elsewhere they
// have one of their own.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr bool has_masks = true;
#else
inline constexpr bool has_masks = false;
#endif

// Whether long formulas are computed for four vectors side by side. Each is a chain of operations that wait for the one
// before, longer than what a processor looks ahead: with registers for four chains, they are written so
// (CMakeLists.txt). What makes 16-bit numbers of the results waits for the end of a chain, and takes places in the
// processor's queues meanwhile: it comes later, for some packets together. (Long formulas of float64 call functions.)
template <class P>
constexpr bool side_by_side([[maybe_unused]] bool is_short) {
#if defined(CPU_CAPABILITY_AVX512)
  return !is_short && !std::is_same_v<typename P::Number::scalar, double>;
#else
  return false;
#endif
}

// How many packets another loop takes at a time: beside a short formula of vectors of four floats, what the loop itself
// does is half of the work, and a third on CPUs that compute with sixteen at once.
#if defined(FASTOPS_NEON) || defined(FASTOPS_SVE) || defined(CPU_CAPABILITY_AVX512)
inline constexpr int64_t packets_at_once = 2;
#else
inline constexpr int64_t packets_at_once = 1;
#endif

// y[i] = f(x[i]...) for n elements; with `stream`, written past the caches. The first and the last ones go through the
// same code as the others: a result never depends on its place in the tensor.
template <bool is_short, class Storage, class F, class... In>
void transform(bool stream, int64_t n, F f, Storage* y, const In*... x) {
  using P = Packet<Storage, /*in_order=*/false>;
  constexpr int64_t width = P::width;
  const auto part = [&](int64_t i, int64_t count) { apply(f, P::load(x + i, count)...).store(y + i, count); };
  int64_t i = 0;
  if (stream) {  // from where y is aligned
    i = std::min<int64_t>(n, -static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) / sizeof(Storage)) & (width - 1));
    if (i > 0) part(0, i);
  }
  const auto whole = [&](auto store) {
    if constexpr (side_by_side<P>(is_short)) {
      constexpr int64_t at_once = 4 / P::parts;
      constexpr int64_t packets = P::parts == 1 ? at_once : 4 * at_once;
      for (; i + packets * width <= n; i += packets * width) {
        P result[packets];
        for (int64_t k = 0; k < packets; k += at_once) {
          for (int64_t j = k; j < k + at_once; ++j) result[j] = apply(f, P::load(x + i + j * width, width)...);
        }
        for (int64_t k = 0; k < packets; ++k) store(result[k], y + i + k * width);
      }
    } else {
      for (; i + packets_at_once * width <= n; i += packets_at_once * width) {
        // A count that the compiler sees: it writes the loop out.
        for (int64_t k = 0; k < packets_at_once; ++k) {
          store(apply(f, P::load(x + i + k * width, width)...), y + i + k * width);
        }
      }
    }
  };
  if (stream) {
    whole([](const P& result, Storage* p) { result.stream(p); });
  } else {
    whole([](const P& result, Storage* p) { result.store(p, width); });
  }
  for (; i < n; i += width) part(i, std::min(width, n - i));
  if (stream) stream_end();
}

// Calls step(i, load, store) for each packet of a row of n elements; load and store take part of a packet at the end.
// The last elements go through the same code as the others: a result never depends on its place in the row.
template <class Storage, class Step>
void for_each_packet(int64_t n, Step step) {
  using P = Packet<Storage>;
  int64_t i = 0;
  const auto call = [&](auto count) {
    step(
        i, [=](const Storage* p) { return P::load(p + i, count); },
        [=](const P& value, Storage* p) { value.store(p + i, count); });
  };
  // What converts 16-bit numbers hides the question how many there are.
  if (!has_masks && P::parts == 1) {
    for (; i + P::width <= n; i += P::width) call(std::integral_constant<int64_t, P::width>());
  }
  for (; i < n; i += P::width) call(std::min(P::width, n - i));
}

// The parameters in the type that is computed with.
template <class Storage>
Params<Compute<Storage>> compute_params(ActivationParams p) {
  using S = Compute<Storage>;
  return {static_cast<S>(p.first), static_cast<S>(p.second)};
}

// Whether the formulas of an activation are, polynomials in pieces, as short as loading and storing.
template <class A>
inline constexpr bool is_short = int{A::degree_in_input} < int{activations::ActivationBase::degree_in_input};

// f(x) and g * f'(x)
template <class A, class Storage>
C10_ALWAYS_INLINE std::pair<Packet<Storage>, Packet<Storage>> value_and_gradient(const Packet<Storage>& g,
                                                                                 const Packet<Storage>& x,
                                                                                 Params<Compute<Storage>> p) {
  using Number = typename Packet<Storage>::Number;
  std::pair<Packet<Storage>, Packet<Storage>> result;
  for (int k = 0; k < Packet<Storage>::parts; ++k) {
    auto& [value, gradient] = result;
    if constexpr (requires { A::template value_and_gradient<Number>(g.part[k], x.part[k], p); }) {
      const auto both = A::template value_and_gradient<Number>(g.part[k], x.part[k], p);
      value.part[k] = both.value;
      gradient.part[k] = both.gradient;
    } else {
      value.part[k] = A::value(x.part[k], p);
      gradient.part[k] = A::template gradient<Number>(g.part[k], x.part[k], p);
    }
  }
  return result;
}

template <class Storage>
const Storage* row(ConstRows m, int64_t r) {
  return static_cast<const Storage*>(m.data) + r * m.stride;
}
template <class Storage>
Storage* row(Rows m, int64_t r) {
  return m.data ? static_cast<Storage*>(m.data) + r * m.stride : nullptr;
}

// Calls add.template operator()<A, Storage>(table entry) for every activation and dtype.
template <class Add>
void for_each_kernel(KernelTable& table, Add add) {
#define FASTOPS_ADD(name, A, ...)                                                                      \
  add.template operator()<activations::A, float>(table.at(Activation::name, Dtype::float32));          \
  add.template operator()<activations::A, double>(table.at(Activation::name, Dtype::float64));         \
  add.template operator()<activations::A, c10::BFloat16>(table.at(Activation::name, Dtype::bfloat16)); \
  add.template operator()<activations::A, c10::Half>(table.at(Activation::name, Dtype::float16));
  FASTOPS_ACTIVATIONS(FASTOPS_ADD)
#undef FASTOPS_ADD
}

}  // namespace fastops::cpu::CPU_CAPABILITY
