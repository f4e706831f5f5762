#include "backends/metal/row_steps.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "backends/metal/rows.h"

namespace fastops::mps {
namespace {

using Kind = Step::Kind;

// How many of the steps one kernel takes, from the first one on: with a single activation, and as many steps and
// vectors as it has places for.
size_t steps_of_a_kernel(std::span<const Step> steps) {
  const Step* activation = nullptr;
  size_t vectors = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    vectors += size_t{step.weight.defined()} + size_t{step.bias.defined()};
    if (i == most_row_steps || vectors > most_row_vectors) return i;
    if (step.kind != Kind::activation) continue;
    if (activation && activation->activation.id != step.activation.id) return i;
    activation = &step;
  }
  return steps.size();
}

// The arguments of a kernel and the vectors that they name, for steps that it takes.
class RowCall {
 public:
  RowCall(std::span<const Step> steps, const Tensor& seed, const Tensor& like) : seed_(seed) {
    to_.columns = static_cast<uint32_t>(like.size(-1));
    rows_ = like.numel() == 0 ? 0 : like.numel() / like.size(-1);
    for (const Step& step : steps) to_.steps[to_.count++] = row_step(step);
    to_.forward_steps = to_.count;
    threads_ = row_calls;
    while (threads_ < row_threads && int64_t{row_numbers} * threads_ < like.size(-1)) threads_ *= 2;
    to_.slots =
        static_cast<uint32_t>((like.size(-1) + row_numbers * threads_ - 1) / (row_numbers * threads_)) * row_numbers;
  }

  RowStepsArguments& operator*() { return to_; }
  RowStepsArguments* operator->() { return &to_; }

  // The vectors that are wanted get sums; the steps before the last one whose value or statistics the way back looks at
  // are computed again. What the first one starts from is read again, and takes no memory.
  void prepare_backward(const SequentialSteps::Wanted& wanted) {
    to_.forward_steps = wanted.value ? to_.count : 0;
    for (uint32_t i = 0; i < to_.count; ++i) {
      RowStep& step = to_.steps[i];
      step.wants_weight_grad = wanted.parameters[i].first;
      step.wants_bias_grad = wanted.parameters[i].second;
      to_.sums += step.wants_weight_grad + step.wants_bias_grad;
      const bool looks = step.kind == step_norm || step.kind == step_activation || step.wants_weight_grad;
      if (!looks) continue;
      step.kept = i == 0 ? kept_in_x : static_cast<int32_t>(++kept_tiles_);
      if (i > 0 || step.kind == step_norm) to_.forward_steps = std::max(to_.forward_steps, i + 1);
    }
    to_.first_sum = 1 + kept_tiles_;
  }

  // Whether a threadgroup has memory for the rows; decides how many of them it takes at a time: they follow from the
  // sizes alone, so that a sum is made of the same parts on every device.
  bool fits() {
    group_rows_ = row_threads / threads_;
    while (group_rows_ > 1 && group_rows_ * threads_ > 64 && numbers() > row_memory_small) group_rows_ /= 2;
    const int64_t groups = (rows_ + group_rows_ - 1) / group_rows_;
    groups_ = std::min<int64_t>(groups, to_.sums > 0 ? 256 : 65536);
    to_.rows = static_cast<uint32_t>(rows_);
    to_.groups = static_cast<uint32_t>(groups_);
    return numbers() <= row_memory_large &&
           rows_ <= std::numeric_limits<int32_t>::max();  // the kernels count past them
  }

  int64_t groups() const { return groups_; }

  // What a kernel reads of a tensor of rows, and of what type that is.
  Tensor argument(const Tensor& tensor, RowTensor place) {
    if (!tensor.defined()) return {};
    to_.dtypes[place] = static_cast<uint32_t>(dtype_index(tensor.scalar_type()));
    to_.flags |= 1u << place;
    return tensor.contiguous();
  }
  Tensor result(const Tensor& tensor, RowTensor place) {
    if (tensor.defined()) own_memory(tensor);
    return argument(tensor, place);
  }

  // Its tensors are followed by the seed and the vectors.
  void launch_with(KernelKind small, KernelKind large, std::vector<Tensor> tensors) {
    tensors.push_back(seed_);
    to_.flags |= seed_.defined() ? 1u << row_seed : 0;
    vectors_.resize(most_row_vectors);
    tensors.insert(tensors.end(), vectors_.begin(), vectors_.end());
    const KernelKind kind = numbers() <= row_memory_small ? small : large;
    const auto threads = static_cast<uint64_t>(threads_);
    const auto rows = static_cast<uint64_t>(group_rows_);
    launch({kind, activation_, at::kFloat}, {{threads, rows * to_.groups, 1}, {threads, rows, 1}}, tensors, to_);
  }

 private:
  int32_t vector(const Tensor& tensor) {
    if (!tensor.defined()) return -1;
    const auto place = static_cast<int32_t>(vectors_.size());
    to_.vector_dtypes[place] = static_cast<uint32_t>(dtype_index(tensor.scalar_type()));
    vectors_.push_back(tensor.contiguous());
    return place;
  }

  RowStep row_step(const Step& step) {
    RowStep to{};
    to.weight = vector(step.weight);
    to.bias = vector(step.bias);
    to.kept = kept_nowhere;
    switch (step.kind) {
      case Kind::activation:
        activation_ = step.activation.id;
        to.kind = step_activation;
        to.params[0] = static_cast<float>(step.activation.values[0]);
        to.params[1] = static_cast<float>(step.activation.values[1]);
        break;
      case Kind::scale:
        to.kind = step_scale;
        break;
      case Kind::dropout:
        to.kind = step_dropout;
        to.stream = static_cast<uint32_t>(step.stream);
        to.threshold = dropout_threshold(step.number);
        to.scale = static_cast<float>(dropout_scale(step.number));
        break;
      default:
        to.kind = step_norm;
        to.centered = step.kind == Kind::layer_norm;
        to.eps = static_cast<float>(step.number);
    }
    return to;
  }

  // Of threadgroup memory.
  int64_t numbers() const {
    const int64_t tiles = 1 + kept_tiles_ + to_.sums;
    return group_rows_ * (threads_ + numbers_beside_tiles + tiles * threads_ * to_.slots);
  }

  Tensor seed_;
  std::vector<Tensor> vectors_;
  RowStepsArguments to_{};
  Activation activation_ = Activation::identity;
  int64_t rows_ = 0;
  int64_t threads_ = 0;     // of a row
  int64_t group_rows_ = 1;  // that a threadgroup has at a time
  int64_t groups_ = 0;
  int64_t kept_tiles_ = 0;
};

}  // namespace

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype) {
  if (x.numel() == 0) return empty_of_type(x, dtype);
  if (const size_t first = steps_of_a_kernel(steps); first < steps.size()) {
    const Tensor h = steps_on_rows(steps.first(first), seed, x, {}, at::kFloat);
    return steps_on_rows(steps.subspan(first), seed, h, added, dtype);
  }
  RowCall call(steps, seed, x);
  if (!call.fits()) return sequential_steps.rows(steps, seed, x, added, dtype);
  const Tensor y = empty_of_type(x, dtype);
  call.launch_with(KernelKind::rows_small, KernelKind::rows_large,
                   {call.argument(x, row_x), call.argument(added, row_added), call.result(y, row_result)});
  return y;
}

SequentialSteps::RowGradients steps_on_rows_backward(std::span<const Step> steps, const Tensor& seed, const Tensor& x,
                                                     const Tensor& grad, const Tensor& added,
                                                     const SequentialSteps::Wanted& wanted) {
  const Tensor& like = x.defined() ? x : grad;
  SequentialSteps::RowGradients results;
  if (!grad.defined()) {
    results.parameters.resize(steps.size());
    if (wanted.value) results.value = steps_on_rows(steps, seed, x, {}, wanted.value_type);
    return results;
  }
  if (const size_t first = steps_of_a_kernel(steps); first < steps.size()) {
    const auto middle = wanted.parameters.begin() + static_cast<std::ptrdiff_t>(first);
    const Tensor h = x.defined() ? steps_on_rows(steps.first(first), seed, x, {}, at::kFloat) : Tensor();
    results =
        steps_on_rows_backward(steps.subspan(first), seed, h, grad, {},
                               {true, wanted.value, {middle, wanted.parameters.end()}, at::kFloat, wanted.value_type});
    auto before = steps_on_rows_backward(
        steps.first(first), seed, x, results.x, added,
        {wanted.x, false, {wanted.parameters.begin(), middle}, wanted.x_type, wanted.value_type});
    results.x = std::move(before.x);
    results.parameters.insert(results.parameters.begin(), before.parameters.begin(), before.parameters.end());
    return results;
  }
  RowCall call(steps, seed, like);
  call.prepare_backward(wanted);
  if (!call.fits()) return sequential_steps.rows_backward(steps, seed, x, grad, added, wanted);

  if (wanted.x) results.x = empty_of_type(like, wanted.x_type);
  if (wanted.value) results.value = empty_of_type(like, wanted.value_type);
  const int64_t sums = wanted.parameter_count();
  const auto options = like.options().dtype(at::kFloat);
  Tensor vectors;  // the gradients of the steps' weights and biases that are wanted, one after another
  if (call.groups() == 0) {
    vectors = at::zeros({sums, like.size(-1)}, options);
  } else {
    // Each threadgroup has its own sums.
    if (sums > 0) vectors = at::empty({call.groups(), sums, like.size(-1)}, options);
    call.launch_with(KernelKind::rows_backward_small, KernelKind::rows_backward_large,
                     {call.argument(x, row_x), call.argument(grad, row_grad), call.argument(added, row_added),
                      call.result(results.x, row_result), call.result(results.value, row_value), vectors});
    if (call.groups() > 1 && sums > 0) {
      const Tensor of_groups = vectors.view({call.groups(), -1});
      vectors = at::empty({sums, like.size(-1)}, options);
      sum_columns(of_groups, vectors);
    } else if (sums > 0) {
      vectors = vectors[0];
    }
  }
  results.parameters = gradients_of_steps(steps, wanted, vectors);
  return results;
}

}  // namespace fastops::mps
