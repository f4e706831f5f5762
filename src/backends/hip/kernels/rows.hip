// Steps on rows: normalization, scales, dropout and activations one after another, in one pass over memory, forward and
// backward.
//
// A block takes some rows at a time. They are in shared memory, in the type that is computed with, from the first step
// to the last. Each element belongs to a thread, the one that computes whether a dropout keeps it, and no other thread
// reads or writes it there: threads meet for sums over a row alone.
#include "backends/hip/kernels/block_sums.h"
#include "backends/hip/kernels/row_tile.h"
#include "backends/hip/kernels/tile.h"

namespace fastops::hip {
namespace {

// f(data) with the numbers in their type. All threads take the same branch.
template <class F>
__device__ void with_numbers(const Numbers& numbers, F f) {
  switch (numbers.dtype) {
    case Dtype::float32:
      return f(static_cast<float*>(numbers.data));
    case Dtype::float64:
      return f(static_cast<double*>(numbers.data));
    case Dtype::bfloat16:
      return f(static_cast<bfloat16*>(numbers.data));
    case Dtype::float16:
      return f(static_cast<float16*>(numbers.data));
  }
}

struct Set {
  template <class S>
  __device__ void operator()(S& element, S value) const {
    element = value;
  }
};
struct Add {
  template <class S>
  __device__ void operator()(S& element, S value) const {
    element += value;
  }
};
struct Times {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a * b;
  }
};

// f(h[place].of[i], number) for the thread's elements and those of a row of `from`, which begins at `begin`.
template <class S, class F>
__device__ void read(const Numbers& from, int64_t begin, const Row<S>& row, Four<S>* h, F f) {
  with_numbers(from, [&](const auto* data) {
    row.for_each_of(data + begin, [&](int place, const auto& numbers) {
      Four<S> four = h[place];
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) f(four.of[i], static_cast<S>(widen(numbers[i])));
      h[place] = four;
    });
  });
}

// A row of `to`, which begins at `begin`, becomes h.
template <class S>
__device__ void write(const Four<S>* h, const Row<S>& row, const Numbers& to, int64_t begin) {
  with_numbers(to, [&]<class T>(T* data) {
    row.for_each_element([&](int place, int i, int column) {
      data[begin + column] = narrow<T>(static_cast<Compute<T>>(h[place].of[i]));
    });
  });
}

// to = f(from...) for the thread's elements. `to` may be one of the others.
template <class S, class F, class... From>
__device__ void compute(const Row<S>& row, Four<S>* to, F f, const From*... from) {
  row.for_each([&](int place) {
    Four<S> result;
    [&](const auto&... fours) {
#pragma unroll
      for (int i = 0; i < numbers_of_call; ++i) result.of[i] = f(fours.of[i]...);
    }(from[place]...);
    to[place] = result;
  });
}

// Blocks that nvcc is to find room for on a multiprocessor: for more, it would spill registers.
template <class S>
inline constexpr int room = sizeof(S) == 8 ? 2 : 4;

// ---- a step ----

template <class S>
struct Rows {
  RowStep steps[most_row_steps];
  int count;
  const int64_t* seed;
  int64_t rows;
  int columns;

  explicit Rows(const RowsCall& call)
      : count(call.count),
        seed(static_cast<const int64_t*>(call.seed)),
        rows(call.rows),
        columns(static_cast<int>(call.columns)) {
    for (int i = 0; i < count; ++i) steps[i] = call.steps[i];
  }
};

// h = f(h), which is kept where there is a place for it.
template <class S>
__device__ void activate(const RowStep& step, const Row<S>& row, Four<S>* h, Four<S>* kept) {
  const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
  if (kept) compute(row, kept, [](S x) { return x; }, h);
  with_activation(step.activation,
                  [&](auto f) { compute(row, h, [&](S x) { return decltype(f)::value(Number<S>(x), params).v; }, h); });
}

// h = h * weight + bias
template <class S>
__device__ void affine(const RowStep& step, const Row<S>& row, Four<S>* h) {
  if (step.weight.data) read(step.weight, 0, row, h, [](S& x, S weight) { x *= weight; });
  if (step.bias.data) read(step.bias, 0, row, h, Add());
}

// h = (h - mean) * the result, which is 1 / sqrt(variance + eps)
template <class S>
__device__ S normalize(const RowStep& step, const Row<S>& row, int columns, Four<S>* h) {
  const auto sum_of = [&](auto term) {
    S sum = S(0);
    row.for_each_element([&](int place, int i, int) { sum += term(h[place].of[i]); });
    return row.sum(sum);
  };
  const S n = static_cast<S>(columns);
  S mean = S(0);
  if (step.centered) mean = sum_of([](S x) { return x; }) / n;
  const S squares = sum_of([&](S x) { return (x - mean) * (x - mean); });
  const S multiplier = S(1) / library::sqrt(squares / n + static_cast<S>(step.eps));
  compute(row, h, [&](S x) { return (x - mean) * multiplier; }, h);
  return multiplier;
}

// h = h * the dropout's factors
template <class S>
__device__ void drop(const RowStep& step, const Row<S>& row, uint64_t seed, Four<S>* h) {
  row.for_each_number(seed, step.stream, [&](int place, const FourNumbers& numbers) {
    Four<S> four = h[place];
#pragma unroll
    for (int i = 0; i < numbers_of_call; ++i) {
      four.of[i] *= numbers.of[i] >= step.threshold ? static_cast<S>(step.scale) : S(0);
    }
    h[place] = four;
  });
}

// f(row) for each of the block's rows, and for places without one.
template <class S, class F>
__device__ void for_each_row(const Rows<S>& rows, int steps, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < rows.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    f(Row<S>(shared_memory(), rows.columns, steps, row, row < rows.rows));
  }
}

template <class S>
__global__ void __launch_bounds__(block_threads, room<S>) forward(Rows<S> rows, Numbers x, Numbers added, Numbers y) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  for_each_row(rows, 0, [&](const Row<S>& row) {
    Four<S>* const h = row.tile(0);
    const int64_t begin = row.number() * rows.columns;
    read(x, begin, row, h, Set());
    for (int i = 0; i < rows.count; ++i) {
      const RowStep& step = rows.steps[i];
      switch (step.kind) {
        case RowStep::Kind::activation:
          activate<S>(step, row, h, nullptr);
          break;
        case RowStep::Kind::norm:
          normalize(step, row, rows.columns, h);
          [[fallthrough]];
        case RowStep::Kind::scale:
          affine(step, row, h);
          break;
        case RowStep::Kind::dropout:
          drop(step, row, seed, h);
          break;
      }
    }
    if (added.data) read(added, begin, row, h, Add());
    write(h, row, y, begin);
  });
}

// ---- backward ----

// The tiles of a block: one for each step, with what its gradient is made of (the input; of a norm the normalized one;
// of a dropout the factors), one for the values and then their gradients, and one for each vector's sums.
template <class S>
class Backward {
 public:
  __device__ Backward(const Rows<S>& rows, const Row<S>& row) : rows_(rows), row_(row), h_(row.tile(rows.count)) {}

  __device__ void forward(const Numbers& x, uint64_t seed) {
    if (x.data) read(x, begin(), row_, h_, Set());
    for (int i = 0; i < rows_.count; ++i) {
      const RowStep& step = rows_.steps[i];
      Four<S>* const kept = row_.tile(i);
      switch (step.kind) {
        case RowStep::Kind::activation:
          activate(step, row_, h_, kept);
          break;
        case RowStep::Kind::norm:
          row_.of_step(i) = normalize(step, row_, rows_.columns, h_);
          [[fallthrough]];
        case RowStep::Kind::scale:
          compute(row_, kept, [](S x) { return x; }, h_);
          affine(step, row_, h_);
          break;
        case RowStep::Kind::dropout:
          row_.for_each([&](int place) { kept[place] = {{S(1), S(1), S(1), S(1)}}; });
          drop(step, row_, seed, kept);
          if (x.data) compute(row_, h_, Times(), h_, kept);
          break;
      }
    }
  }

  __device__ void store_value(const Numbers& value) const {
    if (value.data) write<S>(h_, row_, value, begin());
  }

  __device__ void backward(const Numbers& grad, const Numbers& added, const Numbers& dx) {
    read(grad, begin(), row_, h_, Set());
    int sums = 0;
    for (int i = 0; i < rows_.count; ++i) sums += rows_.steps[i].wants_weight_grad + rows_.steps[i].wants_bias_grad;
    for (int i = rows_.count - 1; i >= 0; --i) {
      const RowStep& step = rows_.steps[i];
      const Four<S>* const kept = row_.tile(i);
      if (step.wants_bias_grad) {
        Four<S>* const sum = row_.tile(rows_.count + sums--);
        compute(row_, sum, [](S s, S g) { return s + g; }, sum, h_);
      }
      if (step.wants_weight_grad) {
        Four<S>* const sum = row_.tile(rows_.count + sums--);
        compute(row_, sum, [](S s, S g, S x) { return s + g * x; }, sum, h_, kept);
      }
      through(step, i, kept);
    }
    if (!dx.data) return;
    if (added.data) read(added, begin(), row_, h_, Add());
    write<S>(h_, row_, dx, begin());
  }

 private:
  __device__ int64_t begin() const { return row_.number() * rows_.columns; }

  // h_, the gradient of the step's result, becomes that of its input.
  __device__ void through(const RowStep& step, int i, const Four<S>* kept) {
    switch (step.kind) {
      case RowStep::Kind::activation: {
        const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
        with_activation(step.activation, [&](auto f) {
          using N = Number<S>;
          const auto gradient = [&](S g, S x) { return decltype(f)::template gradient<N>(N(g), N(x), params).v; };
          compute(row_, h_, gradient, h_, kept);
        });
        return;
      }
      case RowStep::Kind::dropout:
        compute(row_, h_, Times(), h_, kept);
        return;
      default:
        break;
    }
    if (step.weight.data) read(step.weight, 0, row_, h_, [](S& g, S weight) { g *= weight; });
    if (step.kind == RowStep::Kind::scale) return;
    const auto mean_of = [&](auto term) {
      S sum = S(0);
      row_.for_each_element([&](int place, int i, int) { sum += term(h_[place].of[i], kept[place].of[i]); });
      return row_.sum(sum) / static_cast<S>(rows_.columns);
    };
    S mean = S(0);
    if (step.centered) mean = mean_of([](S g, S) { return g; });
    const S along = mean_of(Times());
    const S multiplier = row_.of_step(i);
    compute(row_, h_, [&](S g, S x) { return (g - mean - x * along) * multiplier; }, h_, kept);
  }

  const Rows<S>& rows_;
  const Row<S>& row_;
  Four<S>* h_;
};

// Columns of sums: those of the steps in order, the weight's before the bias'.
template <class S>
__global__ void __launch_bounds__(block_threads, room<S>)
    backward(Rows<S> rows, int sums, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value, S* block_sums) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  const Row<S> places(shared_memory(), rows.columns, rows.count, 0, true);
  for (int i = 0; i < sums; ++i) {
    Four<S>* const sum = places.tile(rows.count + 1 + i);
    places.for_each([&](int place) { sum[place] = {}; });
  }
  for_each_row(rows, rows.count, [&](const Row<S>& row) {
    Backward<S> block(rows, row);
    block.forward(x, seed);
    block.store_value(value);
    block.backward(grad, added, dx);
  });
  // The sums of the block's rows are in the first one's memory and those behind it.
  __syncthreads();
  if (threadIdx.y > 0) return;
  const int next_row = static_cast<int>(blockDim.x) * fours_of_thread(rows.columns, blockDim.x);
  for (int i = 0; i < sums; ++i) {
    const Four<S>* const of_rows = places.tile(rows.count + 1 + i);
    S* const to = block_sums + (int64_t{blockIdx.x} * sums + i) * rows.columns;
    places.for_each_element([&](int place, int k, int column) {
      S sum = S(0);
      for (unsigned r = 0; r < blockDim.y; ++r) sum += of_rows[r * next_row + place].of[k];
      to[column] = sum;
    });
  }
}

template <class S>
__global__ void __launch_bounds__(block_threads)
    add_blocks(const S* block_sums, int64_t blocks, int64_t sums, S* result) {
  sum_over_blocks(block_sums, blocks, sums, [&](int64_t place, S sum) { result[place] = sum; });
}

int sums_of(const RowsCall& call) {
  int sums = 0;
  for (int i = 0; i < call.count; ++i) sums += call.steps[i].wants_weight_grad + call.steps[i].wants_bias_grad;
  return sums;
}

int64_t size_of(Dtype computed) { return computed == Dtype::float64 ? sizeof(double) : sizeof(float); }

// Of a block of so many rows.
int64_t shared_bytes(const RowsCall& call, bool backward, int64_t rows) {
  const int64_t tiles = backward ? call.count + 1 + sums_of(call) : 1;
  return shared_numbers(call.columns, rows, backward ? call.count : 0, tiles) * size_of(call.computed);
}

// Rows whose threads are whole waves.
int64_t rows_of_waves(const RowsCall& call) { return row_threads(call.columns) < lanes ? 2 : 1; }

// As many rows as every GPU has shared memory for, or few.
dim3 block_of(const RowsCall& call, bool backward) {
  const int threads = row_threads(call.columns);
  const int64_t few = rows_of_waves(call);
  const int64_t fit = shared_bytes_everywhere / shared_bytes(call, backward, few) * few;
  return dim3(threads, std::clamp<int64_t>(fit, few, block_threads / threads));
}

// The numbers follow from the sizes alone, so that a sum is made of the same parts on every device.
int64_t blocks_of(const RowsCall& call, bool backward) {
  constexpr int64_t most_blocks = 1 << 20;
  constexpr int64_t most_blocks_with_sums = 512;
  const int64_t most = backward && sums_of(call) > 0 ? most_blocks_with_sums : most_blocks;
  return std::min(divide_up(call.rows, block_of(call, backward).y), most);
}

// f.template operator()<S>() with the type that is computed with.
template <class F>
Error dispatch_computed(const RowsCall& call, F f) {
  return call.computed == Dtype::float64 ? f.template operator()<double>() : f.template operator()<float>();
}

}  // namespace

bool rows_fit(const RowsCall& call, bool backward) {
  return call.columns <= call.most_shared_bytes &&
         shared_bytes(call, backward, rows_of_waves(call)) <= call.most_shared_bytes;
}

Error rows_forward(const RowsCall& call, Numbers x, Numbers added, Numbers y) {
  return dispatch_computed(call, [&]<class S>() {
    const dim3 block = block_of(call, false);
    return launch(forward<S>, dim3(blocks_of(call, false)), block, shared_bytes(call, false, block.y), call.stream,
                  Rows<S>(call), x, added, y);
  });
}

int64_t rows_backward_sums(const RowsCall& call) { return blocks_of(call, true) * sums_of(call) * call.columns; }

Error rows_backward(const RowsCall& call, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value,
                    void* block_sums, void* vector_grads) {
  return dispatch_computed(call, [&]<class S>() -> Error {
    const int64_t blocks = blocks_of(call, true);
    const int sums = sums_of(call);
    const dim3 block = block_of(call, true);
    if (Error error = launch(backward<S>, dim3(blocks), block, shared_bytes(call, true, block.y), call.stream,
                             Rows<S>(call), sums, x, grad, added, dx, value, static_cast<S*>(block_sums))) {
      return error;
    }
    if (sums == 0) return nullptr;
    const int64_t places = sums * call.columns;
    return launch_sum_over_blocks<S>(add_blocks<S>, static_cast<const S*>(block_sums), blocks, places, call.stream,
                                     static_cast<S*>(vector_grads));
  });
}

}  // namespace fastops::hip
