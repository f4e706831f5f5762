// Networks feature by feature: the rows of a panel lie beside each other in vectors, so that features of any number
// fill them, and weights are broadcast.
#include <numeric>
#include <span>
#include <utility>

#include "backends/cpu/kernels/panel_rows.h"
#include "backends/cpu/kernels/philox.h"
#include "backends/cpu/kernels/plain_products.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

using plain::in_vectors;

// f(rows) for the panels of the rows.
template <class S, class F>
void for_each_panel(const UnpackedNetwork& network, int64_t first_row, int64_t rows, F f) {
  constexpr int64_t width = Vec<S>::width;
  const Parts panels(in_vectors<S>(rows) / width, network.panel_rows / width);
  for (int64_t i = 0; i < panels.count; ++i) {
    f(PanelRows::of(panels, i, width, first_row, rows));
  }
}

// ---- steps on the rows of a panel ----

// Sums over features are those of four vectors, as each addition waits for the one before it.
template <class S, class Term>
typename Vec<S>::Base sum_over_features(int64_t features, Term term) {
  using V = typename Vec<S>::Base;
  V sums[4] = {V(S(0)), V(S(0)), V(S(0)), V(S(0))};
  int64_t c = 0;
  for (; c + 4 <= features; c += 4) {
    FASTOPS_UNROLL(4)
    for (int k = 0; k < 4; ++k) sums[k] = sums[k] + term(c + k);
  }
  for (; c < features; ++c) sums[0] = sums[0] + term(c);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// y = normalized * weight + bias; where there is room for multipliers, x becomes what is normalized. y may be x.
template <class S>
void normalize(const NormArguments& norm, S* x, S* multipliers, S* y, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  const V n(static_cast<S>(features));
  const auto* const weight = static_cast<const S*>(norm.weight);
  const auto* const bias = static_cast<const S*>(norm.bias);
  for (int64_t r = 0; r < stride; r += Vec<S>::width) {
    const auto value = [&](int64_t c) FASTOPS_INLINE_LAMBDA { return V::loadu(x + c * stride + r); };
    const V mean = norm.centered ? sum_over_features<S>(features, value) / n : V(S(0));
    const V squares = sum_over_features<S>(
        features, [&](int64_t c) FASTOPS_INLINE_LAMBDA { return (value(c) - mean) * (value(c) - mean); });
    const V multiplier = V(S(1)) / (squares / n + V(static_cast<S>(norm.eps))).sqrt();
    if (multipliers) multiplier.store(multipliers + r);
    for (int64_t c = 0; c < features; ++c) {
      V result = (value(c) - mean) * multiplier;
      if (multipliers) result.store(x + c * stride + r);
      if (weight) result = result * V(weight[c]);
      if (bias) result = result + V(bias[c]);
      result.store(y + c * stride + r);
    }
  }
}

// The gradient of x in the place of that of y; sums have a vector for each feature, and may be null.
template <class S>
void normalize_backward(const NormArguments& norm, const S* normalized, const S* multipliers, S* grad, S* weight_sums,
                        S* bias_sums, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  constexpr int64_t width = Vec<S>::width;
  const V n(static_cast<S>(features));
  const auto* const weight = static_cast<const S*>(norm.weight);
  const auto add_to = [](S* sums, int64_t c, V value) FASTOPS_INLINE_LAMBDA {
    if (sums) (V::loadu(sums + c * width) + value).store(sums + c * width);
  };
  for (int64_t r = 0; r < stride; r += width) {
    const auto of_x = [&](int64_t c) FASTOPS_INLINE_LAMBDA { return V::loadu(normalized + c * stride + r); };
    V scaled_sums[2] = {V(S(0)), V(S(0))}, products[2] = {V(S(0)), V(S(0))};
    const auto add_feature = [&](int64_t c, int part) FASTOPS_INLINE_LAMBDA {
      V g = V::loadu(grad + c * stride + r);
      const V x = of_x(c);
      add_to(bias_sums, c, g);
      add_to(weight_sums, c, g * x);
      if (weight) {
        g = g * V(weight[c]);
        g.store(grad + c * stride + r);
      }
      scaled_sums[part] = scaled_sums[part] + g;
      products[part] = fmadd(g, x, products[part]);
    };
    int64_t c = 0;
    for (; c + 2 <= features; c += 2) {
      add_feature(c, 0);
      add_feature(c + 1, 1);
    }
    if (c < features) add_feature(c, 0);
    const V mean = norm.centered ? (scaled_sums[0] + scaled_sums[1]) / n : V(S(0));
    const V along = (products[0] + products[1]) / n;
    const V multiplier = V::loadu(multipliers + r);
    for (c = 0; c < features; ++c) {
      S* const place = grad + c * stride + r;
      ((V::loadu(place) - mean - of_x(c) * along) * multiplier).store(place);
    }
  }
}

// y = x * factors; where they are wanted, x becomes the factors. y may be x.
template <class S>
void drop(const DropoutArguments& dropout, S* x, bool wants_factors, S* y, const PanelRows& rows, int64_t features) {
  constexpr int64_t of_call = philox_calls;  // features that share calls are as far apart
  const S scale = static_cast<S>(dropout.scale);
  for (int64_t r = 0; r < rows.stride; r += of_call) {
    const int64_t count = std::min(of_call, rows.stride - r);
    for (int64_t c = 0; c < features; c += c % of_call + 1 < of_call ? 1 : 3 * of_call + 1) {
      uint32_t numbers[4][philox_calls];
      numbers_of_column(dropout.seed, dropout.stream, static_cast<uint64_t>(rows.first + r), c, numbers);
      for (int i = 0; i < 4 && c + i * of_call < features; ++i) {
        const int64_t place = (c + i * of_call) * rows.stride + r;
        for (int64_t k = 0; k < count; ++k) {
          const S factor = numbers[i][k] >= dropout.threshold ? scale : S(0);
          const S value = x[place + k] * factor;
          if (wants_factors) x[place + k] = factor;
          y[place + k] = value;
        }
      }
    }
  }
}

// sums[c] += sum over the rows of grad[c] * factor[c], in vectors; factor may be null, which is 1.
template <class S>
void add_to_sums(const S* grad, const S* factor, S* sums, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  constexpr int64_t width = Vec<S>::width;
  for (int64_t c = 0; c < features; ++c) {
    V sum = V::loadu(sums + c * width);
    for (int64_t i = c * stride; i < (c + 1) * stride; i += width) {
      const V g = V::loadu(grad + i);
      sum = sum + (factor ? g * V::loadu(factor + i) : g);
    }
    sum.store(sums + c * width);
  }
}

// y = x * weight; y may be x.
template <class S>
void scale(const void* weight, const S* x, S* y, int64_t features, int64_t stride) {
  using V = typename Vec<S>::Base;
  for (int64_t c = 0; c < features; ++c, x += stride, y += stride) {
    const V factor(static_cast<const S*>(weight)[c]);
    for (int64_t r = 0; r < stride; r += Vec<S>::width) (V::loadu(x + r) * factor).store(y + r);
  }
}

// y = f(x, other), number by number, of a panel; y may be x.
template <class S, class F>
void combine(const S* x, const S* other, S* y, int64_t n, F f) {
  using V = typename Vec<S>::Base;
  for (int64_t i = 0; i < n; i += Vec<S>::width) f(V::loadu(x + i), V::loadu(other + i)).store(y + i);
}
template <class S>
void add(const S* other, S* y, int64_t n) {
  combine(y, other, y, n, [](auto a, auto b) { return a + b; });
}

// y = the step's result for x; y may be x. For the backward pass, which has room for multipliers, x becomes what the
// gradient is made of.
template <class S>
void apply(const UnpackedStep& step, S* x, S* multipliers, S* y, const PanelRows& rows, int64_t features) {
  const int64_t n = features * rows.stride;
  switch (step.kind) {
    case UnpackedStep::Kind::activation:
      step.activation->forward(x, y, n, step.params, /*stream=*/false);
      if (multipliers && step.activation->backward_from_output[0]) std::copy_n(y, n, x);
      return;
    case UnpackedStep::Kind::norm:
      return normalize(step.norm, x, multipliers, y, features, rows.stride);
    case UnpackedStep::Kind::scale:
      return scale(step.norm.weight, x, y, features, rows.stride);
    case UnpackedStep::Kind::dropout:
      return drop(step.dropout, x, multipliers != nullptr, y, rows, features);
  }
}

// The gradient of x in the place of that of y, given what apply() made of x.
template <class S>
void apply_backward(const UnpackedStep& step, const S* x, const S* multipliers, S* grad, S* weight_sums, S* bias_sums,
                    const PanelRows& rows, int64_t features) {
  const int64_t n = features * rows.stride;
  switch (step.kind) {
    case UnpackedStep::Kind::activation: {
      const BackwardKernel from_output = step.activation->backward_from_output[0];
      const BackwardKernel backward = from_output ? from_output : step.activation->backward[0];
      return backward(grad, x, grad, n, step.params, /*stream=*/false);
    }
    case UnpackedStep::Kind::norm:
      return normalize_backward(step.norm, x, multipliers, grad, weight_sums, bias_sums, features, rows.stride);
    case UnpackedStep::Kind::scale:
      if (weight_sums) add_to_sums(grad, x, weight_sums, features, rows.stride);
      return scale(step.norm.weight, grad, grad, features, rows.stride);
    case UnpackedStep::Kind::dropout:
      return combine(grad, x, grad, n, [](auto a, auto b) { return a * b; });
  }
}

// ---- networks ----

// Features from `first` to `end` of a panel.
template <class Storage>
void read(ConstRows matrix, const PanelRows& rows, int64_t first, int64_t end, void* panel) {
  using S = Compute<Storage>;
  matrix.data = static_cast<const Storage*>(matrix.data) + first;
  read_panel<Numbers<Storage>>(matrix, rows, end - first, static_cast<S*>(panel) + first * rows.stride);
}
template <class Storage>
void write(const void* panel, Rows matrix, const PanelRows& rows, int64_t first, int64_t end) {
  using S = Compute<Storage>;
  matrix.data = static_cast<Storage*>(matrix.data) + first;
  write_panel<Numbers<Storage>>(static_cast<const S*>(panel) + first * rows.stride, matrix, rows, end - first);
}

// A layer's outputs from `first` to `end`, up to its steps; y is x where there is no product.
template <class Storage>
void through_product(const UnpackedLayer& layer, const PanelRows& rows, int64_t first, int64_t end, const void* x,
                     void* y) {
  using S = Compute<Storage>;
  S* const result = static_cast<S*>(y) + first * rows.stride;
  if (!layer.only_steps) {
    const plain::Factors<S> weight{static_cast<const S*>(layer.weight.data), layer.weight.stride, 1};
    plain::multiply<Arithmetic<S>>(
        {weight, layer.in_features, static_cast<const S*>(x), rows.stride, static_cast<const S*>(layer.bias),
         static_cast<S*>(y), rows.stride, /*adds=*/false, /*pads=*/true},
        first, end, rows.stride);
  }
  if (layer.kept.data && !layer.keeps_output) write<Storage>(y, layer.kept, rows, first, end);
  if (layer.activation) {
    layer.activation->forward(result, result, (end - first) * rows.stride, layer.params, /*stream=*/false);
  }
  if (layer.kept.data && layer.keeps_output) write<Storage>(y, layer.kept, rows, first, end);
}

// A layer's steps on all of its outputs, and what comes after them; `kept` is the panel that a residual connection
// begins or ends with.
template <class S>
void through_steps(const UnpackedLayer& layer, const PanelRows& rows, void* panel, void* kept) {
  S* const y = static_cast<S*>(panel);
  const int64_t n = layer.out_features * rows.stride;
  for (const UnpackedStep& step : std::span(layer.steps, layer.step_count)) {
    apply<S>(step, y, nullptr, y, rows, layer.out_features);
  }
  if (layer.end == UnpackedEnd::residual) std::copy_n(y, n, static_cast<S*>(kept));
  if (layer.end == UnpackedEnd::add) add<S>(static_cast<const S*>(kept), y, n);
}

template <class Storage>
class Backward {
  using S = Compute<Storage>;
  static constexpr int64_t width = Vec<S>::width;

 public:
  Backward(const UnpackedNetwork& network, int first_layer, const UnpackedGradients& gradients, void* sums, void* room)
      : network_(network), first_layer_(first_layer), gradients_(gradients), sums_(static_cast<S*>(sums)) {
    grad_ = static_cast<S*>(room);
    next_ = grad_ + network.panel();
    matrix_ = next_ + network.panel();
    grads_of_kept_ = matrix_ + network.panel();
    values_ = grads_of_kept_ + network.most_kept * network.panel();
    multipliers_ = values_ + (network.most_steps > 0 ? 1 + network.most_steps : 0) * network.panel();
    vectors_ = static_cast<S*>(room) + network.backward_room();
    sums_end_ = sums_;
    vectors_end_ = vectors_;
    for (const UnpackedLayer& layer : layers()) {
      const int64_t numbers = layer.vector_sums() * layer.out_features;
      sums_end_ += weight_sums(layer) + numbers;
      vectors_end_ += numbers * width;
    }
  }

  void run(int64_t first_row, int64_t rows) {
    std::fill(vectors_, vectors_end_, S(0));
    for_each_panel<S>(network_, first_row, rows, [&](const PanelRows& panel) {
      through_panel(panel);
      add_ = true;
    });
    S* place = sums_;
    const S* vector = vectors_;
    for (const UnpackedLayer& layer : layers()) {
      place += weight_sums(layer);
      for (int64_t i = layer.vector_sums() * layer.out_features; i-- > 0; vector += width) {
        *place++ = std::accumulate(vector, vector + width, S(0));
      }
    }
  }

 private:
  std::span<const UnpackedLayer> layers() const {
    return {network_.layers + first_layer_, network_.layers + network_.count};
  }
  static int64_t weight_sums(const UnpackedLayer& layer) {
    return layer.sums_weight ? in_vectors<S>(layer.in_features) * layer.out_features : 0;
  }

  void through_panel(const PanelRows& panel) {
    S* sums = sums_end_;
    S* vectors = vectors_end_;
    S* grad_of_kept = grads_of_kept_;
    read_panel<Numbers<Storage>>(gradients_.grad_output, panel, layers().back().out_features, grad_);
    compute_steps(layers().back(), panel);
    for (int i = network_.count; i-- > first_layer_;) {
      const UnpackedLayer& layer = network_.layers[i];
      const UnpackedLayer* const below = i > 0 ? &layer - 1 : nullptr;
      const int64_t outputs = layer.out_features;
      const int64_t n = outputs * panel.stride;
      const auto vector_sums = [&](bool wanted) -> S* {
        if (!wanted) return nullptr;
        sums -= outputs;
        return vectors -= outputs * width;
      };
      if (layer.end == UnpackedEnd::add) grad_of_kept = std::copy_n(grad_, n, grad_of_kept) + (network_.panel() - n);
      if (layer.end == UnpackedEnd::residual) add<S>(grad_of_kept -= network_.panel(), grad_, n);
      for (int k = layer.step_count; k-- > 0;) {
        const UnpackedStep& step = layer.steps[k];
        S* const bias_sums = vector_sums(step.sums_bias);
        S* const weight_sums = vector_sums(step.sums_weight);
        apply_backward<S>(step, value(k), multipliers(k), grad_, weight_sums, bias_sums, panel, outputs);
        clear_rest<S>(grad_, panel, outputs);
      }
      if (below && (i > first_layer_ || layer.sums_weight)) compute_steps(*below, panel);
      if (layer.only_steps) continue;
      if (layer.activation) {
        read_panel<Numbers<Storage>>(constant(layer.kept), panel, outputs, matrix_);
        const Kernels& f = *layer.activation;
        (layer.keeps_output ? f.backward_from_output : f.backward)[0](grad_, matrix_, grad_, n, layer.params,
                                                                      /*stream=*/false);
        clear_rest<S>(grad_, panel, outputs);
      }
      if (S* const bias_sums = vector_sums(layer.sums_bias)) {
        add_to_sums<S>(grad_, nullptr, bias_sums, outputs, panel.stride);
      }
      if (layer.sums_weight) {
        const ConstRows h = layer_input(below, layer.in_features, panel);
        sums -= weight_sums(layer);
        plain::multiply<Arithmetic<S>>({{grad_, panel.stride, 1},
                                        panel.count,
                                        static_cast<const S*>(h.data),
                                        h.stride,
                                        nullptr,
                                        sums,
                                        in_vectors<S>(layer.in_features),
                                        add_,
                                        /*pads=*/true},
                                       0, outputs, layer.in_features);
      }
      if (i == 0 ? !gradients_.input_grad.data : i == first_layer_) break;
      const plain::Factors<S> transpose{static_cast<const S*>(layer.weight.data), 1, layer.weight.stride};
      plain::multiply<Arithmetic<S>>(
          {transpose, outputs, grad_, panel.stride, nullptr, next_, panel.stride, /*adds=*/false, /*pads=*/true}, 0,
          layer.in_features, panel.stride);
      clear_rest<S>(next_, panel, layer.in_features);
      std::swap(grad_, next_);
    }
    if (gradients_.input_grad.data) {
      write_panel<Numbers<Storage>>(grad_, gradients_.input_grad, panel, network_.layers[0].in_features);
    }
  }

  // What step k of the present layer starts from, or what apply() made of that; behind the last step their result.
  S* value(int k) const { return values_ + k * network_.panel(); }
  S* multipliers(int k) const { return multipliers_ + k * network_.panel_rows; }

  // The values of a layer's steps anew, from what the forward pass kept: nothing where they all are dropouts.
  void compute_steps(const UnpackedLayer& layer, const PanelRows& panel) const {
    if (layer.step_count == 0) return;
    if (layer.kept.data) read_panel<Numbers<Storage>>(constant(layer.kept), panel, layer.out_features, value(0));
    for (int k = 0; k < layer.step_count; ++k) {
      apply<S>(layer.steps[k], value(k), multipliers(k), value(k + 1), panel, layer.out_features);
      clear_rest<S>(value(k), panel, layer.out_features);  // where zeros may have become NaN
    }
  }

  // A panel's rows of what comes to a layer, as a matrix of the type that is computed with.
  ConstRows layer_input(const UnpackedLayer* below, int64_t features, const PanelRows& rows) const {
    const int64_t stride = in_vectors<S>(features);
    const Rows matrix{matrix_, stride};
    if (below && below->step_count > 0) {
      write_panel<Numbers<S>>(value(below->step_count), matrix, {0, rows.count, false, rows.stride}, features);
      return constant(matrix);
    }
    const ConstRows source = below ? constant(below->kept) : gradients_.input;
    const Storage* const place = row<Storage>(source, rows.first);
    const bool activates = below && !below->keeps_output && below->activation;
    if (std::is_same_v<S, Storage> && !activates) return {place, source.stride};
    for (int64_t r = 0; r < rows.count; ++r) {
      convert_row<S, Storage>(place + r * source.stride, features, matrix_ + r * stride, stride);
    }
    if (activates) below->activation->forward(matrix_, matrix_, rows.count * stride, below->params, false);
    return constant(matrix);
  }

  const UnpackedNetwork& network_;
  int first_layer_;
  const UnpackedGradients& gradients_;
  S *sums_, *sums_end_;
  S *grad_, *next_, *matrix_, *grads_of_kept_, *values_, *multipliers_;
  S *vectors_, *vectors_end_;  // for each number of the vectors' sums as many as a vector has
  bool add_ = false;
};

template <class Storage>
void backward(const UnpackedNetwork& network, int first_layer, const UnpackedGradients& gradients, int64_t first_row,
              int64_t rows, void* sums, void* room) {
  Backward<Storage>(network, first_layer, gradients, sums, room).run(first_row, rows);
}

template <class Storage>
constexpr UnpackedKernels unpacked_kernels() {
  using S = Compute<Storage>;
  return {Vec<S>::width,
          {sizeof(S), plain::tile_vectors * Vec<S>::width, plain::most_tiles, plain::panel_bytes, 1, read<Storage>,
           through_product<Storage>, through_steps<S>, write<Storage>},
          {},
          backward<Storage>,
          Arithmetic<S>::at_once,
          plain::multiply<Arithmetic<S>>,
          std::is_same_v<S, Storage> ? nullptr : convert<Storage>};
}

}  // namespace

void add_unpacked_kernels(KernelTable& table) {
  const auto at = [&](Dtype dtype) -> UnpackedKernels& { return table.unpacked[static_cast<int>(dtype)]; };
  at(Dtype::float32) = unpacked_kernels<float>();
  at(Dtype::float64) = unpacked_kernels<double>();
  at(Dtype::bfloat16) = unpacked_kernels<c10::BFloat16>();
  at(Dtype::float16) = unpacked_kernels<c10::Half>();
}

}  // namespace fastops::cpu::CPU_CAPABILITY
