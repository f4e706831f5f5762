// Steps on rows: normalization, scales, dropout and activations one after another, in one pass over memory, forward and
// backward.
//
// A block takes some rows at a time. They are in shared memory, in the type that is computed with, from the first step
// to the last. Four neighbours in a row belong to a thread, and no other reads or writes them but in a dropout, whose
// numbers are of another order: threads meet for that and for sums over a row alone.
#include "backends/hip/kernels/block_sums.h"
#include "backends/hip/kernels/narrow_rows.h"
#include "backends/hip/kernels/row_tile.h"
#include "backends/hip/kernels/tile.h"

namespace fastops::hip {
namespace {

// What several kernels call is inlined by force: a function would not know that pointers are to shared memory.

// f(data) with the numbers in their type. All threads take the same branch.
template <class F>
__device__ __forceinline__ void with_numbers(const Numbers& numbers, F f) {
  void* const data = in_global_memory(numbers.data);
  switch (numbers.dtype) {
    case Dtype::float32:
      return f(static_cast<float*>(data));
    case Dtype::float64:
      return f(static_cast<double*>(data));
    case Dtype::bfloat16:
      return f(static_cast<bfloat16*>(data));
    case Dtype::float16:
      return f(static_cast<float16*>(data));
  }
}

struct Set {
  template <class S>
  __device__ void operator()(S& element, S value) const {
    element = value;
  }
};
struct Plus {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a + b;
  }
};
struct Times {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a * b;
  }
};

// f(place, four) for the thread's places and their numbers in a row of `from`, which begins at `begin`.
template <class S, class F>
__device__ __forceinline__ void read(const Numbers& from, int64_t begin, const Row<S>& row, F f) {
  if (row.in_fours(from.data)) {
    const auto load = [&](auto& fours, int place) {
      with_numbers(from, [&](const auto* data) { row.template load<true>(data + begin, place, fours); });
    };
    row.template for_each_read<16 / sizeof(S)>(load, f);
  } else {
    const auto load = [&](auto& fours, int place) {
      with_numbers(from, [&](const auto* data) { row.template load<false>(data + begin, place, fours); });
    };
    row.template for_each_read<1>(load, f);
  }
}

// h = h + the row of `from`
template <class S>
__device__ __forceinline__ void add(const Numbers& from, int64_t begin, const Row<S>& row, Four<S>* h) {
  read(from, begin, row, [&](int place, const Four<S>& four) { h[place] = map(Plus(), h[place], four); });
}

// The row of `to` becomes h.
template <class S>
__device__ __forceinline__ void write(const Four<S>* h, const Row<S>& row, const Numbers& to) {
  const bool in_fours = row.in_fours(to.data);
  with_numbers(to, [&](auto* data) {
    row.for_each([&](int place) { row.store(h[place], place, data + row.begin(), in_fours); });
  });
}

// to = f(from...) for the thread's elements. `to` may be one of the others.
template <class S, class F, class... From>
__device__ __forceinline__ void compute(const Row<S>& row, Four<S>* to, F f, const From*... from) {
  row.for_each([&](int place) { to[place] = map(f, from[place]...); });
}

// Where a step keeps what its gradient is made of: in a tile, or, without gradients, nowhere.
struct Nowhere {};
template <class S>
__device__ void keep(Nowhere, int, const Four<S>&) {}
template <class S>
__device__ void keep(Four<S>* kept, int place, const Four<S>& four) {
  kept[place] = four;
}

// Blocks that nvcc is to find room for on a multiprocessor: for more, it would spill registers.
template <class S>
inline constexpr int room = is_hip           ? 1
                            : sizeof(S) == 8 ? 2
                                             : 4;

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

// h = f(h)
template <class S>
__device__ __forceinline__ void activate(const RowStep& step, const Row<S>& row, Four<S>* h) {
  const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
  with_activation(step.activation,
                  [&](auto f) { compute(row, h, [&](S x) { return decltype(f)::value(Number<S>(x), params).v; }, h); });
}

// What a norm subtracts, and what it then multiplies with: 1 / sqrt(variance + eps). A scale does neither.
template <class S>
struct Norm {
  S mean = S(0), multiplier = S(1);
};

template <class S>
__device__ __forceinline__ Norm<S> norm(const RowStep& step, Row<S>& row, const Four<S>* h) {
  const S n = static_cast<S>(row.columns());
  S sum[1] = {}, squares[1] = {};
  if (step.centered) row.add_up(sum, [](S(&sum)[1], S x) { sum[0] += x; }, h);
  const S mean = sum[0] / n;
  row.add_up(squares, [&](S(&sum)[1], S x) { sum[0] += (x - mean) * (x - mean); }, h);
  return {mean, S(1) / library::sqrt(squares[0] / n + static_cast<S>(step.eps))};
}

// kept = (h - mean) * multiplier; h = kept * weight + bias, if it is `wanted`.
template <class S, class Kept>
__device__ __forceinline__ void affine(const RowStep& step, const Row<S>& row, const Norm<S>& norm, bool wanted,
                                       Four<S>* h, Kept kept) {
  const auto normalized = [&](int place) {
    const Four<S> four = map([&](S x) { return (x - norm.mean) * norm.multiplier; }, h[place]);
    keep(kept, place, four);
    return four;
  };
  if (wanted && step.weight.data) {
    read(step.weight, 0, row,
         [&](int place, const Four<S>& weight) { h[place] = map(Times(), normalized(place), weight); });
  } else {
    row.for_each([&](int place) { h[place] = normalized(place); });
  }
  if (wanted && step.bias.data) add(step.bias, 0, row, h);
}

// f(element, factor) for a tile's elements and the dropout's factors
template <class S, class F>
__device__ __forceinline__ void drop(const RowStep& step, const Row<S>& row, uint64_t seed, Four<S>* tile, F f) {
  row.for_each_number(seed, step.stream, tile, [&](S& element, uint32_t number) {
    f(element, number >= step.threshold ? static_cast<S>(step.scale) : S(0));
  });
}

// f() with `row` at each of the block's rows, and at places without one.
template <class S, class F>
__device__ void for_each_row(const Rows<S>& rows, Row<S>& row, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < rows.rows; first += step) {
    row.move_to(first + threadIdx.y, first + threadIdx.y < rows.rows);
    f();
  }
}

template <class S>
__global__ void __launch_bounds__(block_threads, room<S>) forward(Rows<S> rows, Numbers x, Numbers added, Numbers y) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  Row<S> row(shared_memory(), rows.columns, 0);
  Four<S>* const h = row.tile(0);
  for_each_row(rows, row, [&] {
    read(x, row.begin(), row, [&](int place, const Four<S>& four) { h[place] = four; });
    for (int i = 0; i < rows.count; ++i) {
      const RowStep& step = rows.steps[i];
      switch (step.kind) {
        case RowStep::Kind::activation:
          activate(step, row, h);
          break;
        case RowStep::Kind::norm:
        case RowStep::Kind::scale:
          affine(step, row, step.kind == RowStep::Kind::norm ? norm(step, row, h) : Norm<S>(), true, h, Nowhere());
          break;
        case RowStep::Kind::dropout:
          drop(step, row, seed, h, [](S& element, S factor) { element *= factor; });
          break;
      }
    }
    if (added.data) add(added, row.begin(), row, h);
    write(h, row, y);
  });
}

// ---- backward ----

// The tiles of a block: one for each step, with what its gradient is made of (the input; of a norm the normalized one;
// of a dropout the factors), one for the values and then their gradients, and one for each vector's sums.
template <class S>
class Backward {
 public:
  __device__ Backward(const Rows<S>& rows, Row<S>& row) : rows_(rows), row_(row), h_(row.tile(rows.count)) {}

  // The value of the last step, if it is wanted, and what the gradients are made of.
  __device__ __forceinline__ void forward(const Numbers& x, uint64_t seed, const Numbers& value) {
    if (x.data) read(x, row_.begin(), row_, [&](int place, const Four<S>& four) { h_[place] = four; });
    for (int i = 0; i < rows_.count; ++i) {
      const RowStep& step = rows_.steps[i];
      const bool wanted = i + 1 < rows_.count || value.data;
      Four<S>* const kept = row_.tile(i);
      switch (step.kind) {
        case RowStep::Kind::activation:
          compute(row_, kept, [](S x) { return x; }, h_);
          if (wanted) activate(step, row_, h_);
          break;
        case RowStep::Kind::norm:
        case RowStep::Kind::scale: {
          const Norm<S> of = step.kind == RowStep::Kind::norm ? norm(step, row_, h_) : Norm<S>();
          row_.of_step(i) = of.multiplier;
          affine(step, row_, of, wanted, h_, kept);
          break;
        }
        case RowStep::Kind::dropout:
          drop(step, row_, seed, kept, Set());
          if (wanted && x.data) compute(row_, h_, Times(), h_, kept);
          break;
      }
    }
    if (value.data) write(h_, row_, value);
  }

  __device__ __forceinline__ void backward(const Numbers& grad, const Numbers& added, const Numbers& dx) {
    read(grad, row_.begin(), row_, [&](int place, const Four<S>& four) { h_[place] = four; });
    int sums = 0;
    for (int i = 0; i < rows_.count; ++i) sums += rows_.steps[i].wants_weight_grad + rows_.steps[i].wants_bias_grad;
    for (int i = rows_.count - 1; i >= 0; --i) {
      const RowStep& step = rows_.steps[i];
      const Four<S>* const kept = row_.tile(i);
      sums -= step.wants_weight_grad + step.wants_bias_grad;
      switch (step.kind) {
        case RowStep::Kind::activation:
          through_activation(step, kept);
          break;
        case RowStep::Kind::norm:
        case RowStep::Kind::scale:
          through_affine(step, kept, row_.tile(rows_.count + 1 + sums));
          if (step.kind == RowStep::Kind::norm) through_norm(step, kept, row_.of_step(i));
          break;
        case RowStep::Kind::dropout:
          compute(row_, h_, Times(), h_, kept);
          break;
      }
    }
    if (!dx.data) return;
    if (added.data) add(added, row_.begin(), row_, h_);
    write(h_, row_, dx);
  }

 private:
  // h_, the gradient of a step's result, becomes that of its input.

  __device__ __forceinline__ void through_activation(const RowStep& step, const Four<S>* kept) {
    const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
    with_activation(step.activation, [&](auto f) {
      using N = Number<S>;
      const auto gradient = [&](S g, S x) { return decltype(f)::template gradient<N>(N(g), N(x), params).v; };
      compute(row_, h_, gradient, h_, kept);
    });
  }

  // The sums' tiles are those of the weight, if it has one, and of the bias. A row that does not exist adds nothing: a
  // norm without eps has made NaN of its zeros.
  __device__ __forceinline__ void through_affine(const RowStep& step, const Four<S>* kept, Four<S>* of_weight) {
    if (!row_.exists()) return;
    Four<S>* const of_bias = step.wants_weight_grad ? row_.tile_after(of_weight) : of_weight;
    const auto add = [&](int place, const Four<S>& g) {
      if (step.wants_weight_grad) {
        const auto with_term = [](S sum, S g, S x) { return sum + g * x; };
        of_weight[place] = map(with_term, of_weight[place], g, kept[place]);
      }
      if (step.wants_bias_grad) of_bias[place] = map(Plus(), of_bias[place], g);
    };
    if (step.weight.data) {
      read(step.weight, 0, row_, [&](int place, const Four<S>& weight) {
        const Four<S> g = h_[place];
        add(place, g);
        h_[place] = map(Times(), g, weight);
      });
    } else if (step.wants_bias_grad) {
      row_.for_each([&](int place) { add(place, h_[place]); });
    }
  }

  __device__ __forceinline__ void through_norm(const RowStep& step, const Four<S>* kept, S multiplier) {
    S sums[2] = {};
    const auto term = [](S(&sums)[2], S g, S x) {
      sums[0] += g;
      sums[1] += g * x;
    };
    row_.add_up(sums, term, h_, kept);
    const S n = static_cast<S>(row_.columns());
    const S mean = step.centered ? sums[0] / n : S(0);
    const S along = sums[1] / n;
    compute(row_, h_, [&](S g, S x) { return (g - mean - x * along) * multiplier; }, h_, kept);
  }

  const Rows<S>& rows_;
  Row<S>& row_;
  Four<S>* h_;
};

// Columns of sums: those of the steps in order, the weight's before the bias'.
template <class S>
__global__ void __launch_bounds__(block_threads, room<S>)
    backward(Rows<S> rows, int sums, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value, S* block_sums) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  Row<S> row(shared_memory(), rows.columns, rows.count);
  for (int i = 0; i < sums; ++i) {
    Four<S>* const sum = row.tile(rows.count + 1 + i);
    row.for_each([&](int place) { sum[place] = {}; });
  }
  for_each_row(rows, row, [&] {
    Backward<S> steps(rows, row);
    steps.forward(x, seed, value);
    steps.backward(grad, added, dx);
  });
  // The sums of the block's rows are in the first one's memory and those behind it.
  __syncthreads();
  if (threadIdx.y > 0) return;
  row.move_to(0, true);
  const int next_row = static_cast<int>(blockDim.x) * fours_of_thread(rows.columns, static_cast<int>(blockDim.x));
  for (int i = 0; i < sums; ++i) {
    const Four<S>* const of_rows = row.tile(rows.count + 1 + i);
    S* const to = block_sums + (int64_t{blockIdx.x} * sums + i) * rows.columns;
    row.for_each([&](int place) {
      Four<S> sum = of_rows[place];
      for (unsigned r = 1; r < blockDim.y; ++r) sum = map(Plus(), sum, of_rows[r * next_row + place]);
      row.store(sum, place, to, row.in_fours(block_sums));
    });
  }
}

template <class S>
__global__ void __launch_bounds__(block_threads)
    add_blocks(const S* block_sums, int64_t blocks, int64_t sums, Numbers result) {
  sum_over_blocks(block_sums, blocks, sums, [&](int64_t place, S sum) {
    with_numbers(result, [&]<class T>(T* data) { data[place] = narrow<T>(static_cast<Compute<T>>(sum)); });
  });
}

int sums_of(const RowsCall& call) {
  int sums = 0;
  for (int i = 0; i < call.count; ++i) sums += call.steps[i].wants_weight_grad + call.steps[i].wants_bias_grad;
  return sums;
}

int64_t size_of(Dtype computed) { return computed == Dtype::float64 ? sizeof(double) : sizeof(float); }

// The threads of a row: where there are few rows, as many as have four elements each. Backward there is shared memory
// for fewer rows on a multiprocessor.
int threads_of(const RowsCall& call, bool backward) {
  const bool are_few = call.rows <= 2 * call.multiprocessors;
  return row_threads(call.columns, are_few ? 4 : backward ? 16 : 32);
}

// Of a block of so many rows.
int64_t shared_bytes(const RowsCall& call, bool backward, int64_t rows) {
  const int64_t tiles = backward ? call.count + 1 + sums_of(call) : 1;
  const int steps = backward ? call.count : 0;
  return shared_numbers(call.columns, threads_of(call, backward), rows, steps, tiles) * size_of(call.computed);
}

// Rows whose threads are whole waves.
int64_t rows_of_waves(const RowsCall& call) { return call.columns > group ? 1 : 2; }

// As many rows as every GPU has shared memory for, but no more than leave rows to each multiprocessor; or few.
dim3 block_of(const RowsCall& call, bool backward) {
  const int threads = threads_of(call, backward);
  const int64_t few = rows_of_waves(call);
  const int64_t fit = shared_bytes_everywhere / shared_bytes(call, backward, few) * few;
  const int64_t share = divide_up(divide_up(call.rows, call.multiprocessors), few) * few;
  return dim3(threads, std::clamp<int64_t>(std::min(fit, share), few, block_threads / threads));
}

// The numbers follow from the sizes and the GPU, so that a sum is made of the same parts on every run.
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
  if (!added.data && is_narrow(call, {x, y})) return narrow_forward(call, x, y);
  return dispatch_computed(call, [&]<class S>() {
    const dim3 block = block_of(call, false);
    return launch(forward<S>, dim3(blocks_of(call, false)), block, shared_bytes(call, false, block.y), call.stream,
                  Rows<S>(call), x, added, y);
  });
}

int64_t rows_backward_sums(const RowsCall& call) {
  const int64_t most = may_be_narrow(call) ? std::max(call.rows, blocks_of(call, true)) : blocks_of(call, true);
  return most * sums_of(call) * call.columns;
}

Error rows_backward(const RowsCall& call, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value,
                    void* block_sums, Numbers vector_grads) {
  return dispatch_computed(call, [&]<class S>() -> Error {
    const bool narrow = !added.data && is_narrow(call, {x, grad, dx, value});
    const int64_t blocks = narrow ? call.rows : blocks_of(call, true);
    const int sums = sums_of(call);
    const auto launch_steps = [&] {
      if (narrow) return narrow_backward(call, x, grad, dx, value, static_cast<float*>(block_sums));
      const dim3 block = block_of(call, true);
      return launch(backward<S>, dim3(blocks), block, shared_bytes(call, true, block.y), call.stream, Rows<S>(call),
                    sums, x, grad, added, dx, value, static_cast<S*>(block_sums));
    };
    if (Error error = launch_steps()) return error;
    if (sums == 0) return nullptr;
    const int64_t places = sums * call.columns;
    return launch_sum_over_blocks<S>(add_blocks<S>, static_cast<const S*>(block_sums), blocks, places, call.stream,
                                     vector_grads);
  });
}

}  // namespace fastops::hip
