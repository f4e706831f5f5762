// Steps on blocks of whole rows (ops/sequential.h), which lie one after another in the type that is computed with:
// between matrices and blocks, normalization, scales, dropout.
//
// Means and variances are sums of one vector's elements over a row, or of 4 vectors' where the row is longer than 16,
// in two passes over it in the cache: the error is that of 16, or about n / (4 * width), additions. Sums over rows are
// those of a block, of norms those of up to four rows, added up for a part and then for all.
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/kernels/panels.h"
#include "backends/cpu/kernels/philox.h"
#include "backends/cpu/kernels/vec.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// step(i, count) for each vector of n numbers, of which all but the last one have a count that the compiler sees.
template <class S, class Step>
void for_each_vector(int64_t n, Step step) {
  constexpr int64_t width = Vec<S>::width;
  int64_t i = 0;
  for (; i + width <= n; i += width) step(i, std::integral_constant<int64_t, width>());
  if (i < n) step(i, n - i);
}

template <class S>
Vec<S> load(const void* p, int64_t i, int64_t count) {
  return Vec<S>(load_part(static_cast<const S*>(p) + i, count));
}
template <class S>
void store(Vec<S> value, void* p, int64_t i, int64_t count) {
  store_part(value.v, static_cast<S*>(p) + i, count);
}

// The first `count` of the numbers; the others become 0.
template <class S, class Count>
Vec<S> only(Vec<S> value, Count count) {
  if constexpr (std::is_same_v<Count, int64_t>) {
    static constexpr auto ones = [] {
      std::array<S, Vec<S>::width> numbers{};
      numbers.fill(1);
      return numbers;
    }();
    return value * load<S>(ones.data(), 0, count);
  } else {
    return value;
  }
}

// Each addition waits for the one before it, so that four are under way: those of four rows, or of four vectors of a
// long one. f(rows, sums, row) for rows from `row` on, each summed up in so many vectors.
template <class S, class F>
void for_each_group(int64_t rows, int64_t columns, F f) {
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 4> four;
  int64_t row = 0;
  if (columns > 16 * Vec<S>::width) {
    for (; row < rows; ++row) f(one, four, row);
  }
  for (; row + four <= rows; row += four) f(four, one, row);
  for (; row < rows; ++row) f(one, one, row);
}

// So many sums over the vectors of n numbers, to which add(i, count, sums) adds each of them.
template <class S, int terms, int sums, class Add>
std::array<S, terms> sums_of(int64_t n, Add add) {
  constexpr int64_t width = Vec<S>::width;
  constexpr std::integral_constant<int64_t, width> whole;
  Vec<S> sum[sums][terms];
  FASTOPS_UNROLL(4)
  for (auto& part : sum) {
    FASTOPS_UNROLL(8)
    for (auto& term : part) term = S(0);
  }
  int64_t i = 0;
  for (; i + sums * width <= n; i += sums * width) {
    FASTOPS_UNROLL(4)
    for (int part = 0; part < sums; ++part) add(i + part * width, whole, sum[part]);
  }
  FASTOPS_UNROLL(4)
  for (int part = 0; part + 1 < sums; ++part) {
    if (i + width > n) break;
    add(i, whole, sum[part]);
    i += width;
  }
  if (i < n) add(i, n - i, sum[sums - 1]);
  std::array<S, terms> totals;
  FASTOPS_UNROLL(8)
  for (int term = 0; term < terms; ++term) {
    Vec<S> total = sum[0][term];
    if constexpr (sums == 4) total = (total + sum[1][term]) + (sum[2][term] + sum[3][term]);
    totals[term] = at::vec::vec_reduce_all<S>([](auto a, auto b) { return a + b; }, total.v);
  }
  return totals;
}

// ---- between matrices and blocks ----

template <class Storage>
void widen(ConstRows source, int64_t rows, int64_t columns, bool add, void* block) {
  using P = Packet<Storage>;
  using S = Compute<Storage>;
  for (int64_t r = 0; r < rows; ++r) {
    const Storage* from = row<Storage>(source, r);
    S* const to = static_cast<S*>(block) + r * columns;
    for (int64_t i = 0; i < columns; i += P::width) {
      const int64_t count = std::min(P::width, columns - i);
      const P packet = P::load(from + i, count);
      for (int k = 0; k < P::parts && k * P::Number::width < count; ++k) {
        const int64_t part = std::min(P::Number::width, count - k * P::Number::width);
        S* const p = to + i + k * P::Number::width;
        const Vec<S> number = packet.part[k].v;
        store(add ? load<S>(p, 0, part) + number : number, p, 0, part);
      }
    }
  }
}

template <class Storage>
void narrow(const void* block, int64_t rows, int64_t columns, Rows target) {
  using P = Packet<Storage>;
  using S = Compute<Storage>;
  for (int64_t r = 0; r < rows; ++r) {
    const S* from = static_cast<const S*>(block) + r * columns;
    Storage* const to = row<Storage>(target, r);
    for (int64_t i = 0; i < columns; i += P::width) {
      const int64_t count = std::min(P::width, columns - i);
      P packet{};
      for (int k = 0; k < P::parts && k * P::Number::width < count; ++k) {
        const int64_t first = k * P::Number::width;
        packet.part[k] = load<S>(from + i + first, 0, std::min(P::Number::width, count - first)).v;
      }
      packet.store(to + i, count);
    }
  }
}

// ---- normalization and scales ----

template <class S>
void normalize(const NormArguments& norm, const void* x, void* normalized, void* y, void* multipliers, int64_t rows,
               int64_t columns) {
  const S n = static_cast<S>(columns);
  for_each_group<S>(rows, columns, [&](auto group, auto sums, int64_t row) FASTOPS_INLINE_LAMBDA {
    constexpr int count = group();
    const auto place = [&](int r, int64_t i) FASTOPS_INLINE_LAMBDA { return (row + r) * columns + i; };
    Vec<S> mean[count], multiplier[count];
    std::array<S, count> total{};
    if (norm.centered) {
      total = sums_of<S, count, sums()>(columns, [&](int64_t i, auto present, auto& sum) FASTOPS_INLINE_LAMBDA {
        FASTOPS_UNROLL(4)
        for (int r = 0; r < count; ++r) sum[r] = sum[r] + load<S>(x, place(r, i), present);
      });
    }
    for (int r = 0; r < count; ++r) mean[r] = total[r] / n;
    total = sums_of<S, count, sums()>(columns, [&](int64_t i, auto present, auto& sum) FASTOPS_INLINE_LAMBDA {
      FASTOPS_UNROLL(4)
      for (int r = 0; r < count; ++r) {
        const Vec<S> centered = only(load<S>(x, place(r, i), present) - mean[r], present);
        sum[r] = sum[r] + centered * centered;
      }
    });
    for (int r = 0; r < count; ++r) {
      const S of_row = S(1) / std::sqrt(total[r] / n + static_cast<S>(norm.eps));
      if (multipliers) static_cast<S*>(multipliers)[row + r] = of_row;
      multiplier[r] = of_row;
    }
    for_each_vector<S>(columns, [&](int64_t i, auto present) FASTOPS_INLINE_LAMBDA {
      const Vec<S> weight = norm.weight ? load<S>(norm.weight, i, present) : S(1);
      const Vec<S> bias = norm.bias ? load<S>(norm.bias, i, present) : S(0);
      FASTOPS_UNROLL(4)
      for (int r = 0; r < count; ++r) {
        Vec<S> value = (load<S>(x, place(r, i), present) - mean[r]) * multiplier[r];
        if (normalized) store(value, normalized, place(r, i), present);
        if (!y) continue;
        if (norm.weight) value = value * weight;
        store(norm.bias ? value + bias : value, y, place(r, i), present);
      }
    });
  });
}

template <class S>
void normalize_backward(const NormArguments& norm, const void* normalized, const void* multipliers, const void* grad,
                        void* dx, void* weight_sums, void* bias_sums, int64_t rows, int64_t columns) {
  const S n = static_cast<S>(columns);
  for_each_group<S>(rows, columns, [&](auto group, auto sums, int64_t row) FASTOPS_INLINE_LAMBDA {
    constexpr int count = group();
    const auto place = [&](int r, int64_t i) FASTOPS_INLINE_LAMBDA { return (row + r) * columns + i; };
    const auto weight_at = [&](int64_t i, auto present) FASTOPS_INLINE_LAMBDA -> Vec<S> {
      return norm.weight ? load<S>(norm.weight, i, present) : S(1);
    };
    // Of each row the sum of the scaled gradient, and that of its products with the normalized numbers.
    const auto total =
        sums_of<S, 2 * count, sums()>(columns, [&](int64_t i, auto present, auto& sum) FASTOPS_INLINE_LAMBDA {
          const Vec<S> weight = weight_at(i, present);
          Vec<S> of_bias(S(0)), of_weight(S(0));
          FASTOPS_UNROLL(4)
          for (int r = 0; r < count; ++r) {
            const Vec<S> g = load<S>(grad, place(r, i), present);
            const Vec<S> product = g * load<S>(normalized, place(r, i), present);
            of_bias = of_bias + g;
            of_weight = of_weight + product;
            sum[r] = sum[r] + g * weight;
            sum[count + r] = sum[count + r] + product * weight;
          }
          if (bias_sums) store(load<S>(bias_sums, i, present) + of_bias, bias_sums, i, present);
          if (weight_sums) store(load<S>(weight_sums, i, present) + of_weight, weight_sums, i, present);
        });
    Vec<S> mean[count], along[count], multiplier[count];
    for (int r = 0; r < count; ++r) {
      mean[r] = norm.centered ? total[r] / n : S(0);
      along[r] = total[count + r] / n;
      multiplier[r] = static_cast<const S*>(multipliers)[row + r];
    }
    for_each_vector<S>(columns, [&](int64_t i, auto present) FASTOPS_INLINE_LAMBDA {
      const Vec<S> weight = weight_at(i, present);
      FASTOPS_UNROLL(4)
      for (int r = 0; r < count; ++r) {
        const Vec<S> scaled = load<S>(grad, place(r, i), present) * weight;
        const Vec<S> rest = scaled - mean[r] - load<S>(normalized, place(r, i), present) * along[r];
        store(rest * multiplier[r], dx, place(r, i), present);
      }
    });
  });
}

template <class S>
void scale(const void* x, const void* weight, void* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for_each_vector<S>(columns, [&](int64_t i, auto count) {
      const int64_t at = r * columns + i;
      store(load<S>(x, at, count) * load<S>(weight, i, count), y, at, count);
    });
  }
}

// ---- sums over rows ----

template <class S>
void add_to_sums(const void* grad, const void* factor, void* sums, int64_t rows, int64_t columns) {
  for_each_vector<S>(columns, [&](int64_t i, auto count) {
    Vec<S> sum(S(0));
    for (int64_t r = 0; r < rows; ++r) {
      const Vec<S> g = load<S>(grad, r * columns + i, count);
      sum = sum + (factor ? g * load<S>(factor, r * columns + i, count) : g);
    }
    store(load<S>(sums, i, count) + sum, sums, i, count);
  });
}

// ---- dropout ----

template <class S>
void dropout(const DropoutArguments& dropout, const void* x, void* factors, void* y, int64_t first_row, int64_t rows,
             int64_t columns) {
  const S scale = static_cast<S>(dropout.scale);
  const uint32_t threshold = dropout.threshold;
  for (int64_t r = 0; r < rows; ++r) {
    constexpr int64_t group = 4 * philox_calls;
    for (int64_t c = 0; c < columns; c += group) {
      uint32_t numbers[4][philox_calls];
      numbers_of_row(dropout.seed, dropout.stream, static_cast<uint64_t>(first_row + r), c, numbers);
      alignas(64) S kept[group];
      for (int i = 0; i < 4; ++i) {
        for (int l = 0; l < philox_calls; ++l) kept[i * philox_calls + l] = numbers[i][l] >= threshold ? scale : S(0);
      }
      const int64_t at = r * columns + c;
      for_each_vector<S>(std::min(group, columns - c), [&](int64_t i, auto count) {
        const Vec<S> factor = load<S>(kept, i, count);
        const Vec<S> value = x ? load<S>(x, at + i, count) * factor : factor;
        if (factors) store(factor, factors, at + i, count);
        if (y) store(value, y, at + i, count);
      });
    }
  }
}

template <class S>
void multiply(const void* grad, const void* factors, void* dx, int64_t n) {
  for_each_vector<S>(
      n, [&](int64_t i, auto count) { store(load<S>(grad, i, count) * load<S>(factors, i, count), dx, i, count); });
}

// Some columns at a time: lines of the source that lie one after another, and all rows for them, so that the target's
// lines are filled before they leave the cache.
template <class T>
void transpose(ConstRows source, int64_t rows, int64_t columns, Rows target) {
  constexpr int64_t width = square_size<T>;
  constexpr int64_t block = 256 / sizeof(T);
  const auto copy = [&](int64_t first_row, int64_t first_column, int64_t end_row, int64_t end_column) {
    for (int64_t c = first_column; c < end_column; ++c) {
      for (int64_t r = first_row; r < end_row; ++r) row<T>(target, c)[r] = row<T>(source, r)[c];
    }
  };
  for (int64_t first = 0; first < columns; first += block) {
    const int64_t end = std::min(columns, first + block);
    int64_t r = 0;
    for (; r + width <= rows; r += width) {
      int64_t c = first;
      for (; c + width <= end; c += width) {
        transpose_square<T>(row<T>(source, r) + c, source.stride, row<T>(target, c) + r, target.stride);
      }
      copy(r, c, r + width, end);
    }
    copy(r, first, rows, end);
  }
}

template <class Storage>
RowKernels row_kernels() {
  using S = Compute<Storage>;
  using Bits = std::conditional_t<sizeof(Storage) == 2, uint16_t, Storage>;
  return {widen<Storage>, narrow<Storage>, transpose<Bits>, normalize<S>, normalize_backward<S>,
          scale<S>,       add_to_sums<S>,  dropout<S>,      multiply<S>};
}

}  // namespace

void add_row_kernels(KernelTable& table) {
  const auto at = [&](Dtype dtype) -> RowKernels& { return table.rows[static_cast<int>(dtype)]; };
  at(Dtype::float32) = row_kernels<float>();
  at(Dtype::float64) = row_kernels<double>();
  at(Dtype::bfloat16) = row_kernels<c10::BFloat16>();
  at(Dtype::float16) = row_kernels<c10::Half>();
}

}  // namespace fastops::cpu::CPU_CAPABILITY
