// A norm with or without an activation after it, on few rows, forward and backward. rows.hip does that and whatever
// other steps there are; with few rows, the way through its code and its waits for memory are what takes the time.
//
// 32 lanes have a row, in registers. They ask for all that they need from memory before they compute anything, and need
// no barrier. Values pass the activation in shared memory, where each thread finds its own again, so that its formula
// is compiled for four of them and not for as many as a thread has.
#include <algorithm>

#include "backends/hip/kernels/narrow_rows.h"
#include "backends/hip/kernels/row_tile.h"

namespace fastops::hip {
namespace {

inline constexpr int rows_of_block = 2;  // a wave of 64 has two
inline constexpr int threads = rows_of_block * lanes;
inline constexpr int most_columns = 1024;

// Blocks that a multiprocessor is to have registers for: left alone, nvcc would spill some for more.
inline constexpr int room = is_hip ? 1 : 4;

template <class T>
struct Steps {
  int64_t rows;
  int columns;
  bool centered;
  float eps;
  const T* weight;
  const T* bias;
  Activation activation = Activation::identity;
  Params<float> params{};
  bool wants_weight_grad;
  bool wants_bias_grad;

  Steps(const RowsCall& call)
      : rows(call.rows),
        columns(static_cast<int>(call.columns)),
        centered(call.steps[0].centered),
        eps(static_cast<float>(call.steps[0].eps)),
        weight(static_cast<const T*>(call.steps[0].weight.data)),
        bias(static_cast<const T*>(call.steps[0].bias.data)),
        wants_weight_grad(call.steps[0].wants_weight_grad),
        wants_bias_grad(call.steps[0].wants_bias_grad) {
    if (call.count == 1) return;
    activation = call.steps[1].activation;
    params = compute_params<float>(call.steps[1].params);
  }
};

// A lane's part of a row: at each of its `places` four elements, 128 columns on.
template <class T, int places>
class PartOfRow {
 public:
  using Elements = Piece<T, 4>;
  using Bytes = PieceBytes<T, 4>;

  __device__ explicit PartOfRow(const Steps<T>& steps)
      : row_(int64_t{blockIdx.x} * rows_of_block + threadIdx.x / lanes),
        columns_(steps.columns),
        end_(row_ < steps.rows ? steps.columns : 0),
        first_(4 * (threadIdx.x % lanes)) {}

  __device__ int64_t number() const { return row_; }
  __device__ int64_t begin() const { return row_ * columns_; }
  __device__ int column(int place) const { return first_ + 4 * lanes * place; }
  __device__ bool has(int place) const { return column(place) < end_; }

  // Asks for the elements of a row that begins at `from`, in two calls: packets come first for all operands, as of
  // Pieces. Where there are none, they are `otherwise`.
  __device__ void ask(const T* from, Elements (&elements)[places], float otherwise = 0.0f) const {
#pragma unroll
    for (int p = 0; p < places; ++p) {
#pragma unroll
      for (int k = 0; k < 4; ++k) elements[p].set(k, narrow<T>(otherwise));
      if (in_packets(from) && has(p)) {
        elements[p] = bit_cast<Elements>(*reinterpret_cast<const Bytes*>(from + column(p)));
      }
    }
  }
  __device__ void ask_others(const T* from, Elements (&elements)[places]) const {
    if (!from || in_packets(from)) return;
#pragma unroll
    for (int p = 0; p < places; ++p) {
      if (!has(p)) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) elements[p].set(k, from[column(p) + k]);
    }
  }

  __device__ static Four<float> widened(const Elements& elements) {
    const Elements here = opaque(elements);
    Four<float> four;
#pragma unroll
    for (int k = 0; k < 4; ++k) four.of[k] = widen(here.get(k));
    return four;
  }

  __device__ void store(const Four<float>& four, int place, T* to) const {
    if (!has(place)) return;
    Elements elements;
#pragma unroll
    for (int k = 0; k < 4; ++k) elements.set(k, narrow<T>(four.of[k]));
    *reinterpret_cast<Bytes*>(to + begin() + column(place)) = bit_cast<Bytes>(elements);
  }

 private:
  __device__ static bool in_packets(const T* from) {
    return from && reinterpret_cast<uintptr_t>(from) % sizeof(Bytes) == 0;
  }

  int64_t row_;
  int columns_;
  int end_;
  int first_;
};

__device__ inline float sum_over_lanes(float sum) {
#pragma unroll
  for (int bit = lanes / 2; bit > 0; bit /= 2) sum += of_other_lane(sum, bit);
  return sum;
}

// h = (h - mean) / sqrt(variance + eps), and what h - mean is multiplied with. Beyond the row h is 0.
template <class T, int places>
__device__ float normalize(const Steps<T>& steps, const PartOfRow<T, places>& row, Four<float> (&h)[places]) {
  const float n = static_cast<float>(steps.columns);
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int p = 0; p < places; ++p) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += h[p].of[k];
  }
  const float mean = steps.centered ? sum_over_lanes(sum) / n : 0.0f;
#pragma unroll
  for (int p = 0; p < places; ++p) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      h[p].of[k] = row.has(p) ? h[p].of[k] - mean : 0.0f;
      squares += h[p].of[k] * h[p].of[k];
    }
  }
  const float multiplier = 1.0f / library::sqrt(sum_over_lanes(squares) / n + steps.eps);
#pragma unroll
  for (int p = 0; p < places; ++p) h[p] = map([&](float x) { return x * multiplier; }, h[p]);
  return multiplier;
}

struct Affine {
  __device__ float operator()(float h, float weight, float bias) const { return h * weight + bias; }
};

template <class T, int places>
__global__ void __launch_bounds__(threads, room) narrow_forward(Steps<T> steps, const T* x, T* y) {
  using N = NumberOf<T>;
  const PartOfRow<T, places> row(steps);
  Piece<T, 4> from[places], weight[places], bias[places];
  row.ask(x + row.begin(), from);
  row.ask(steps.weight, weight, 1.0f);
  row.ask(steps.bias, bias);
  row.ask_others(x + row.begin(), from);
  row.ask_others(steps.weight, weight);
  row.ask_others(steps.bias, bias);

  Four<float> h[places];
#pragma unroll
  for (int p = 0; p < places; ++p) h[p] = row.widened(from[p]);
  normalize(steps, row, h);
  Four<float>* const z = static_cast<Four<float>*>(shared_memory()) + threadIdx.x;
#pragma unroll
  for (int p = 0; p < places; ++p) z[p * threads] = map(Affine(), h[p], row.widened(weight[p]), row.widened(bias[p]));
  with_activation(steps.activation, [&](auto f) {
#pragma unroll 1
    for (int p = 0; p < places; ++p) {
      row.store(map([&](float x) { return decltype(f)::value(N(x), steps.params).v; }, z[p * threads]), p, y);
    }
  });
}

// Each row's sums are the terms of the weight's gradient and of the bias'.
template <class T, int places>
__global__ void __launch_bounds__(threads, room)
    narrow_backward(Steps<T> steps, const T* x, const T* grad, T* dx, T* value, float* sums) {
  using N = NumberOf<T>;
  const PartOfRow<T, places> row(steps);
  Piece<T, 4> from[places], of_grad[places], weight[places], bias[places];
  row.ask(x + row.begin(), from);
  row.ask(grad + row.begin(), of_grad);
  row.ask(steps.weight, weight, 1.0f);
  row.ask(steps.bias, bias);
  row.ask_others(x + row.begin(), from);
  row.ask_others(grad + row.begin(), of_grad);
  row.ask_others(steps.weight, weight);
  row.ask_others(steps.bias, bias);

  Four<float> h[places];
#pragma unroll
  for (int p = 0; p < places; ++p) h[p] = row.widened(from[p]);
  const float multiplier = normalize(steps, row, h);
  Four<float>* const z = static_cast<Four<float>*>(shared_memory()) + threadIdx.x;
  Four<float>* const g = z + places * threads;
#pragma unroll
  for (int p = 0; p < places; ++p) {
    z[p * threads] = map(Affine(), h[p], row.widened(weight[p]), row.widened(bias[p]));
    g[p * threads] = row.widened(of_grad[p]);
  }
  with_activation(steps.activation, [&](auto f) {
    using A = decltype(f);
#pragma unroll 1
    for (int p = 0; p < places; ++p) {
      const Four<float> at = z[p * threads];
      const auto gradient = [&](float g, float x) { return A::template gradient<N>(N(g), N(x), steps.params).v; };
      g[p * threads] = map(gradient, g[p * threads], at);
      if (value) row.store(map([&](float x) { return A::value(N(x), steps.params).v; }, at), p, value);
    }
  });

  Four<float> through[places];
  float sum = 0.0f, along = 0.0f;
#pragma unroll
  for (int p = 0; p < places; ++p) {
    const auto times = [](float a, float b) { return a * b; };
    const Four<float> of_bias = g[p * threads], of_weight = map(times, of_bias, h[p]);
    through[p] = map(times, of_bias, row.widened(weight[p]));
    if (!row.has(p)) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += through[p].of[k];
      along += through[p].of[k] * h[p].of[k];
    }
    float* to = sums + row.number() * (steps.wants_weight_grad + steps.wants_bias_grad) * steps.columns + row.column(p);
    const auto keep = [&](const Four<float>& four) {
      *reinterpret_cast<Four<float>*>(to) = four;
      to += steps.columns;
    };
    if (steps.wants_weight_grad) keep(of_weight);
    if (steps.wants_bias_grad) keep(of_bias);
  }
  if (!dx) return;
  const float n = static_cast<float>(steps.columns);
  const float mean = steps.centered ? sum_over_lanes(sum) / n : 0.0f;
  const float of_row = sum_over_lanes(along) / n;
#pragma unroll
  for (int p = 0; p < places; ++p) {
    const auto before = [&](float g, float x) { return (g - mean - x * of_row) * multiplier; };
    row.store(map(before, through[p], h[p]), p, dx);
  }
}

// f.template operator()<T, places>()
template <class F>
Error dispatch(const RowsCall& call, Dtype dtype, F f) {
  return with_storage</*has_float64=*/false>(dtype, [&]<class T>() {
    constexpr int columns = 4 * lanes;
    if (call.columns <= 2 * columns) return f.template operator()<T, 2>();
    if (call.columns <= 4 * columns) return f.template operator()<T, 4>();
    return f.template operator()<T, most_columns / columns>();
  });
}

dim3 blocks_of(const RowsCall& call) { return dim3(divide_up(call.rows, rows_of_block)); }

size_t shared_bytes(int places, int tiles) { return sizeof(Four<float>) * threads * places * tiles; }

}  // namespace

bool may_be_narrow(const RowsCall& call) {
  const bool is_norm = call.count >= 1 && call.steps[0].kind == RowStep::Kind::norm;
  const bool is_activated = call.count == 2 && call.steps[1].kind == RowStep::Kind::activation;
  if (!is_norm || (call.count > 1 && !is_activated) || call.rows > 2 * call.multiprocessors) return false;
  return call.computed == Dtype::float32 && call.columns % 4 == 0 && call.columns <= most_columns;
}

bool is_narrow(const RowsCall& call, std::initializer_list<Numbers> tensors) {
  if (!may_be_narrow(call)) return false;
  const Dtype dtype = tensors.begin()->dtype;
  const auto fits = [&](const Numbers& numbers) { return !numbers.data || numbers.dtype == dtype; };
  return std::all_of(tensors.begin(), tensors.end(), fits) && fits(call.steps[0].weight) && fits(call.steps[0].bias);
}

Error narrow_forward(const RowsCall& call, Numbers x, Numbers y) {
  return dispatch(call, x.dtype, [&]<class T, int places>() {
    return launch(narrow_forward<T, places>, blocks_of(call), dim3(threads), shared_bytes(places, 1), call.stream,
                  Steps<T>(call), static_cast<const T*>(x.data), static_cast<T*>(y.data));
  });
}

Error narrow_backward(const RowsCall& call, Numbers x, Numbers grad, Numbers dx, Numbers value, float* sums) {
  return dispatch(call, x.dtype, [&]<class T, int places>() {
    return launch(narrow_backward<T, places>, blocks_of(call), dim3(threads), shared_bytes(places, 2), call.stream,
                  Steps<T>(call), static_cast<const T*>(x.data), static_cast<const T*>(grad.data),
                  static_cast<T*>(dx.data), static_cast<T*>(value.data), sums);
  });
}

}  // namespace fastops::hip
