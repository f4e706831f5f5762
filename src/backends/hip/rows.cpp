#include "backends/hip/rows.h"

#include <ATen/ops/empty.h>

#include "backends/hip/launch.h"

namespace fastops::hip {
namespace {

// The arguments of a launcher, and the tensors that they point into.
class RowCall {
 public:
  RowCall(std::span<const Step> steps, const Tensor& seed, const Tensor& x) : seed_(seed) {
    tensors_.reserve(2 * steps.size());
    if (steps.size() > most_row_steps) return;
    for (const Step& step : steps) call_.steps[call_.count++] = row_step(step);
    call_.seed = seed.defined() ? data_of(seed) : nullptr;
    call_.computed = x.scalar_type() == at::kDouble ? Dtype::float64 : Dtype::float32;
    call_.columns = x.size(-1);
    call_.rows = call_.columns == 0 ? 0 : x.numel() / call_.columns;
    call_.stream = stream_of(x);
    call_.multiprocessors = multiprocessors_of(x);
    call_.most_shared_bytes = most_shared_bytes_of(x);
    fits_ = true;
  }

  RowsCall& operator*() { return call_; }
  RowsCall* operator->() { return &call_; }
  bool fits(bool backward) const { return fits_ && (call_.rows == 0 || rows_fit(call_, backward)); }

  // A tensor of rows or a vector as the kernels read it.
  Numbers argument(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    const Tensor& contiguous = tensors_.emplace_back(tensor.contiguous());
    return {data_of(contiguous), dtype_of(contiguous)};
  }

 private:
  RowStep row_step(const Step& step) {
    using Kind = Step::Kind;
    switch (step.kind) {
      case Kind::activation:
        return {
            .kind = RowStep::Kind::activation, .activation = step.activation.id, .params = step.activation.params()};
      case Kind::scale:
        return {.kind = RowStep::Kind::scale, .weight = argument(step.weight)};
      case Kind::dropout:
        return {.kind = RowStep::Kind::dropout,
                .stream = static_cast<uint32_t>(step.stream),
                .threshold = dropout_threshold(step.number),
                .scale = dropout_scale(step.number)};
      default:
        return {.kind = RowStep::Kind::norm,
                .centered = step.kind == Kind::layer_norm,
                .eps = step.number,
                .weight = argument(step.weight),
                .bias = argument(step.bias)};
    }
  }

  Tensor seed_;
  std::vector<Tensor> tensors_;
  RowsCall call_{};
  bool fits_ = false;
};

Numbers result(const Tensor& tensor) {
  return tensor.defined() ? Numbers{tensor.mutable_data_ptr(), dtype_of(tensor)} : Numbers{};
}

// That of the parameters whose gradients are wanted, where they have the same.
at::ScalarType type_of_parameters(std::span<const Step> steps, const SequentialSteps::Wanted& wanted,
                                  at::ScalarType otherwise) {
  std::optional<at::ScalarType> type;
  bool same = true;
  const auto add = [&](bool is_wanted, const Tensor& parameter) {
    if (!is_wanted) return;
    same = same && type.value_or(parameter.scalar_type()) == parameter.scalar_type();
    type = parameter.scalar_type();
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    add(wanted.parameters[i].first, steps[i].weight);
    add(wanted.parameters[i].second, steps[i].bias);
  }
  return same ? type.value_or(otherwise) : otherwise;
}

}  // namespace

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype) {
  RowCall call(steps, seed, x);
  if (!call.fits(/*backward=*/false)) return sequential_steps.rows(steps, seed, x, added, dtype);
  const Tensor y = empty_of_type(x, dtype);
  if (call->rows > 0) check(rows_forward(*call, call.argument(x), call.argument(added), result(y)));
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
  RowCall call(steps, seed, like);
  for (int i = 0; i < call->count; ++i) {
    std::tie(call->steps[i].wants_weight_grad, call->steps[i].wants_bias_grad) = wanted.parameters[i];
  }
  if (!call.fits(/*backward=*/true)) return sequential_steps.rows_backward(steps, seed, x, grad, added, wanted);

  if (wanted.x) results.x = empty_of_type(like, wanted.x_type);
  if (wanted.value) results.value = empty_of_type(like, wanted.value_type);
  const int64_t sums = wanted.parameter_count();
  const auto options = like.options().dtype(compute_type(like));
  const auto of_parameters = options.dtype(type_of_parameters(steps, wanted, compute_type(like)));
  Tensor vectors = at::empty({sums, like.size(-1)}, of_parameters);
  if (call->rows > 0) {
    const Tensor block_sums = at::empty({sums > 0 ? rows_backward_sums(*call) : 0}, options);
    check(rows_backward(*call, call.argument(x), call.argument(grad), call.argument(added), result(results.x),
                        result(results.value), block_sums.mutable_data_ptr(), result(vectors)));
  } else {
    vectors.zero_();
  }
  results.parameters = gradients_of_steps(steps, wanted, vectors);
  return results;
}

}  // namespace fastops::hip
