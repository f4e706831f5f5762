// What the layers of mlp_jet do to the sums of their matrix products: the activation of points with derivatives, and
// its gradient, by the formulas of ops/mlp_jet.h; and an activation with its derivatives, for the values of several
// points at once.
#include "backends/cpu/kernels/panels.h"
#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// The derivatives are the coefficients of one series: what they have in common is computed once.
template <class A, class S, int orders>
FASTOPS_FLATTEN void derivatives(const void* x, void* value, void* const* order, int64_t n, ActivationParams params) {
  using Number = Vec<S>;
  using Series = Jet<Number, orders - 1>;
  const auto p = compute_params<S>(params);
  for (int64_t i = 0; i < n; i += Number::width) {
    const int64_t count = std::min(Number::width, n - i);
    const Number at = load_part(static_cast<const S*>(x) + i, count);
    if (value) store_part(Number(A::value(at, p)).v, static_cast<S*>(value) + i, count);
    const Series series = A::template gradient<Series>(Number(S(1)), Series::variable(at), p);
    S factorial = 1;
    for (int k = 0; k < orders; ++k) {
      if (k > 1) factorial *= S(k);
      store_part((series.c[k] * factorial).v, static_cast<S*>(order[k]) + i, count);
    }
  }
}

constexpr int64_t points_at_once = 16;

// An activation at the values of some points, [points, columns], and its derivatives there.
template <class S>
struct Derivatives {
  static constexpr int64_t most = points_at_once * panel_columns<S>;
  alignas(64) S at[most];
  alignas(64) S value[most];
  alignas(64) S order[max_order][most];

  void compute(const JetArguments& jet, int64_t count, int orders, bool with_value) {
    void* const out[] = {order[0], order[1], order[2]};
    jet.activation->derivatives[orders - 1](at, with_value ? value : nullptr, out, count, jet.params);
  }
};

template <class Storage>
using P = Packet<Storage>;

// The rows of a point in a matrix, at one packet of columns. They lie far apart, where the processor does not foresee
// them: what comes `ahead` rows later is fetched ahead.
template <class Storage, class Count>
struct ReadRows {
  const Storage* first;
  int64_t stride;
  int64_t ahead;
  Count count;

  Packet<Storage> operator()(int64_t j) const {
    const Storage* const p = first + j * stride;
    FASTOPS_PREFETCH(p + ahead);
    return Packet<Storage>::load(p, count);
  }
};
template <class Storage, class Count>
struct WriteRows {
  using S = Compute<Storage>;
  void* first;  // null where nothing is written
  int64_t stride;
  int64_t ahead;
  Count count;
  bool as_stored;  // or in the type that is computed with

  void operator()(const Packet<Storage>& value, int64_t j) const {
    if (!first) return;
    if (std::is_same_v<S, Storage> || as_stored) {
      Storage* const p = static_cast<Storage*>(first) + j * stride;
      FASTOPS_PREFETCH_WRITE(p + ahead);
      value.store(p, count);
    } else {
      S* const p = static_cast<S*>(first) + j * stride;
      FASTOPS_PREFETCH_WRITE(p + ahead);
      store_computed<Storage>(value, p, count);
    }
  }
};

// One packet of columns of a point. `Count`: of the numbers in it, a constant where it is whole.
template <class Storage, class Count>
struct Place {
  using S = Compute<Storage>;
  const Block& block;
  int64_t row;     // the point's first one in the block
  int64_t column;  // in the block
  int64_t ahead;
  Count count;

  auto sums() const {
    return [p = static_cast<const S*>(block.sums[0]) + row * block.stride + column, stride = block.stride,
            count = count](int64_t j) { return load_computed<Storage>(p + j * stride, count); };
  }
  ReadRows<Storage, Count> reads(ConstRows rows) const {
    const Storage* const p = CPU_CAPABILITY::row<Storage>(rows, block.row + row) + block.column + column;
    return {p, rows.stride, ahead * rows.stride, count};
  }
  WriteRows<Storage, Count> writes(Rows rows, bool as_stored = true) const {
    const bool stored = std::is_same_v<S, Storage> || as_stored;
    const int64_t size = stored ? sizeof(Storage) : sizeof(S);
    const int64_t offset = ((block.row + row) * rows.stride + block.column + column) * size;
    return {rows.data ? static_cast<char*>(rows.data) + offset : nullptr, rows.stride, ahead * rows.stride, count,
            as_stored};
  }
};

template <class Storage>
P<Storage> times(const P<Storage>& a, const P<Storage>& b) {
  return apply<Storage>([](auto x, auto y) { return x * y; }, a, b);
}
// a * b + c
template <class Storage>
P<Storage> fused(const P<Storage>& a, const P<Storage>& b, const P<Storage>& c) {
  return apply<Storage>([](auto x, auto y, auto z) { return multiply_add(x, y, z); }, a, b, c);
}
template <class Storage>
P<Storage> every(double value) {
  P<Storage> out;
  for (auto& part : out.part) part = static_cast<Compute<Storage>>(value);
  return out;
}

// A tangent times its weight in the trace.
template <class Storage>
P<Storage> weighted(const JetArguments& jet, int64_t d, const P<Storage>& tangent) {
  return jet.trace_weights ? times<Storage>(tangent, every<Storage>(jet.trace_weights[d])) : tangent;
}

// step(place, load, derivatives) for each packet of columns of each point of a block, where load(numbers) is the packet
// of one of the derivatives; at(place) is the value.
template <class Storage, class At, class Step>
void for_each_place(const JetArguments& jet, const Block& block, int orders, bool with_value, At at, Step step) {
  using S = Compute<Storage>;
  constexpr int64_t width = P<Storage>::width;
  constexpr int64_t rows_ahead = 8;
  const int64_t ahead = (rows_ahead + jet.rows() - 1) / jet.rows() * jet.rows();
  const int64_t points = block.rows / jet.rows();
  Derivatives<S> derivatives;
  for (int64_t first = 0; first < points; first += points_at_once) {
    const int64_t count = std::min(points_at_once, points - first);
    for (int64_t column = 0; column < block.columns; column += panel_columns<S>) {
      const int64_t columns = std::min(panel_columns<S>, block.columns - column);
      const auto for_each = [&](auto f) {
        for (int64_t p = 0; p < count; ++p) {
          const auto call = [&](int64_t c, auto size) {
            f(Place<Storage, decltype(size)>{block, (first + p) * jet.rows(), column + c, ahead, size},
              p * columns + c);
          };
          int64_t c = 0;
          for (; c + width <= columns; c += width) call(c, std::integral_constant<int64_t, width>());
          if (c < columns) call(c, columns - c);
        }
      };
      for_each(
          [&](const auto& place, int64_t i) { store_computed<Storage>(at(place), derivatives.at + i, place.count); });
      if (jet.activation) derivatives.compute(jet, count * columns, orders, with_value);
      for_each([&](const auto& place, int64_t i) {
        step(place, [&](const S* values) { return load_computed<Storage>(values + i, place.count); }, derivatives);
      });
    }
  }
}

// y = f(z) and its derivatives, row by row, from those of z.
template <class Storage, class Z, class Store>
void activate(const JetArguments& jet, const P<Storage>& value, const P<Storage>& first, const P<Storage>& second, Z z,
              Store store) {
  const int64_t directions = jet.directions;
  store(value, 0);
  P<Storage> squares = every<Storage>(0);
  for (int64_t d = 0; d < directions; ++d) {
    const auto t = z(1 + d);
    store(times<Storage>(t, first), 1 + d);
    if (jet.seconds == 0) continue;
    const auto w = weighted<Storage>(jet, d, t);
    if (jet.each) {
      const auto bend = times<Storage>(times<Storage>(w, t), second);
      store(fused<Storage>(z(1 + directions + d), first, bend), 1 + directions + d);
    } else {
      squares = fused<Storage>(w, t, squares);
    }
  }
  if (jet.seconds > 0 && !jet.each) {
    store(fused<Storage>(z(1 + directions), first, times<Storage>(squares, second)), 1 + directions);
  }
}

// What is read of the arguments is copied: what is stored could else change them, for all that the compiler knows.
template <class Storage>
void jet_forward(const void* arguments, const Block& of_sums) {
  const auto to = *static_cast<const JetForwardArguments*>(arguments);
  const Block block = of_sums;
  const auto at = [&](const auto& place) {
    const auto sum = place.sums()(0);
    if (!to.bias) return sum;
    const auto* const bias = static_cast<const Storage*>(to.bias) + block.column + place.column;
    return apply<Storage>([](auto a, auto b) { return a + b; }, sum, P<Storage>::load(bias, place.count));
  };
  const bool bends = to.jet.seconds > 0;
  for_each_place<Storage>(to.jet, block, bends ? 2 : 1, /*with_value=*/true, at,
                          [&](const auto& place, auto load, const auto& derivatives) {
                            const auto sum = place.sums();
                            const auto value = load(derivatives.at);
                            const auto pre = place.writes(to.pre);
                            const auto post = place.writes(to.post);
                            const auto next = place.writes(to.next, to.as_stored);
                            const auto z = [&](int64_t j) { return j == 0 ? value : sum(j); };
                            const auto store = [&](const P<Storage>& y, int64_t j) {
                              pre(z(j), j);
                              post(y, j);
                              next(y, j);
                            };
                            if (!to.jet.activation) {
                              for (int64_t j = 0; j < to.jet.rows(); ++j) store(z(j), j);
                              return;
                            }
                            const auto second = bends ? load(derivatives.order[1]) : every<Storage>(0);
                            activate<Storage>(to.jet, load(derivatives.value), load(derivatives.order[0]), second, z,
                                              store);
                          });
}

template <class Storage>
void jet_backward(const void* arguments, const Block& of_sums) {
  const auto to = *static_cast<const JetBackwardArguments*>(arguments);
  const Block block = of_sums;
  const JetArguments jet = to.jet;
  const int64_t directions = jet.directions;
  const bool bends = jet.seconds > 0;
  const auto at = [&](const auto& place) { return place.reads(to.saved)(0); };
  for_each_place<Storage>(jet, block, bends ? 3 : 2, /*with_value=*/to.value.data != nullptr, at,
                          [&](const auto& place, auto load, const auto& derivatives) {
                            const auto sum = place.sums();
                            const auto z = place.reads(to.saved);
                            const auto value = place.writes(to.value);
                            const auto store = place.writes(to.dz, to.as_stored);
                            if (!jet.activation) {
                              for (int64_t j = 0; j < jet.rows(); ++j) {
                                store(sum(j), j);
                                value(z(j), j);
                              }
                              return;
                            }
                            const auto first = load(derivatives.order[0]);
                            const auto second = load(derivatives.order[1]);
                            const auto third = bends ? load(derivatives.order[2]) : every<Storage>(0);
                            if (to.value.data) {
                              activate<Storage>(jet, load(derivatives.value), first, second, z, value);
                            }
                            // The sums of what f'' and f''' are multiplied with in the value's gradient.
                            auto by_second = every<Storage>(0);
                            auto by_third = every<Storage>(0);
                            for (int64_t d = 0; d < directions; ++d) {
                              const auto t = z(1 + d);
                              const auto grad = sum(1 + d);
                              by_second = fused<Storage>(t, grad, by_second);
                              auto dt = times<Storage>(grad, first);
                              if (bends) {
                                const int64_t j = 1 + directions + (jet.each ? d : 0);
                                const auto by = sum(j);
                                const auto w = weighted<Storage>(jet, d, t);
                                const auto slope = times<Storage>(by, w);
                                by_third = fused<Storage>(slope, t, by_third);
                                dt = fused<Storage>(apply<Storage>([](auto a) { return a + a; }, slope), second, dt);
                                if (jet.each) {
                                  by_second = fused<Storage>(by, z(j), by_second);
                                  store(times<Storage>(by, first), j);
                                }
                              }
                              store(dt, 1 + d);
                            }
                            if (bends && !jet.each) {
                              const auto by = sum(1 + directions);
                              by_second = fused<Storage>(by, z(1 + directions), by_second);
                              store(times<Storage>(by, first), 1 + directions);
                            }
                            const auto bend = bends ? times<Storage>(by_third, third) : every<Storage>(0);
                            store(fused<Storage>(sum(0), first, fused<Storage>(by_second, second, bend)), 0);
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
    }
  });
}

}  // namespace fastops::cpu::CPU_CAPABILITY
