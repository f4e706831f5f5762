// Steps on rows: normalization, scales, dropout and activations one after another, in one pass over memory, forward and
// backward.
//
// A block takes some rows at a time. They are in shared memory, in the type that is computed with, from the first step
// to the last. Each element belongs to a thread, the one that computes whether a dropout keeps it, and no other thread
// reads or writes it there: barriers are for sums over a row alone.
#include "backends/hip/kernels/block_sums.h"
#include "backends/hip/kernels/row_tile.h"
#include "backends/hip/kernels/tile.h"

namespace fastops::hip {
namespace {

// ---- numbers of any dtype ----

template <class S>
__device__ S load(const Numbers& from, int64_t i) {
  switch (from.dtype) {
    case Dtype::float32:
      return static_cast<S>(static_cast<const float*>(from.data)[i]);
    case Dtype::float64:
      return static_cast<S>(static_cast<const double*>(from.data)[i]);
    case Dtype::bfloat16:
      return static_cast<S>(widen(static_cast<const bfloat16*>(from.data)[i]));
    case Dtype::float16:
      return static_cast<S>(widen(static_cast<const float16*>(from.data)[i]));
  }
  return S(0);
}

template <class S>
__device__ void store(S value, const Numbers& to, int64_t i) {
  switch (to.dtype) {
    case Dtype::float32:
      static_cast<float*>(to.data)[i] = static_cast<float>(value);
      return;
    case Dtype::float64:
      static_cast<double*>(to.data)[i] = static_cast<double>(value);
      return;
    case Dtype::bfloat16:
      static_cast<bfloat16*>(to.data)[i] = narrow<bfloat16>(static_cast<float>(value));
      return;
    case Dtype::float16:
      static_cast<float16*>(to.data)[i] = narrow<float16>(static_cast<float>(value));
      return;
  }
}

// ---- a step ----

template <class S>
struct Rows {
  RowStep steps[most_row_steps];
  int count;
  const int64_t* seed;
  int64_t rows, columns;

  explicit Rows(const RowsCall& call)
      : count(call.count), seed(static_cast<const int64_t*>(call.seed)), rows(call.rows), columns(call.columns) {
    for (int i = 0; i < count; ++i) steps[i] = call.steps[i];
  }
};

// h = f(h)
template <class S>
__device__ void activate(const RowStep& step, const Row<S>& row, S* h) {
  const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
  with_activation(step.activation, [&](auto f) {
    row.for_each([&](int64_t slot, int64_t) {
      S& element = h[row.at(slot)];
      element = decltype(f)::value(Number<S>(element), params).v;
    });
  });
}

template <class S>
__device__ void affine(const RowStep& step, const Row<S>& row, S* h) {
  if (step.weight.data) row.for_each([&](int64_t slot, int64_t c) { h[row.at(slot)] *= load<S>(step.weight, c); });
  if (step.bias.data) row.for_each([&](int64_t slot, int64_t c) { h[row.at(slot)] += load<S>(step.bias, c); });
}

// h = (h - mean) * the result, which is 1 / sqrt(variance + eps)
template <class S>
__device__ S normalize(const RowStep& step, const Row<S>& row, int64_t columns, S* h) {
  const auto sum_of = [&](auto term) {
    S sum = S(0);
    row.for_each([&](int64_t slot, int64_t) { sum += term(h[row.at(slot)]); });
    return row.sum(sum);
  };
  const S n = static_cast<S>(columns);
  S mean = S(0);
  if (step.centered) mean = sum_of([](S x) { return x; }) / n;
  const S squares = sum_of([&](S x) { return (x - mean) * (x - mean); });
  const S multiplier = S(1) / library::sqrt(squares / n + static_cast<S>(step.eps));
  row.for_each([&](int64_t slot, int64_t) { h[row.at(slot)] = (h[row.at(slot)] - mean) * multiplier; });
  return multiplier;
}

template <class S>
__device__ void drop(const RowStep& step, const Row<S>& row, uint64_t seed, S* h) {
  row.for_each_number(seed, step.stream, [&](int64_t slot, int64_t, uint32_t number) {
    h[row.at(slot)] *= number >= step.threshold ? static_cast<S>(step.scale) : S(0);
  });
}

// The kernels want room for two blocks on a multiprocessor: for more, nvcc would spill registers.

// f(row) for each of the block's rows, and for places without one.
template <class S, class F>
__device__ void for_each_row(const Rows<S>& rows, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < rows.rows; first += step) {
    const int64_t row = first + threadIdx.y;
    f(Row<S>(shared_memory(), rows.columns, row, row < rows.rows));
  }
}

template <class S>
__global__ void __launch_bounds__(block_threads, 2) forward(Rows<S> rows, Numbers x, Numbers added, Numbers y) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  for_each_row(rows, [&](const Row<S>& row) {
    S* const h = row.tile(0);
    const int64_t begin = row.number() * rows.columns;
    row.for_each([&](int64_t slot, int64_t c) { h[row.at(slot)] = load<S>(x, begin + c); });
    for (int i = 0; i < rows.count; ++i) {
      const RowStep& step = rows.steps[i];
      switch (step.kind) {
        case RowStep::Kind::activation:
          activate(step, row, h);
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
    row.for_each([&](int64_t slot, int64_t c) {
      const S value = h[row.at(slot)];
      store(added.data ? value + load<S>(added, begin + c) : value, y, begin + c);
    });
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
    const int64_t begin = row_.number() * rows_.columns;
    row_.for_each([&](int64_t slot, int64_t c) { at(h_, slot) = x.data ? load<S>(x, begin + c) : S(0); });
    for (int i = 0; i < rows_.count; ++i) {
      const RowStep& step = rows_.steps[i];
      S* const kept = row_.tile(i);
      switch (step.kind) {
        case RowStep::Kind::activation:
          copy(h_, kept);
          activate(step, row_, h_);
          break;
        case RowStep::Kind::norm:
          if (const S multiplier = normalize(step, row_, rows_.columns, h_); threadIdx.x == 0) {
            row_.multiplier(i) = multiplier;
          }
          copy(h_, kept);
          affine(step, row_, h_);
          break;
        case RowStep::Kind::scale:
          copy(h_, kept);
          affine(step, row_, h_);
          break;
        case RowStep::Kind::dropout:
          row_.for_each([&](int64_t slot, int64_t) { at(kept, slot) = S(1); });
          drop(step, row_, seed, kept);
          row_.for_each([&](int64_t slot, int64_t) { at(h_, slot) *= at(kept, slot); });
          break;
      }
    }
  }

  __device__ void store_value(const Numbers& value) const {
    if (!value.data) return;
    const int64_t begin = row_.number() * rows_.columns;
    row_.for_each([&](int64_t slot, int64_t c) { store(at(h_, slot), value, begin + c); });
  }

  __device__ void backward(const Numbers& grad, const Numbers& added, const Numbers& dx) {
    const int64_t begin = row_.number() * rows_.columns;
    row_.for_each([&](int64_t slot, int64_t c) { at(h_, slot) = load<S>(grad, begin + c); });
    int sums = 0;
    for (int i = 0; i < rows_.count; ++i) sums += rows_.steps[i].wants_weight_grad + rows_.steps[i].wants_bias_grad;
    for (int i = rows_.count - 1; i >= 0; --i) {
      const RowStep& step = rows_.steps[i];
      const S* const kept = row_.tile(i);
      if (step.wants_bias_grad) {
        S* const sum = row_.tile(rows_.count + sums--);
        row_.for_each([&](int64_t slot, int64_t) { at(sum, slot) += at(h_, slot); });
      }
      if (step.wants_weight_grad) {
        S* const sum = row_.tile(rows_.count + sums--);
        row_.for_each([&](int64_t slot, int64_t) { at(sum, slot) += at(h_, slot) * at(kept, slot); });
      }
      through(step, i, kept);
    }
    if (!dx.data) return;
    row_.for_each([&](int64_t slot, int64_t c) {
      const S value = at(h_, slot);
      store(added.data ? value + load<S>(added, begin + c) : value, dx, begin + c);
    });
  }

 private:
  template <class T>
  __device__ static T& at(T* tile, int64_t slot) {
    return tile[Row<S>::at(slot)];
  }
  __device__ void copy(const S* from, S* to) const {
    row_.for_each([&](int64_t slot, int64_t) { at(to, slot) = at(from, slot); });
  }

  // h_, the gradient of the step's result, becomes that of its input.
  __device__ void through(const RowStep& step, int i, const S* kept) {
    switch (step.kind) {
      case RowStep::Kind::activation: {
        const Params<S> params{static_cast<S>(step.params.first), static_cast<S>(step.params.second)};
        with_activation(step.activation, [&](auto f) {
          using N = Number<S>;
          row_.for_each([&](int64_t slot, int64_t) {
            at(h_, slot) = decltype(f)::template gradient<N>(N(at(h_, slot)), N(at(kept, slot)), params).v;
          });
        });
        return;
      }
      case RowStep::Kind::dropout:
        row_.for_each([&](int64_t slot, int64_t) { at(h_, slot) *= at(kept, slot); });
        return;
      default:
        break;
    }
    if (step.weight.data) {
      row_.for_each([&](int64_t slot, int64_t c) { at(h_, slot) *= load<S>(step.weight, c); });
    }
    if (step.kind == RowStep::Kind::scale) return;
    const auto mean_of = [&](auto term) {
      S sum = S(0);
      row_.for_each([&](int64_t slot, int64_t) { sum += term(slot); });
      return row_.sum(sum) / static_cast<S>(rows_.columns);
    };
    S mean = S(0);
    if (step.centered) mean = mean_of([&](int64_t slot) { return at(h_, slot); });
    const S along = mean_of([&](int64_t slot) { return at(h_, slot) * at(kept, slot); });
    const S multiplier = row_.multiplier(i);
    row_.for_each(
        [&](int64_t slot, int64_t) { at(h_, slot) = (at(h_, slot) - mean - at(kept, slot) * along) * multiplier; });
  }

  const Rows<S>& rows_;
  const Row<S>& row_;
  S* h_;
};

// Columns of sums: those of the steps in order, the weight's before the bias'.
template <class S>
__global__ void __launch_bounds__(block_threads, 2)
    backward(Rows<S> rows, int sums, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value, S* block_sums) {
  const uint64_t seed = rows.seed ? static_cast<uint64_t>(*rows.seed) : 0;
  const Row<S> places(shared_memory(), rows.columns, 0, true);
  for (int i = 0; i < sums; ++i) {
    S* const sum = places.tile(rows.count + 1 + i);
    places.for_each([&](int64_t slot, int64_t) { sum[places.at(slot)] = S(0); });
  }
  for_each_row(rows, [&](const Row<S>& row) {
    Backward<S> block(rows, row);
    block.forward(x, seed);
    block.store_value(value);
    block.backward(grad, added, dx);
  });
  // The sums of the block's rows are in the first one's memory and those behind it.
  __syncthreads();
  if (threadIdx.y > 0) return;
  const int64_t row_numbers = blockDim.x * elements_of_thread(rows.columns, blockDim.x);
  for (int i = 0; i < sums; ++i) {
    const S* const of_rows = places.tile(rows.count + 1 + i);
    S* const to = block_sums + (int64_t{blockIdx.x} * sums + i) * rows.columns;
    places.for_each([&](int64_t slot, int64_t c) {
      S sum = S(0);
      for (unsigned r = 0; r < blockDim.y; ++r) sum += of_rows[r * row_numbers + places.at(slot)];
      to[c] = sum;
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

dim3 block_of(const RowsCall& call) {
  const int threads = row_threads(call.columns);
  return dim3(threads, block_threads / threads);
}

// The numbers follow from the sizes alone, so that a sum is made of the same parts on every device.
int64_t blocks_of(const RowsCall& call, bool backward) {
  constexpr int64_t most_blocks = 1 << 20;
  constexpr int64_t most_blocks_with_sums = 512;
  const int64_t most = backward && sums_of(call) > 0 ? most_blocks_with_sums : most_blocks;
  return std::min(divide_up(call.rows, block_of(call).y), most);
}

int64_t size_of(Dtype computed) { return computed == Dtype::float64 ? sizeof(double) : sizeof(float); }

int64_t shared_bytes(const RowsCall& call, bool backward) {
  const int64_t tiles = backward ? call.count + 1 + sums_of(call) : 1;
  return shared_numbers(call.columns, tiles) * size_of(call.computed);
}

// f.template operator()<S>() with the type that is computed with.
template <class F>
Error dispatch_computed(const RowsCall& call, F f) {
  return call.computed == Dtype::float64 ? f.template operator()<double>() : f.template operator()<float>();
}

}  // namespace

bool rows_fit(const RowsCall& call, bool backward) {
  constexpr int64_t most_shared_bytes = 48 * 1024;  // what every GPU gives a block that does not ask for more
  return shared_bytes(call, backward) <= most_shared_bytes;
}

Error rows_forward(const RowsCall& call, Numbers x, Numbers added, Numbers y) {
  return dispatch_computed(call, [&]<class S>() {
    return launch(forward<S>, dim3(blocks_of(call, false)), block_of(call), shared_bytes(call, false), call.stream,
                  Rows<S>(call), x, added, y);
  });
}

int64_t rows_backward_sums(const RowsCall& call) { return blocks_of(call, true) * sums_of(call) * call.columns; }

Error rows_backward(const RowsCall& call, Numbers x, Numbers grad, Numbers added, Numbers dx, Numbers value,
                    void* block_sums, void* vector_grads) {
  return dispatch_computed(call, [&]<class S>() -> Error {
    const int64_t blocks = blocks_of(call, true);
    const int sums = sums_of(call);
    if (Error error = launch(backward<S>, dim3(blocks), block_of(call), shared_bytes(call, true), call.stream,
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
