// Narrow networks, feature by feature: the rows of a panel lie beside each other in vectors, so that features of any
// number fill them, and weights are broadcast from where they are.
#include <array>
#include <span>
#include <utility>

#include "backends/cpu/kernels/panels.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// A panel has the numbers of a feature for some vectors of rows, then those of the next one. Of these, so many vectors,
// and so many sums in all, fit the vector registers.
constexpr int tile_vectors = 3;
#if defined(CPU_CAPABILITY_AVX512)
constexpr int most_sums = 24;
#else
constexpr int most_sums = 12;
#endif
// The sums of a tile for each of its vectors.
constexpr int most_outputs(int vectors) { return std::min(12, most_sums / vectors); }

// n rounded up to whole vectors.
template <class S>
constexpr int64_t in_vectors(int64_t n) {
  return (n + Vec<S>::width - 1) / Vec<S>::width * Vec<S>::width;
}

// table[n - 1] for n things.
template <int most, class F>
constexpr auto table_of(F f) {
  return [&]<int... less_1>(std::integer_sequence<int, less_1...>) {
    return std::array{f(std::integral_constant<int, less_1 + 1>())...};
  }(std::make_integer_sequence<int, most>());
}

// ---- products ----

// A weight or its transpose: element (output, k) at data[output * output_step + k * depth_step].
template <class S>
struct Factors {
  const S* data;
  int64_t output_step;
  int64_t depth_step;
};

// y[output] = sum over k of factors(output, k) * x[k], + bias[output], for the rows of a panel.
template <class S, int outputs, int vectors>
FASTOPS_TILE void tile(Factors<S> factors, int64_t depth, const S* x, const S* bias, S* y, int64_t stride) {
  using V = typename Vec<S>::Base;
  constexpr int width = Vec<S>::width;
  V sum[outputs][vectors];
  FASTOPS_UNROLL(12)
  for (int i = 0; i < outputs; ++i) {
    FASTOPS_UNROLL(3)
    for (int j = 0; j < vectors; ++j) sum[i][j] = V(S(0));
  }
  for (int64_t k = 0; k < depth; ++k) {
    V values[vectors];
    FASTOPS_UNROLL(3)
    for (int j = 0; j < vectors; ++j) values[j] = V::loadu(x + j * width);
    FASTOPS_UNROLL(12)
    for (int i = 0; i < outputs; ++i) {
      const V factor(factors.data[i * factors.output_step]);
      FASTOPS_UNROLL(3)
      for (int j = 0; j < vectors; ++j) sum[i][j] = fmadd(factor, values[j], sum[i][j]);
    }
    x += stride;
    factors.data += factors.depth_step;
  }
  FASTOPS_UNROLL(12)
  for (int i = 0; i < outputs; ++i) {
    const V shift(bias ? bias[i] : S(0));
    FASTOPS_UNROLL(3)
    for (int j = 0; j < vectors; ++j) (bias ? sum[i][j] + shift : sum[i][j]).store(y + i * stride + j * width);
  }
}

// f(first, size) for things in tiles of nearly the same size.
template <class F>
void for_each_tile(int64_t things, int most, F f) {
  const int n = static_cast<int>(things);
  const int count = (n + most - 1) / most;
  for (int t = 0, first = 0; t < count; ++t) {
    const int end = n * (t + 1) / count;
    f(first, end - first);
    first = end;
  }
}

template <class S, int vectors>
void multiply(Factors<S> factors, int64_t depth, int64_t outputs, const S* x, const S* bias, S* y, int64_t stride) {
  static constexpr auto tiles = table_of<most_outputs(vectors)>([](auto size) { return tile<S, size, vectors>; });
  for_each_tile(outputs, most_outputs(vectors), [&](int first, int size) {
    tiles[size - 1]({factors.data + first * factors.output_step, factors.output_step, factors.depth_step}, depth, x,
                    bias ? bias + first : nullptr, y + first * stride, stride);
  });
}
// For the rows of a panel.
template <class S>
void multiply(Factors<S> factors, int64_t depth, int64_t outputs, const S* x, const S* bias, S* y, int64_t stride) {
  static constexpr auto runs = table_of<tile_vectors>([](auto size) { return multiply<S, size>; });
  for_each_tile(stride / Vec<S>::width, tile_vectors, [&](int first, int size) {
    const int64_t row = first * Vec<S>::width;
    runs[size - 1](factors, depth, outputs, x + row, bias, y + row, stride);
  });
}

// sums[output, column] (+)= sum over the rows of grad[output][row] * h[row, column], of whose last vector there are
// `last` columns; a row of sums has whole vectors.
template <class S, int outputs, int vectors>
FASTOPS_TILE void gradient_tile(const S* grad, int64_t grad_stride, const S* h, int64_t h_stride, int64_t rows,
                                int64_t last, S* sums, int64_t sums_stride, bool add) {
  using V = typename Vec<S>::Base;
  constexpr int width = Vec<S>::width;
  V sum[outputs][vectors];
  FASTOPS_UNROLL(12)
  for (int i = 0; i < outputs; ++i) {
    FASTOPS_UNROLL(3)
    for (int j = 0; j < vectors; ++j) sum[i][j] = V(S(0));
  }
  const auto run = [&](auto load_last) FASTOPS_INLINE_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      V values[vectors];
      FASTOPS_UNROLL(3)
      for (int j = 0; j < vectors; ++j) {
        values[j] = j + 1 < vectors ? V::loadu(h + j * width) : load_last(h + j * width);
      }
      FASTOPS_UNROLL(12)
      for (int i = 0; i < outputs; ++i) {
        const V factor(grad[i * grad_stride]);
        FASTOPS_UNROLL(3)
        for (int j = 0; j < vectors; ++j) sum[i][j] = fmadd(factor, values[j], sum[i][j]);
      }
      ++grad;
      h += h_stride;
    }
  };
  if (last == width) {
    run([](const S* p) { return V::loadu(p); });
  } else {
    run([last](const S* p) { return load_part(p, last); });
  }
  FASTOPS_UNROLL(12)
  for (int i = 0; i < outputs; ++i) {
    FASTOPS_UNROLL(3)
    for (int j = 0; j < vectors; ++j) {
      S* const place = sums + i * sums_stride + j * width;
      (add ? V::loadu(place) + sum[i][j] : sum[i][j]).store(place);
    }
  }
}

template <class S, int vectors>
void add_gradient(const S* grad, int64_t grad_stride, int64_t outputs, const S* h, int64_t h_stride, int64_t rows,
                  int64_t last, S* sums, int64_t sums_stride, bool add) {
  static constexpr auto tiles =
      table_of<most_outputs(vectors)>([](auto size) { return gradient_tile<S, size, vectors>; });
  for_each_tile(outputs, most_outputs(vectors), [&](int first, int size) {
    tiles[size - 1](grad + first * grad_stride, grad_stride, h, h_stride, rows, last, sums + first * sums_stride,
                    sums_stride, add);
  });
}
// The gradient of a weight, [outputs, columns].
template <class S>
void add_gradient(const S* grad, int64_t grad_stride, int64_t outputs, const S* h, int64_t h_stride, int64_t rows,
                  int64_t columns, S* sums, bool add) {
  static constexpr auto runs = table_of<tile_vectors>([](auto size) { return add_gradient<S, size>; });
  constexpr int64_t width = Vec<S>::width;
  const int64_t sums_stride = in_vectors<S>(columns);
  for_each_tile(sums_stride / width, tile_vectors, [&](int first, int size) {
    const int64_t column = first * width;
    const int64_t last = std::min(columns - column - (size - 1) * width, width);
    runs[size - 1](grad, grad_stride, outputs, h + column, h_stride, rows, last, sums + column, sums_stride, add);
  });
}

// ---- panels ----

struct PanelRows {
  int64_t first;
  int64_t count;
  bool more;       // whether there are rows behind these, which may be read
  int64_t stride;  // `count` in whole vectors: from one feature to the next
};

// Features of which so few are copied number by number.
constexpr int64_t single_features = 2;

// A panel of rows of a matrix; 0 for the rows beyond them.
template <class Storage, class S = Compute<Storage>>
void read_panel(ConstRows matrix, const PanelRows& rows, int64_t features, S* panel) {
  constexpr int64_t width = Vec<S>::width;
  const int64_t stride = rows.stride;
  const Storage* const source = row<Storage>(matrix, rows.first);
  if (features <= single_features) {
    for (int64_t c = 0; c < features; ++c, panel += stride) {
      for (int64_t r = 0; r < rows.count; ++r) panel[r] = static_cast<S>(source[r * matrix.stride + c]);
      std::fill(panel + rows.count, panel + stride, S(0));
    }
    return;
  }
  alignas(64) S square[width * width];
  for (int64_t v = 0; v * width < stride; ++v) {
    const int64_t present = std::clamp<int64_t>(rows.count - v * width, 0, width);
    // A vector that begins in a row ends before the end of the next one.
    const bool has_next = (rows.more || (v + 1) * width < rows.count) && matrix.stride >= width;
    for (int64_t c = 0; c < features; c += width) {
      const int64_t count = std::min(width, features - c);
      const Storage* const from = source + v * width * matrix.stride + c;
      S* const to = panel + c * stride + v * width;
      if constexpr (std::is_same_v<S, Storage>) {
        if (present == width && (count == width || has_next)) {
          transpose_square<S>(from, matrix.stride, to, stride);
          continue;
        }
      }
      for (int64_t r = 0; r < present; ++r) load_converted(from + r * matrix.stride, count).store(square + r * width);
      std::fill(square + present * width, square + width * width, S(0));
      transpose_square<S>(square, width, to, stride);
    }
  }
}

// The rows of a matrix from a panel.
template <class Storage, class S = Compute<Storage>>
void write_panel(const S* panel, Rows matrix, const PanelRows& rows, int64_t features) {
  constexpr int64_t width = Vec<S>::width;
  constexpr int64_t columns = Packet<Storage>::width;
  const int64_t stride = rows.stride;
  Storage* const target = row<Storage>(matrix, rows.first);
  if (features <= single_features) {
    for (int64_t c = 0; c < features; ++c, panel += stride) {
      for (int64_t r = 0; r < rows.count; ++r) target[r * matrix.stride + c] = static_cast<Storage>(panel[r]);
    }
    return;
  }
  // Where rows are contiguous, whole vectors are written: what is behind the end of a row is where the next ones come,
  // as the last columns go before the first ones, row after row.
  const bool contiguous = matrix.stride == features;
  alignas(64) S block[width * columns];
  for (int64_t v = 0; v * width < rows.count; ++v) {
    const int64_t present = std::min(width, rows.count - v * width);
    for (int64_t c = (features - 1) / columns * columns; c >= 0; c -= columns) {
      const int64_t count = std::min(columns, features - c);
      const S* const from = panel + c * stride + v * width;
      Storage* const to = target + v * width * matrix.stride + c;
      if constexpr (std::is_same_v<S, Storage>) {
        if (present == width && count == width) {
          transpose_square<S>(from, stride, to, matrix.stride);
          continue;
        }
      }
      for (int64_t part = 0; part < count; part += width) {
        transpose_square<S>(from + part * stride, stride, block + part, columns);
      }
      const int64_t rows_written_behind = contiguous ? (columns - count + features - 1) / features : rows.count;
      const int64_t whole = rows.count - rows_written_behind - v * width;
      for (int64_t r = 0; r < present; ++r) {
        Packet<Storage> packet;
        for (int part = 0; part < Packet<Storage>::parts; ++part) {
          packet.part[part] = Vec<S>::Base::loadu(block + r * columns + part * width);
        }
        packet.store(to + r * matrix.stride, r < whole ? columns : count);
      }
    }
  }
}

// 0 for the rows beyond the last one.
template <class S>
void clear_rest(S* panel, const PanelRows& rows, int64_t features) {
  if (rows.count == rows.stride) return;
  for (int64_t c = 0; c < features; ++c, panel += rows.stride) std::fill(panel + rows.count, panel + rows.stride, S(0));
}

// f(rows) for the panels of the rows.
template <class S, class F>
void for_each_panel(const NarrowNetwork& network, int64_t first_row, int64_t rows, F f) {
  constexpr int64_t width = Vec<S>::width;
  const Parts panels(in_vectors<S>(rows) / width, network.panel_rows / width);
  for (int64_t i = 0; i < panels.count; ++i) {
    const int64_t begin = panels.begin(i) * width;
    const int64_t end = panels.end(i) * width;
    f(PanelRows{first_row + begin, std::min(rows, end) - begin, end < rows, end - begin});
  }
}

// ---- networks ----

// Rows of a panel, each by itself: sums over features are those of four vectors, as each addition waits for the one
// before it.
template <class S>
void normalize(const NormArguments& norm, S* panel, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  const V n(static_cast<S>(features));
  const auto sum_of = [&](const S* x, auto term) FASTOPS_INLINE_LAMBDA {
    V sums[4] = {V(S(0)), V(S(0)), V(S(0)), V(S(0))};
    int64_t c = 0;
    for (; c + 4 <= features; c += 4, x += 4 * stride) {
      FASTOPS_UNROLL(4)
      for (int k = 0; k < 4; ++k) sums[k] = sums[k] + term(V::loadu(x + k * stride));
    }
    for (; c < features; ++c, x += stride) sums[0] = sums[0] + term(V::loadu(x));
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  };
  const auto* const weight = static_cast<const S*>(norm.weight);
  const auto* const bias = static_cast<const S*>(norm.bias);
  for (int64_t r = 0; r < stride; r += Vec<S>::width) {
    S* x = panel + r;
    const V mean = norm.centered ? sum_of(x, [](V value) { return value; }) / n : V(S(0));
    const V squares = sum_of(x, [&](V value) { return (value - mean) * (value - mean); });
    const V multiplier = V(S(1)) / (squares / n + V(static_cast<S>(norm.eps))).sqrt();
    for (int64_t c = 0; c < features; ++c, x += stride) {
      V value = (V::loadu(x) - mean) * multiplier;
      if (weight) value = value * V(weight[c]);
      if (bias) value = value + V(bias[c]);
      value.store(x);
    }
  }
}

template <class S>
void apply(const NarrowStep& step, S* panel, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  switch (step.kind) {
    case NarrowStep::Kind::activation:
      return step.activation->forward(panel, panel, features * stride, step.params, /*stream=*/false);
    case NarrowStep::Kind::norm:
      return normalize(step.norm, panel, features, stride);
    case NarrowStep::Kind::scale:
      for (int64_t c = 0; c < features; ++c, panel += stride) {
        const V factor(static_cast<const S*>(step.norm.weight)[c]);
        for (int64_t r = 0; r < stride; r += Vec<S>::width) (V::loadu(panel + r) * factor).store(panel + r);
      }
  }
}

template <class Storage>
void forward(const NarrowNetwork& network, ConstRows input, Rows output, int64_t first_row, int64_t rows, void* room) {
  using S = Compute<Storage>;
  for_each_panel<S>(network, first_row, rows, [&](const PanelRows& panel) {
    S* x = static_cast<S*>(room);
    S* y = x + network.panel();
    read_panel<Storage>(input, panel, network.layers[0].in_features, x);
    for (const NarrowLayer& layer : std::span(network.layers, network.count)) {
      if (layer.only_steps) {
        std::swap(x, y);
      } else {
        const Factors<S> weight{static_cast<const S*>(layer.weight.data), layer.weight.stride, 1};
        const auto* const bias = static_cast<const S*>(layer.bias);
        multiply<S>(weight, layer.in_features, layer.out_features, x, bias, y, panel.stride);
      }
      const auto keep = [&] { write_panel<Storage>(y, layer.kept, panel, layer.out_features); };
      if (layer.kept.data && !layer.keeps_output) keep();
      if (layer.activation) {
        layer.activation->forward(y, y, layer.out_features * panel.stride, layer.params, /*stream=*/false);
      }
      if (layer.kept.data && layer.keeps_output) keep();
      for (const NarrowStep& step : std::span(layer.steps, layer.step_count)) {
        apply(step, y, layer.out_features, panel.stride);
      }
      std::swap(x, y);
    }
    write_panel<Storage>(x, output, panel, network.layers[network.count - 1].out_features);
  });
}

// A panel's rows of the layer's input as a matrix of the type that is computed with.
template <class Storage, class S = Compute<Storage>>
ConstRows layer_input(const NarrowLayer* below, const NarrowLayer& layer, ConstRows input, const PanelRows& rows,
                      S* room) {
  const ConstRows source = below ? constant(below->kept) : input;
  const Storage* const place = row<Storage>(source, rows.first);
  const bool activates = below && !below->keeps_output && below->activation;
  if (std::is_same_v<S, Storage> && !activates) return {place, source.stride};
  const int64_t stride = in_vectors<S>(layer.in_features);
  for (int64_t r = 0; r < rows.count; ++r) {
    convert_row<S, Storage>(place + r * source.stride, layer.in_features, room + r * stride, stride);
  }
  if (activates) below->activation->forward(room, room, rows.count * stride, below->params, false);
  return {room, stride};
}

template <class Storage>
void backward(const NarrowNetwork& network, int first_layer, const NarrowGradients& gradients, int64_t first_row,
              int64_t rows, void* sums, void* room) {
  using S = Compute<Storage>;
  using V = typename Vec<S>::Base;
  constexpr int64_t width = Vec<S>::width;
  const std::span layers(network.layers + first_layer, network.layers + network.count);
  // Of each bias as many sums as a vector has.
  S* const bias_sums = static_cast<S*>(room) + 3 * network.panel();
  int64_t features = 0;
  S* sums_end = static_cast<S*>(sums);
  for (const NarrowLayer& layer : layers) {
    features += layer.out_features;
    if (layer.sums_weight) sums_end += in_vectors<S>(layer.in_features) * layer.out_features;
    if (layer.sums_bias) sums_end += layer.out_features;
  }
  std::fill(bias_sums, bias_sums + features * width, S(0));
  bool add = false;
  for_each_panel<S>(network, first_row, rows, [&](const PanelRows& panel) {
    S* grad = static_cast<S*>(room);
    S* next = grad + network.panel();
    S* const kept = next + network.panel();
    S* layer_sums = sums_end;
    S* layer_bias_sums = bias_sums + features * width;
    read_panel<Storage>(gradients.grad_output, panel, layers.back().out_features, grad);
    for (int i = network.count; i-- > first_layer;) {
      const NarrowLayer& layer = network.layers[i];
      const int64_t outputs = layer.out_features;
      if (layer.activation) {
        read_panel<Storage>(constant(layer.kept), panel, outputs, kept);
        const Kernels& f = *layer.activation;
        (layer.keeps_output ? f.backward_from_output : f.backward)[0](grad, kept, grad, outputs * panel.stride,
                                                                      layer.params, /*stream=*/false);
        clear_rest<S>(grad, panel, outputs);
      }
      layer_bias_sums -= outputs * width;
      if (layer.sums_bias) {
        layer_sums -= outputs;
        for (int64_t c = 0; c < outputs; ++c) {
          V sum = V::loadu(layer_bias_sums + c * width);
          for (int64_t r = 0; r < panel.stride; r += width) sum = sum + V::loadu(grad + c * panel.stride + r);
          sum.store(layer_bias_sums + c * width);
        }
      }
      if (layer.sums_weight) {
        layer_sums -= in_vectors<S>(layer.in_features) * outputs;
        const ConstRows h = layer_input<Storage>(i > 0 ? &layer - 1 : nullptr, layer, gradients.input, panel, kept);
        add_gradient<S>(grad, panel.stride, outputs, static_cast<const S*>(h.data), h.stride, panel.count,
                        layer.in_features, layer_sums, add);
      }
      if (i == 0 ? !gradients.input_grad.data : i == first_layer) break;
      const Factors<S> transpose{static_cast<const S*>(layer.weight.data), 1, layer.weight.stride};
      multiply<S>(transpose, outputs, layer.in_features, grad, nullptr, next, panel.stride);
      clear_rest<S>(next, panel, layer.in_features);
      std::swap(grad, next);
    }
    if (gradients.input_grad.data) {
      write_panel<Storage>(grad, gradients.input_grad, panel, network.layers[0].in_features);
    }
    add = true;
  });
  S* place = static_cast<S*>(sums);
  const S* lanes = bias_sums;
  for (const NarrowLayer& layer : layers) {
    if (layer.sums_weight) place += in_vectors<S>(layer.in_features) * layer.out_features;
    for (int64_t c = 0; c < layer.out_features; ++c, lanes += width) {
      if (!layer.sums_bias) continue;
      S sum = 0;
      for (int64_t lane = 0; lane < width; ++lane) sum += lanes[lane];
      *place++ = sum;
    }
  }
}

template <class Storage>
constexpr NarrowKernels narrow_kernels() {
  using S = Compute<Storage>;
  return {Vec<S>::width, tile_vectors * Vec<S>::width, forward<Storage>, backward<Storage>};
}

}  // namespace

void add_narrow_kernels(KernelTable& table) {
  const auto at = [&](Dtype dtype) -> NarrowKernels& { return table.narrow[static_cast<int>(dtype)]; };
  at(Dtype::float32) = narrow_kernels<float>();
  at(Dtype::float64) = narrow_kernels<double>();
  at(Dtype::bfloat16) = narrow_kernels<c10::BFloat16>();
  at(Dtype::float16) = narrow_kernels<c10::Half>();
}

}  // namespace fastops::cpu::CPU_CAPABILITY
