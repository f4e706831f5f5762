#include "backends/cpu/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <deque>

#include "backends/cpu/choice.h"
#include "backends/cpu/launch.h"
#include "ops/matrix.h"

namespace fastops::cpu {
namespace {

// A vector of a step, contiguous.
class Vector {
 public:
  explicit Vector(const Tensor& tensor) : tensor_(tensor.defined() ? tensor.contiguous() : tensor) {}
  operator RowVector() const {
    return tensor_.defined() ? RowVector{tensor_.const_data_ptr(), dtype_of(tensor_)} : RowVector{};
  }

 private:
  Tensor tensor_;
};

// Steps as a launcher wants them, and the tensors that they point into.
class StepList {
 public:
  explicit StepList(std::span<const Step> steps) {
    vectors_.reserve(2 * steps.size());
    for (const Step& step : steps) steps_.push_back(row_step(step));
  }
  operator std::span<const RowStep>() const { return {steps_.data(), steps_.size()}; }

 private:
  RowStep row_step(const Step& step) {
    using Kind = Step::Kind;
    const auto vector = [&](const Tensor& tensor) -> RowVector { return vectors_.emplace_back(tensor); };
    switch (step.kind) {
      case Kind::activation:
        return {
            .kind = RowStep::Kind::activation, .activation = step.activation.id, .params = step.activation.params()};
      case Kind::scale:
        return {.kind = RowStep::Kind::scale, .weight = vector(step.weight)};
      case Kind::dropout:
        return {.kind = RowStep::Kind::dropout,
                .stream = static_cast<uint32_t>(step.stream),
                .threshold = dropout_threshold(step.number),
                .scale = dropout_scale(step.number)};
      default:
        return {.kind = RowStep::Kind::norm,
                .centered = step.kind == Kind::layer_norm,
                .eps = step.number,
                .weight = vector(step.weight),
                .bias = vector(step.bias)};
    }
  }

  c10::SmallVector<RowStep, 6> steps_;
  std::vector<Vector> vectors_;
};

// The arguments of a launcher.
class RowCall {
 public:
  RowCall(std::span<const Step> steps, const Tensor& seed, const Tensor& x) : steps_(steps) {
    call_.steps = steps_;
    call_.seed = seed.defined() ? static_cast<uint64_t>(*seed.const_data_ptr<int64_t>()) : 0;
    call_.computed = x.scalar_type() == at::kDouble ? Dtype::float64 : Dtype::float32;
    call_.columns = x.size(-1);
    call_.rows = call_.columns == 0 ? 0 : x.numel() / call_.columns;
  }
  const RowsCall& operator*() const { return call_; }
  bool is_empty() const { return call_.rows == 0; }

 private:
  StepList steps_;
  RowsCall call_{};
};

// The rows of an argument, copied where its strides do not give any.
class Argument {
 public:
  explicit Argument(const Tensor& tensor) {
    if (tensor.defined()) rows_.emplace(tensor), dtype_ = dtype_of(tensor);
  }
  operator Typed<ConstRows>() const { return {rows_ ? ConstRows(*rows_) : ConstRows{nullptr, 0}, dtype_}; }

 private:
  std::optional<RowView> rows_;
  Dtype dtype_{};
};

Typed<Rows> result(const Tensor& tensor) {
  return tensor.defined() ? Typed<Rows>{result_rows(tensor), dtype_of(tensor)} : Typed<Rows>{{nullptr, 0}, {}};
}

Tensor empty_result_of_type(const Tensor& like, at::ScalarType dtype) {
  if (like.scalar_type() == dtype) return empty_result(like.sizes(), like);
  return at::empty(like.sizes(), like.options().dtype(dtype));
}

}  // namespace

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype) {
  const Tensor y = empty_result_of_type(x, dtype);
  const RowCall call(steps, seed, x);
  if (call.is_empty()) return y;
  const Typed<Rows> y_rows = result(y);
  TorchCaller caller;
  rows_forward(caller, *call, Argument(x), Argument(added), y_rows);
  return y;
}

SequentialSteps::RowGradients steps_on_rows_backward(std::span<const Step> steps, const Tensor& seed, const Tensor& x,
                                                     const Tensor& grad, const Tensor& added,
                                                     const SequentialSteps::Wanted& wanted) {
  const Tensor& like = x.defined() ? x : grad;
  const RowCall call(steps, seed, like);
  SequentialSteps::RowGradients results;
  if (wanted.x) results.x = empty_result_of_type(like, wanted.x_type);
  if (wanted.value) results.value = empty_result_of_type(like, wanted.value_type);

  const auto sums_type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto sums = [&](bool is_wanted) {
    if (!is_wanted) return Tensor();
    return at::zeros({like.size(-1)}, like.options().dtype(sums_type));
  };
  std::vector<RowStepGradients> gradients;
  for (const auto& [weight, bias] : wanted.parameters) {
    const auto& [weight_sums, bias_sums] = results.parameters.emplace_back(sums(weight), sums(bias));
    gradients.push_back(
        {weight ? weight_sums.mutable_data_ptr() : nullptr, bias ? bias_sums.mutable_data_ptr() : nullptr});
  }
  if (!call.is_empty()) {
    TorchCaller caller;
    const Typed<Rows> x_rows = result(results.x), value_rows = result(results.value);
    rows_backward(caller, *call, Argument(x), Argument(grad), Argument(added), x_rows, value_rows, gradients);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    auto& [weight, bias] = results.parameters[i];
    if (weight.defined()) weight = weight.to(steps[i].weight.scalar_type());
    if (bias.defined()) bias = bias.to(steps[i].bias.scalar_type());
  }
  return results;
}

namespace {

// A sequential as layers of a launcher, one for each segment: the product before it, if there is one, its steps on
// rows, and what it ends with. There is none for a product that the network begins with.
class LayerList {
 public:
  explicit LayerList(const SequentialArguments& network) : network_(network), segments_(network.segments()) {
    const bool begins_with_product = segments_[0].rows.empty() && segments_[0].ends_with_product();
    for (size_t s = begins_with_product; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      const StepList& steps = steps_.emplace_back(segment.rows);
      Layer layer{};
      if (const Step* const product = product_before(s)) {
        static_cast<Linear&>(layer) = parameters_.emplace_back(product->weight, product->bias).linear();
      } else {
        layer.only_steps = true;
        layer.in_features = layer.out_features = segment.features.expect_int();
      }
      layer.steps = steps;
      layer.end = segment.ends_with(Step::Kind::residual) ? UnpackedEnd::residual
                  : segment.ends_with(Step::Kind::add)    ? UnpackedEnd::add
                                                          : UnpackedEnd::none;
      layers_.push_back(layer);
    }
  }

  // f(layer, its segment, whose value is another one than that of the segment before, the product before it or null)
  template <class F>
  void for_each(const F& f) {
    const size_t first = segments_.size() - layers_.size();
    for (size_t s = first; s < segments_.size(); ++s) {
      const bool is_new = s > 0 && segments_[s].value != segments_[s - 1].value;
      f(layers_[s - first], segments_[s], is_new, product_before(s));
    }
  }

  MlpCall call() const {
    const Tensor& seed = network_.seed;
    return {dtype_of(network_.input),
            row_count(network_.input),
            {layers_.data(), layers_.size()},
            seed.defined() ? static_cast<uint64_t>(*seed.const_data_ptr<int64_t>()) : 0};
  }
  int64_t out_features() const { return layers_.back().out_features; }

 private:
  const Step* product_before(size_t s) const {
    return s > 0 && segments_[s - 1].ends_with_product() ? segments_[s - 1].end : nullptr;
  }

  const SequentialArguments& network_;
  std::vector<Segment> segments_;
  std::deque<StepList> steps_;
  std::vector<Parameters> parameters_;
  c10::SmallVector<Layer, 6> layers_;
};

// Whether a network is one for unpacked kernels: of their steps, and with products of one dtype.
bool goes_unpacked(const SequentialArguments& network, Pass pass) {
  std::vector<Tensor> weights;
  for (const Step& step : network.steps) {
    if (step.kind == Step::Kind::gated_linear) return false;
    if (step.kind != Step::Kind::linear) continue;
    if (step.weight.scalar_type() != network.input.scalar_type()) return false;
    weights.push_back(step.weight);
  }
  return goes_unpacked_with_steps(network.input, weights, pass);
}

}  // namespace

std::optional<Tensor> try_sequential(const SequentialArguments& network, std::vector<Tensor>* saved) {
  if (!goes_unpacked(network, Pass::forward)) return std::nullopt;
  const Tensor& input = network.input;
  LayerList layers(network);
  if (saved) {
    layers.for_each([&](Layer& layer, const Segment& segment, bool is_new, const Step*) {
      if (!is_new || segment.saved < 0) return;
      layer.kept = result_rows(saved->emplace_back(rows_result(input, layer.out_features)));
    });
  }
  const Tensor output = rows_result(input, layers.out_features());
  const RowView rows(input);
  TorchCaller caller;
  unpacked_mlp_forward(caller, layers.call(), rows, result_rows(output));
  return output;
}

std::optional<std::vector<Tensor>> try_sequential_backward(const SequentialBackwardArguments& network) {
  if (!goes_unpacked(network, Pass::backward)) return std::nullopt;
  const Tensor& input = network.input;
  std::vector<Tensor> results(network.output_mask.size());
  if (network.wants_input()) results[0] = rows_result(input, input.size(-1));
  // The memory of a parameter's gradient, if it is wanted.
  const auto gradient = [&](const Tensor& parameter, size_t place) -> Tensor {
    if (!parameter.defined() || !network.wants_parameter(place)) return {};
    return results[1 + place] = empty_result(parameter.sizes(), parameter);
  };
  const auto data_of = [](const Tensor& result) { return result.defined() ? result.mutable_data_ptr() : nullptr; };

  const RowView rows(input), grad_output(network.grad_output);
  std::deque<RowView> saved;
  std::deque<std::vector<RowStepGradients>> step_gradients;
  LayerList layers(network);
  layers.for_each([&](Layer& layer, const Segment& segment, bool, const Step* product) {
    // It is only read.
    const auto start = [](ConstRows value) { return Rows{const_cast<void*>(value.data), value.stride}; };
    if (segment.value == 0) layer.kept = start(rows);
    if (segment.saved >= 0) layer.kept = start(saved.emplace_back(network.saved[segment.saved]));
    if (product) {
      layer.weight_grad = data_of(gradient(product->weight, product->parameter));
      layer.bias_grad = data_of(gradient(product->bias, product->parameter + 1));
    }
    std::vector<RowStepGradients>& of_steps = step_gradients.emplace_back();
    for (const Step& step : segment.rows) {
      const Tensor weight = gradient(step.weight, step.parameter);
      of_steps.push_back({data_of(weight), data_of(gradient(step.bias, step.parameter + 1))});
    }
    layer.step_gradients = of_steps;
  });
  TorchCaller caller;
  unpacked_mlp_backward(caller, layers.call(), rows, grad_output, result_rows(results[0]));
  for (const Step& step : network.steps) {
    if (!step.is_product() || !network.wants_parameter(step.parameter)) continue;
    Tensor& weight_grad = results[1 + step.parameter];
    weight_grad = in_layout_of_weight(step.weight, weight_grad);
  }
  return without_undefined(std::move(results));
}

}  // namespace fastops::cpu
