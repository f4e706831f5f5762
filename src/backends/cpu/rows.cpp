#include "backends/cpu/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

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

Tensor empty_of_type(const Tensor& like, at::ScalarType dtype) {
  if (like.scalar_type() == dtype) return empty_result(like.sizes(), like);
  return at::empty(like.sizes(), like.options().dtype(dtype));
}

}  // namespace

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype) {
  const Tensor y = empty_of_type(x, dtype);
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
  if (wanted.x) results.x = empty_of_type(like, wanted.x_type);
  if (wanted.value) results.value = empty_of_type(like, wanted.value_type);

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

std::optional<Tensor> try_sequential(const SequentialArguments& network, std::vector<Tensor>* saved) {
  using Kind = Step::Kind;
  const Tensor& input = network.input;
  std::vector<Tensor> weights;
  for (const Step& step : network.steps) {
    const bool is_row_step = step.is_norm() || step.kind == Kind::scale || step.kind == Kind::activation;
    if (step.kind == Kind::linear && step.weight.scalar_type() == input.scalar_type()) {
      weights.push_back(step.weight);
    } else if (!is_row_step) {
      return std::nullopt;
    }
  }
  if (!is_narrow_with_steps(input, weights)) return std::nullopt;

  const std::vector<Segment> segments = network.segments();
  std::vector<StepList> steps;
  for (const Segment& segment : segments) steps.emplace_back(segment.rows);
  c10::SmallVector<Layer, 6> layers;
  std::vector<Parameters> parameters;
  if (!segments[0].rows.empty()) {
    const int64_t features = input.size(-1);
    layers.push_back(
        {{{nullptr, 0}, nullptr, features, features}, Activation::identity, {}, false, {}, steps[0], true});
  }
  for (size_t s = 1; s < segments.size(); ++s) {
    const Step& product = *segments[s - 1].end;
    const Linear linear = parameters.emplace_back(product.weight, product.bias).linear();
    Rows kept{nullptr, 0};
    if (saved && segments[s].saved >= 0) {
      kept = result_rows(saved->emplace_back(rows_result(input, linear.out_features)));
    }
    layers.push_back({linear, Activation::identity, {}, false, kept, steps[s]});
  }
  const Tensor output = rows_result(input, layers.back().out_features);
  const RowView rows(input);
  TorchCaller caller;
  narrow_mlp_forward(caller, {dtype_of(input), row_count(input), {layers.data(), layers.size()}}, rows,
                     result_rows(output));
  return output;
}

}  // namespace fastops::cpu
