// What the layers of mlp_jet do to the sums of their matrix products: the activation of points with derivatives, and
// its gradient, by the formulas of ops/mlp_jet.h; and an activation with its derivatives, for the values of several
// points at once.
#include "activations/derivative.h"
#include "backends/cpu/kernels/panels.h"
#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// The gradient as a series, with the value at its point.
template <class A, class Series, class Number, class S>
activations::ValueAndGradient<Series> value_and_gradient(Number at, Params<S> p) {
  const Number one(S(1));
  const Series x = Series::variable(at);
  if constexpr (requires { A::template value_and_gradient<Series>(one, x, p); }) {
    return A::template value_and_gradient<Series>(one, x, p);
  } else {
    return {A::value(at, p), A::template gradient<Series>(one, x, p)};
  }
}

// The value and the derivatives, which are the coefficients of one series: what they have in common is computed once.
template <class A, class S, int orders>
FASTOPS_FLATTEN void derivatives(const void* x, void* value, void* const* order, int64_t n, ActivationParams params) {
  using Number = Vec<S>;
  using Series = Jet<Number, orders - 1>;
  const auto p = compute_params<S>(params);
  for (int64_t i = 0; i < n; i += Number::width) {
    const int64_t count = std::min(Number::width, n - i);
    const Number at = load_part(static_cast<const S*>(x) + i, count);
    const auto [y, gradient] = value_and_gradient<A, Series>(at, p);
    store_part(y.c[0].v, static_cast<S*>(value) + i, count);
    S factorial = 1;
    for (int k = 0; k < orders; ++k) {
      if (k > 1) factorial *= S(k);
      store_part((gradient.c[k] * factorial).v, static_cast<S*>(order[k]) + i, count);
    }
  }
}

// Some columns of one row, in the type that is computed with: as many as a packet of 16-bit numbers has.
constexpr int vectors = 2;
template <class S>
constexpr int64_t columns_at_once = vectors * Vec<S>::width;
template <class S>
struct Numbers {
  Vec<S> part[vectors];
};
// How many there are, where they are all there.
template <class S>
using Whole = std::integral_constant<int64_t, columns_at_once<S>>;

// f of the corresponding parts.
template <class S, class F, class... In>
C10_ALWAYS_INLINE Numbers<S> map(F f, const In&... in) {
  Numbers<S> out;
  for (int k = 0; k < vectors; ++k) out.part[k] = f(in.part[k]...);
  return out;
}
template <class S>
C10_ALWAYS_INLINE Numbers<S> operator*(const Numbers<S>& a, const Numbers<S>& b) {
  return map<S>([](auto x, auto y) { return x * y; }, a, b);
}
template <class S>
C10_ALWAYS_INLINE Numbers<S> operator+(const Numbers<S>& a, const Numbers<S>& b) {
  return map<S>([](auto x, auto y) { return x + y; }, a, b);
}
// a * b + c
template <class S>
C10_ALWAYS_INLINE Numbers<S> fused(const Numbers<S>& a, const Numbers<S>& b, const Numbers<S>& c) {
  return map<S>([](auto x, auto y, auto z) { return multiply_add(x, y, z); }, a, b, c);
}
template <class S>
C10_ALWAYS_INLINE Numbers<S> every(double value) {
  Numbers<S> out;
  for (auto& part : out.part) part = static_cast<S>(value);
  return out;
}

template <class S, class T, class Count>
C10_ALWAYS_INLINE Numbers<S> load(const T* p, Count count) {
  Numbers<S> out;
  if constexpr (std::is_same_v<S, T>) {
    for (int k = 0; k < vectors; ++k) {
      out.part[k] = load_part(p + k * Vec<S>::width, count_in_vector<S>(count, k));
    }
  } else {
    const auto packet = Packet<T>::load(p, count);
    static_assert(packet.parts == vectors);
    for (int k = 0; k < vectors; ++k) out.part[k] = packet.part[k].v;
  }
  return out;
}
template <class S, class T, class Count>
C10_ALWAYS_INLINE void store(const Numbers<S>& value, T* p, Count count) {
  if constexpr (std::is_same_v<S, T>) {
    for (int k = 0; k < vectors; ++k) {
      store_part(value.part[k].v, p + k * Vec<S>::width, count_in_vector<S>(count, k));
    }
  } else {
    Packet<T> packet;
    for (int k = 0; k < vectors; ++k) packet.part[k] = value.part[k].v;
    packet.store(p, count);
  }
}

// Go down the rows of a point in a matrix, at some columns. The rows may lie far apart, where the processor does not
// foresee them: what comes `ahead` elements later is fetched ahead.
template <class S, class T, class Count>
struct Reader {
  const T* p;
  int64_t stride;
  int64_t ahead;
  Count count;

  C10_ALWAYS_INLINE Numbers<S> next() {
    for (int64_t i = 0; ahead && i < columns_at_once<S>; i += 64 / int64_t{sizeof(T)}) FASTOPS_PREFETCH(p + ahead + i);
    const auto numbers = load<S>(p, count);
    p += stride;
    return numbers;
  }
  C10_ALWAYS_INLINE Reader after(int64_t rows) const { return {p + rows * stride, stride, ahead, count}; }
};
// Null: writes nothing.
template <class S, class T, class Count>
struct Writer {
  T* p;
  int64_t stride;
  int64_t ahead;
  Count count;

  C10_ALWAYS_INLINE void next(const Numbers<S>& value) {
    if (!p) return;
    for (int64_t i = 0; i < columns_at_once<S>; i += 64 / int64_t{sizeof(T)}) FASTOPS_PREFETCH_WRITE(p + ahead + i);
    store(value, p, count);
    p += stride;
  }
  C10_ALWAYS_INLINE Writer after(int64_t rows) const { return {p ? p + rows * stride : p, stride, ahead, count}; }
};

// The first row of a point, at some columns.
template <class Storage, class Count>
struct Place {
  using S = Compute<Storage>;
  const Block& block;
  int64_t row;     // in the block
  int64_t column;  // in the block
  int64_t ahead;   // rows
  Count count;

  C10_ALWAYS_INLINE Reader<S, S, Count> sums() const {
    return {static_cast<const S*>(block.sums[0]) + row * block.stride + column, block.stride, 0, count};
  }
  C10_ALWAYS_INLINE Reader<S, Storage, Count> reads(ConstRows rows) const {
    const Storage* const first = CPU_CAPABILITY::row<Storage>(rows, block.row + row);
    return {first + block.column + column, rows.stride, ahead * rows.stride, count};
  }
  template <class T>
  C10_ALWAYS_INLINE Writer<S, T, Count> writes(Rows rows) const {
    T* const first = CPU_CAPABILITY::row<T>(rows, block.row + row);
    return {first ? first + block.column + column : first, rows.stride, ahead * rows.stride, count};
  }
};

// An activation at the values of some points, [points, columns], and its derivatives there.
template <class S>
struct Derivatives {
  static constexpr int64_t most = 16 * columns_at_once<S>;
  alignas(64) S at[most];
  alignas(64) S value[most];
  alignas(64) S order[max_order][most];

  void compute(const JetArguments& jet, int64_t count, int orders) {
    void* const out[] = {order[0], order[1], order[2]};
    jet.activation->derivatives[std::min(orders, jet.activation->last_order) - 1](at, value, out, count, jet.params);
  }
};

// step(place, derivatives, i) for some columns of each point of a block; the derivatives' numbers for it are from i on.
// at(place) are the values.
template <class Storage, class At, class Step>
void for_each_place(const JetArguments& jet, const Block& block, int orders, At at, Step step) {
  using S = Compute<Storage>;
  constexpr int64_t rows_ahead = 8;
  const int64_t ahead = (rows_ahead + jet.rows() - 1) / jet.rows() * jet.rows();
  const int64_t points = block.rows / jet.rows();
  Derivatives<S> derivatives;
  const auto run = [&](int64_t first_point, int64_t end_point, int64_t first_column, int64_t end_column) {
    // f(place, i) for what the derivatives have from i on
    const auto each = [&](auto f) FASTOPS_INLINE_LAMBDA {
      int64_t i = 0;
      for (int64_t point = first_point; point < end_point; ++point) {
        for (int64_t column = first_column; column < end_column; column += columns_at_once<S>) {
          const int64_t columns = std::min(columns_at_once<S>, end_column - column);
          const auto at_place = [&](auto count) FASTOPS_INLINE_LAMBDA {
            f(Place<Storage, decltype(count)>{block, point * jet.rows(), column, ahead, count}, i);
          };
          columns == columns_at_once<S> ? at_place(Whole<S>()) : at_place(columns);
          i += columns;
        }
      }
      return i;
    };
    const int64_t count = each([&](const auto& place, int64_t i)
                                   FASTOPS_INLINE_LAMBDA { store(at(place), derivatives.at + i, place.count); });
    if (jet.activation) derivatives.compute(jet, count, orders);
    each([&](const auto& place, int64_t i) FASTOPS_INLINE_LAMBDA { step(place, derivatives, i); });
  };
  constexpr int64_t most = Derivatives<S>::most;
  for (int64_t column = 0; column < block.columns; column += most) {
    const int64_t end_column = std::min(block.columns, column + most);
    const int64_t at_once = std::max<int64_t>(1, most / (end_column - column));
    for (int64_t point = 0; point < points; point += at_once) {
      run(point, std::min(points, point + at_once), column, end_column);
    }
  }
}

// f(std::type_identity<T>()) for the type T of what is written as an operand.
template <class Storage, class F>
void with_target(bool as_stored, F f) {
  if (std::is_same_v<Compute<Storage>, Storage> || as_stored) return f(std::type_identity<Storage>());
  f(std::type_identity<Compute<Storage>>());
}

bool has_order(const JetArguments& jet, int order) { return jet.activation && jet.activation->last_order >= order; }

// Which second derivatives a point has: none, their sum, one for each direction, or for each pair. Where an activation
// has none, they go through it as the first ones.
enum class Seconds { none, sum, each, pairs };
template <class F>
void with_seconds(const JetArguments& jet, F f) {
  if (jet.seconds == 0 || !has_order(jet, 2)) return f(std::integral_constant<Seconds, Seconds::none>());
  if (jet.pairs()) return f(std::integral_constant<Seconds, Seconds::pairs>());
  if (!jet.each) return f(std::integral_constant<Seconds, Seconds::sum>());
  f(std::integral_constant<Seconds, Seconds::each>());
}

// What is read of the arguments is copied: what is stored could else change them, for all that the compiler knows.
template <class Storage, class Target, Seconds seconds>
void forward_points(const JetForwardArguments& arguments, const Block& of_sums) {
  using S = Compute<Storage>;
  const auto to = arguments;
  const Block block = of_sums;
  const JetArguments jet = to.jet;
  const auto at = [&](const auto& place) FASTOPS_INLINE_LAMBDA {
    const auto sum = place.sums().next();
    if (!to.bias) return sum;
    return sum + load<S>(static_cast<const Storage*>(to.bias) + block.column + place.column, place.count);
  };
  const auto step = [&](const auto& place, const Derivatives<S>& of, int64_t i) FASTOPS_INLINE_LAMBDA {
    const auto numbers = [&](const S* values) FASTOPS_INLINE_LAMBDA { return load<S>(values + i, place.count); };
    auto sums = place.sums().after(1);
    auto pre = place.template writes<Storage>(to.pre);
    auto post = place.template writes<Target>(to.next.data ? to.next : to.post);
    pre.next(numbers(of.at));
    if (!jet.activation) {
      post.next(numbers(of.at));
      for (int64_t j = 1; j < jet.rows(); ++j) {
        const auto z = sums.next();
        pre.next(z);
        post.next(z);
      }
      return;
    }
    const auto first = numbers(of.order[0]);
    const auto second = seconds == Seconds::none ? every<S>(0) : numbers(of.order[1]);
    post.next(numbers(of.value));
    auto second_sums = sums.after(jet.directions);
    auto second_pre = pre.after(jet.directions);
    auto second_post = post.after(jet.directions);
    auto squares = every<S>(0);
    const int64_t tangents = seconds == Seconds::none ? jet.rows() - 1 : jet.directions;
    const auto tangent_sums = sums;
    for (int64_t d = 0; d < tangents; ++d) {
      const auto z = sums.next();
      pre.next(z);
      post.next(z * first);
      if (seconds == Seconds::none || seconds == Seconds::pairs) continue;
      const auto weighted = jet.trace_weights ? z * every<S>(jet.trace_weights[d]) : z;
      if (seconds == Seconds::sum) {
        squares = fused(weighted, z, squares);
      } else {
        const auto z_dd = second_sums.next();
        second_pre.next(z_dd);
        second_post.next(fused(z_dd, first, weighted * z * second));
      }
    }
    if (seconds == Seconds::sum) {
      const auto z = sums.next();
      pre.next(z);
      post.next(fused(z, first, squares * second));
    }
    for (int64_t d = 0; seconds == Seconds::pairs && d < jet.directions; ++d) {
      auto others = tangent_sums.after(d);
      const auto by = second * tangent_sums.after(d).next();
      for (int64_t e = d; e < jet.directions; ++e) {
        const auto z = second_sums.next();
        second_pre.next(z);
        second_post.next(fused(by, others.next(), z * first));
      }
    }
  };
  for_each_place<Storage>(jet, block, seconds == Seconds::none ? 1 : 2, at, step);
}

// A layer has `post` or `next`.
template <class Storage>
void jet_forward(const void* arguments, const Block& block) {
  const auto& to = *static_cast<const JetForwardArguments*>(arguments);
  with_seconds(to.jet, [&](auto seconds) {
    with_target<Storage>(to.as_stored || !to.next.data, [&](auto target) {
      forward_points<Storage, typename decltype(target)::type, seconds()>(to, block);
    });
  });
}

template <class Storage, class Target, Seconds seconds>
void backward_points(const JetBackwardArguments& arguments, const Block& of_sums) {
  using S = Compute<Storage>;
  const auto to = arguments;
  const Block block = of_sums;
  const JetArguments jet = to.jet;
  const auto at = [&](const auto& place) FASTOPS_INLINE_LAMBDA { return place.reads(to.saved).next(); };
  const auto step = [&](const auto& place, const Derivatives<S>& of, int64_t i) FASTOPS_INLINE_LAMBDA {
    const auto numbers = [&](const S* values) FASTOPS_INLINE_LAMBDA { return load<S>(values + i, place.count); };
    auto grads = place.sums();
    auto z = place.reads(to.saved);
    auto dz = place.template writes<Target>(to.dz);
    auto value = place.template writes<Storage>(to.value);
    if (!jet.activation) {
      for (int64_t j = 0; j < jet.rows(); ++j) {
        dz.next(grads.next());
        value.next(z.next());
      }
      return;
    }
    const auto first = numbers(of.order[0]);
    const bool has_second = has_order(jet, 2);
    const auto second = has_second ? numbers(of.order[1]) : every<S>(0);
    const auto grad_of_value = grads.next();
    auto dz_of_value = dz;
    if (value.p) value.next(numbers(of.value));
    z = z.after(1);
    dz = dz.after(1);
    auto second_grads = grads.after(jet.directions);
    auto second_z = z.after(jet.directions);
    auto second_dz = dz.after(jet.directions);
    auto second_value = value.after(jet.directions);
    const auto twice = [&](const auto& grad) FASTOPS_INLINE_LAMBDA { return (grad + grad) * second; };
    const auto grad_of_sum = seconds == Seconds::sum ? second_grads.next() : every<S>(0);
    const auto twice_grad_of_sum = twice(grad_of_sum);
    // What f'' and f''' are multiplied with in the value's gradient: the latter without the gradient of the sum.
    auto by_second = every<S>(0);
    auto by_third = every<S>(0);
    const int64_t tangents = seconds == Seconds::none ? jet.rows() - 1 : jet.directions;
    const auto tangent_z = z;
    for (int64_t d = 0; d < tangents; ++d) {
      const auto t = z.next();
      const auto grad = grads.next();
      by_second = fused(t, grad, by_second);
      value.next(t * first);
      if (seconds == Seconds::pairs) {
        // The pairs with those before it are in the rows of those.
        auto sum = every<S>(0);
        auto others = tangent_z;
        auto pair = second_grads.after(d);
        for (int64_t e = 0; e < d; ++e) {
          sum = fused(others.next(), pair.next(), sum);
          pair = pair.after(jet.directions - e - 2);
        }
        sum = fused(others.next() + t, pair.next(), sum);
        for (int64_t e = d + 1; e < jet.directions; ++e) sum = fused(others.next(), pair.next(), sum);
        dz.next(fused(sum, second, grad * first));
        continue;
      }
      if (seconds == Seconds::none) {
        dz.next(grad * first);
        continue;
      }
      const auto weighted = jet.trace_weights ? t * every<S>(jet.trace_weights[d]) : t;
      if (seconds == Seconds::sum) {
        by_third = fused(weighted, t, by_third);
        dz.next(fused(weighted, twice_grad_of_sum, grad * first));
      } else {
        const auto by = second_grads.next();
        const auto z_dd = second_z.next();
        const auto square = weighted * t;
        by_third = fused(square, by, by_third);
        by_second = fused(by, z_dd, by_second);
        dz.next(fused(weighted, twice(by), grad * first));
        second_value.next(fused(z_dd, first, square * second));
        second_dz.next(by * first);
      }
    }
    for (int64_t d = 0; seconds == Seconds::pairs && d < jet.directions; ++d) {
      auto others = tangent_z.after(d);
      const auto t = tangent_z.after(d).next();
      for (int64_t e = d; e < jet.directions; ++e) {
        const auto by = second_grads.next();
        const auto z_de = second_z.next();
        const auto square = t * others.next();
        by_third = fused(square, by, by_third);
        by_second = fused(by, z_de, by_second);
        second_value.next(fused(z_de, first, square * second));
        second_dz.next(by * first);
      }
    }
    if (seconds == Seconds::sum) {
      const auto z_sum = z.next();
      by_second = fused(grad_of_sum, z_sum, by_second);
      value.next(fused(z_sum, first, by_third * second));
      dz.next(grad_of_sum * first);
      by_third = by_third * grad_of_sum;
    }
    // An infinite number times a derivative that is zero everywhere is nothing.
    auto grad_of_z = grad_of_value * first;
    if (has_second) grad_of_z = fused(by_second, second, grad_of_z);
    if (seconds != Seconds::none && has_order(jet, 3)) grad_of_z = fused(by_third, numbers(of.order[2]), grad_of_z);
    dz_of_value.next(grad_of_z);
  };
  for_each_place<Storage>(jet, block, seconds == Seconds::none ? 2 : 3, at, step);
}

template <class Storage>
void jet_backward(const void* arguments, const Block& block) {
  const auto& to = *static_cast<const JetBackwardArguments*>(arguments);
  with_seconds(to.jet, [&](auto seconds) {
    with_target<Storage>(to.as_stored, [&](auto target) {
      backward_points<Storage, typename decltype(target)::type, seconds()>(to, block);
    });
  });
}

template <class Storage>
void add(GemmKernels& entry) {
  entry.jet_forward = jet_forward<Storage>;
  entry.jet_backward = jet_backward<Storage>;
}

}  // namespace

void add_jet_kernels(KernelTable& table) {
  const auto entry = [&](Dtype dtype) -> GemmKernels& { return table.gemm[static_cast<int>(dtype)]; };
  add<float>(entry(Dtype::float32));
  add<double>(entry(Dtype::float64));
  add<c10::BFloat16>(entry(Dtype::bfloat16));
  add<c10::Half>(entry(Dtype::float16));
  for_each_kernel(table, []<class A, class Storage>(Kernels& kernels) {
    if constexpr (std::is_same_v<Compute<Storage>, Storage>) {
      kernels.derivatives[0] = derivatives<A, Storage, 1>;
      kernels.derivatives[1] = derivatives<A, Storage, 2>;
      kernels.derivatives[2] = derivatives<A, Storage, 3>;
      kernels.last_order = last_order<A>();
    }
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
