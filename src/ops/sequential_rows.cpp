// The parts of a sequential in terms of differentiable ops.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "ops/activation.h"
#include "ops/matrix.h"
#include "ops/sequential.h"

namespace fastops {
namespace {

using Kind = Step::Kind;

// ---- dropout ----

constexpr int64_t low_word = 0xffffffff;

Tensor low(const Tensor& number) { return number & low_word; }
// An exact division, also of negative numbers: torch.export's core ops have no shift, and ONNX does not round down.
Tensor high(const Tensor& number) { return at::div(number - low(number), low_word + 1, "trunc") & low_word; }

// The high and the low word of the product of two unsigned words, which int64 holds but for its sign.
std::pair<Tensor, Tensor> words_of_product(const Tensor& a, int64_t b) {
  const Tensor product = a * b;
  return {high(product), low(product)};
}

// Philox4x32-10 of the counter (c0, c1, c2, c3); all are int64 tensors of unsigned words.
std::array<Tensor, 4> philox(std::array<Tensor, 4> c, const Tensor& seed) {
  Tensor key0 = low(seed);
  Tensor key1 = high(seed);
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = words_of_product(c[0], 0xD2511F53);
    const auto [high1, low1] = words_of_product(c[2], 0xCD9E8D57);
    c = {high1 ^ c[1] ^ key0, low1, high0 ^ c[3] ^ key1, low0};
    key0 = low(key0 + 0x9E3779B9);
    key1 = low(key1 + 0xBB67AE85);
  }
  return c;
}

}  // namespace

Tensor dropout_factors(const Tensor& like, const Tensor& seed, int64_t stream, double p) {
  constexpr int64_t lanes = 16, group = 4 * lanes;
  const auto options = like.options().dtype(at::kLong);
  const c10::SymInt features = like.sym_size(-1);
  const c10::SymInt groups = (features + (group - 1)) / group;
  auto rows = like.sym_sizes().vec();
  rows.pop_back();
  c10::SymInt row_count = 1;
  for (const c10::SymInt& size : rows) row_count *= size;
  const Tensor row = at::arange(row_count, options).reshape_symint(rows).unsqueeze(-1);
  const Tensor calls = at::arange(groups * lanes, options);  // those for the elements of a row
  const Tensor zero = at::zeros_like(row) + at::zeros_like(calls);
  const auto numbers = philox({zero + calls, zero + low(row), zero + high(row), zero + stream}, seed);
  // [..., groups, number, lane]: in the order of the elements
  std::vector<Tensor> parts;
  auto sizes = rows;
  sizes.insert(sizes.end(), {groups, lanes});
  for (const Tensor& number : numbers) parts.push_back(number.reshape_symint(sizes));
  sizes.pop_back();
  sizes.back() = groups * group;
  const Tensor in_order = at::stack(parts, -2).reshape_symint(sizes).narrow_symint(-1, 0, features);
  const auto type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (in_order >= static_cast<int64_t>(dropout_threshold(p))).to(type) * dropout_scale(p);
}

namespace {

// ---- steps on rows ----

at::ScalarType type_computed_with(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What a step has made, and what its gradient is made of.
struct Passed {
  Tensor result;
  Tensor input;       // of an activation and a scale; of a norm, normalized
  Tensor multiplier;  // of each row by a norm, of each element by a dropout
};

Passed forward(const Step& step, const Tensor& h, const Tensor& seed) {
  const auto affine = [&](Tensor value) {
    if (step.weight.defined()) value = value * step.weight.to(value.scalar_type());
    return step.bias.defined() ? value + step.bias.to(value.scalar_type()) : value;
  };
  if (step.kind == Kind::activation) return {call_activation(step.activation, h), h, {}};
  if (step.kind == Kind::scale) return {affine(h), h, {}};
  if (step.kind == Kind::dropout) {
    const Tensor factors = dropout_factors(h, seed, step.stream, step.number);
    return {h * factors, {}, factors};
  }
  const Tensor centered = step.kind == Kind::layer_norm ? h - h.mean(-1, /*keepdim=*/true) : h;
  const Tensor multiplier = ((centered * centered).mean(-1, /*keepdim=*/true) + step.number).rsqrt();
  const Tensor normalized = centered * multiplier;
  return {affine(normalized), normalized, multiplier};
}

Tensor sum_over_rows(const Tensor& tensor, const Tensor& like) {
  return as_matrix(tensor).sum(0).to(like.scalar_type());
}

struct StepGradients {
  Tensor input;
  SequentialSteps::ParameterGradients parameters;
};

StepGradients backward(const Step& step, const Passed& passed, const Tensor& grad, std::pair<bool, bool> wanted) {
  StepGradients gradients;
  if (wanted.first) gradients.parameters.weight = sum_over_rows(grad * passed.input, step.weight);
  if (wanted.second) gradients.parameters.bias = sum_over_rows(grad, step.bias);
  if (step.kind == Kind::activation) {
    gradients.input = activation_backward(grad, passed.input, step.activation, /*from_output=*/false, 1);
    return gradients;
  }
  if (step.kind == Kind::dropout) {
    gradients.input = grad * passed.multiplier;
    return gradients;
  }
  const Tensor scaled = step.weight.defined() ? grad * step.weight.to(grad.scalar_type()) : grad;
  if (step.kind == Kind::scale) {
    gradients.input = scaled;
    return gradients;
  }
  Tensor rest = scaled - passed.input * (scaled * passed.input).mean(-1, /*keepdim=*/true);
  if (step.kind == Kind::layer_norm) rest = rest - scaled.mean(-1, /*keepdim=*/true);
  gradients.input = rest * passed.multiplier;
  return gradients;
}

Tensor rows_forward(std::span<const Step> rows, const Tensor& seed, const Tensor& x, const Tensor& added,
                    at::ScalarType dtype) {
  Tensor h = x.to(type_computed_with(x));
  for (const Step& step : rows) h = forward(step, h, seed).result;
  if (added.defined()) h = h + added.to(h.scalar_type());
  return h.to(dtype);
}

SequentialSteps::RowGradients rows_backward(std::span<const Step> rows, const Tensor& seed, const Tensor& x,
                                            const Tensor& grad, const Tensor& added,
                                            const SequentialSteps::Wanted& wanted) {
  // Without a value there are dropouts alone, which need its shape.
  const Tensor& start = x.defined() ? x : grad;
  std::vector<Passed> passed;
  Tensor h = start.to(type_computed_with(start));
  for (const Step& step : rows) {
    passed.push_back(forward(step, h, seed));
    h = passed.back().result;
  }
  SequentialSteps::RowGradients gradients;
  gradients.parameters.resize(rows.size());
  if (wanted.value) gradients.value = h.to(wanted.value_type);
  if (!grad.defined()) return gradients;
  Tensor g = grad.to(h.scalar_type());
  for (size_t i = rows.size(); i-- > 0;) {
    auto [input, parameters] = backward(rows[i], passed[i], g, wanted.parameters[i]);
    gradients.parameters[i] = std::move(parameters);
    g = std::move(input);
  }
  if (added.defined()) g = g + added.to(g.scalar_type());
  if (wanted.x) gradients.x = g.to(wanted.x_type);
  return gradients;
}

// ---- products ----

Tensor linear_input_gradient(const Tensor& grad, const Tensor& weight) { return at::matmul(grad, weight); }

SequentialSteps::ParameterGradients linear_parameter_gradients(const Tensor& grad, const Tensor& x,
                                                               const Tensor& weight, const Tensor&,
                                                               std::pair<bool, bool> wanted) {
  const Tensor rows = as_matrix(grad);
  SequentialSteps::ParameterGradients gradients;
  if (wanted.first) gradients.weight = gradient_of_weight(weight, rows, as_matrix(x), product);
  if (wanted.second) gradients.bias = rows.sum(0);
  return gradients;
}

Tensor linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias) { return at::linear(x, weight, bias); }

}  // namespace

const SequentialSteps sequential_steps{linear_forward, linear_input_gradient, linear_parameter_gradients, rows_forward,
                                       rows_backward};

int64_t SequentialSteps::Wanted::parameter_count() const {
  int64_t count = 0;
  for (const auto& [weight, bias] : parameters) count += int64_t{weight} + int64_t{bias};
  return count;
}

Tensor empty_of_type(const Tensor& like, at::ScalarType dtype) {
  return at::empty(like.sizes(), like.options().dtype(dtype));
}

std::vector<SequentialSteps::ParameterGradients> gradients_of_steps(std::span<const Step> steps,
                                                                    const SequentialSteps::Wanted& wanted,
                                                                    const Tensor& vectors) {
  std::vector<SequentialSteps::ParameterGradients> gradients(steps.size());
  int64_t next = 0;
  const auto take = [&](bool is_wanted, const Tensor& parameter) {
    return is_wanted ? vectors[next++].to(parameter.scalar_type()) : Tensor();
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [weight, bias] = wanted.parameters[i];
    gradients[i].weight = take(weight, steps[i].weight);
    gradients[i].bias = take(bias, steps[i].bias);
  }
  return gradients;
}

}  // namespace fastops
