// sequential as segments, each of which ends with a matrix product or a residual connection; and the ops.
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/autocast.h"
#include "ops/batching.h"
#include "ops/define.h"
#include "ops/fallback.h"
#include "ops/gated_act.h"
#include "ops/matrix.h"
#include "ops/sequential.h"
#include "torch_internal/functorch.h"

namespace fastops {

using Kind = Step::Kind;

namespace {

// A result, contiguous, and not an argument that nothing was done to.
Tensor of_its_own(const Tensor& result, const Tensor& argument) {
  return result.is_same(argument) ? result.clone(at::MemoryFormat::Contiguous) : result.contiguous();
}

}  // namespace

Tensor layered_sequential(const SequentialArguments& network, std::vector<Tensor>* saved,
                          const SequentialSteps& steps) {
  const std::vector<Segment> segments = network.segments();
  std::vector<Tensor> kept;
  Tensor h = network.input;
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const bool is_new = s > 0 && segment.value != segments[s - 1].value;
    if (saved && is_new && segment.saved >= 0 && !segment.gate) saved->push_back(h);
    Tensor added;
    if (segment.ends_with(Kind::add)) {
      added = std::move(kept.back());
      kept.pop_back();
    }
    if (!segment.rows.empty() || added.defined() || segment.dtype != segment.rows_type) {
      h = steps.rows(segment.rows, network.seed, h, added, segment.rows_type);
    }
    if (segment.ends_with(Kind::linear)) h = steps.linear(h, segment.end->weight, segment.end->bias);
    if (segment.ends_with(Kind::gated_linear)) {
      const Tensor gate = steps.linear(h, segment.end->weight, segment.end->bias);
      const Tensor up = steps.linear(h, segment.end->up_weight, segment.end->up_bias);
      if (saved) saved->insert(saved->end(), {gate, up});
      h = act_mul(gate, up, segment.end->activation);
    }
    if (segment.ends_with(Kind::residual)) kept.push_back(h);
  }
  return of_its_own(h, network.input);
}

namespace {

// The backward pass, from the last segment on.
class Backward {
 public:
  Backward(const SequentialBackwardArguments& network, const SequentialSteps& steps)
      : network_(network), steps_(steps), segments_(network.segments()), grads_(network.output_mask.size()) {}

  std::vector<Tensor> run() {
    grad_ = network_.grad_output;
    for (size_t s = segments_.size(); s-- > 0 && wants_anything(s);) through_segment(s);
    if (network_.wants_input()) grads_[0] = of_its_own(grad_, network_.grad_output);
    std::vector<Tensor> wanted;
    for (size_t i = 0; i < grads_.size(); ++i) {
      if (network_.output_mask[i]) wanted.push_back(std::move(grads_[i]));
    }
    return wanted;
  }

 private:
  bool wants(const Step& step) const { return wants_weight(step) || wants_bias(step) || wants_up(step); }
  bool wants_weight(const Step& step) const { return wants(step.weight, step.parameter); }
  bool wants_bias(const Step& step) const { return wants(step.bias, step.parameter + 1); }
  bool wants_up(const Step& step) const {
    return wants(step.up_weight, step.parameter + 2) || wants(step.up_bias, step.parameter + 3);
  }
  bool wants(const Tensor& parameter, size_t place) const {
    return parameter.defined() && network_.wants_parameter(place);
  }
  // Of the steps before one, and the input.
  bool wants_before(const Step* step) const {
    return network_.wants_input() || std::any_of(network_.steps.data(), step, [&](const Step& s) { return wants(s); });
  }
  // Of a segment, its end, and all before.
  bool wants_anything(size_t s) const {
    const Step* const end = segments_[s].end;
    return wants_before(end ? end + 1 : network_.steps.data() + network_.steps.size());
  }

  // What a segment starts from, if it looks at it.
  Tensor value(const Segment& segment) const {
    if (segment.value == 0) return network_.input;
    if (segment.saved < 0) return {};
    const Tensor& saved = network_.saved[segment.saved];
    return segment.gate ? act_mul(saved, network_.saved[segment.saved + 1], segment.gate->activation) : saved;
  }

  // A product of the network, and the gradient of its result.
  struct Product {
    size_t parameter;
    Tensor weight, bias;
    Tensor grad;
  };
  // Those that a segment ends with, given the gradient of what they make, as far as they are wanted.
  c10::SmallVector<Product, 2> products(size_t s, bool goes_on) const {
    const Step& end = *segments_[s].end;
    if (end.kind == Kind::linear) return {{end.parameter, end.weight, end.bias, grad_}};
    const int saved = segments_[s + 1].saved;
    const std::array<bool, 2> wanted = {goes_on || wants_weight(end) || wants_bias(end), goes_on || wants_up(end)};
    std::vector<Tensor> grads =
        act_mul_backward(grad_, network_.saved[saved], network_.saved[saved + 1], end.activation, wanted);
    c10::SmallVector<Product, 2> products;
    if (wanted[0]) products.push_back({end.parameter, end.weight, end.bias, grads.front()});
    if (wanted[1]) products.push_back({end.parameter + 2, end.up_weight, end.up_bias, grads.back()});
    return products;
  }

  void through_segment(size_t s) {
    const Segment& segment = segments_[s];
    const Step* const end = segment.end;
    const bool goes_on = !end || wants_before(end);
    c10::SmallVector<Product, 2> products_of_end;
    bool wants_value = false;
    if (segment.ends_with_product()) {
      products_of_end = products(s, goes_on);
      grad_ = Tensor();
      for (const Product& product : products_of_end) {
        wants_value |= wants(product.weight, product.parameter);
        if (!goes_on) continue;
        const Tensor through = steps_.linear_input_gradient(product.grad, product.weight);
        grad_ = grad_.defined() ? grad_ + through : through;
      }
    }
    if (segment.ends_with(Kind::add)) of_kept_.push_back(grad_);
    // What a residual kept is where this segment starts.
    Tensor added;
    if (s > 0 && segments_[s - 1].ends_with(Kind::residual)) {
      added = std::move(of_kept_.back());
      of_kept_.pop_back();
    }

    Tensor h = value(segment);
    SequentialSteps::Wanted wanted{
        goes_on && wants_before(segment.rows.data()), wants_value, {}, segment.dtype, segment.rows_type};
    bool any = wanted.x || wanted.value;
    for (const Step& step : segment.rows) {
      wanted.parameters.emplace_back(wants_weight(step), wants_bias(step));
      any |= wants(step);
    }
    if (any && (!segment.rows.empty() || added.defined() || segment.dtype != segment.rows_type)) {
      auto [x, value, parameters] = steps_.rows_backward(segment.rows, network_.seed, h, grad_, added, wanted);
      grad_ = std::move(x);
      h = std::move(value);
      for (size_t i = 0; i < segment.rows.size(); ++i) put(segment.rows[i].parameter, std::move(parameters[i]));
    }
    for (const auto& [place, weight, bias, grad] : products_of_end) {
      const std::pair<bool, bool> wanted_here = {wants(weight, place), wants(bias, place + 1)};
      if (!wanted_here.first && !wanted_here.second) continue;
      put(place, steps_.linear_parameter_gradients(grad, h, weight, bias, wanted_here));
    }
  }

  void put(size_t place, SequentialSteps::ParameterGradients gradients) {
    if (gradients.weight.defined()) grads_[1 + place] = std::move(gradients.weight);
    if (gradients.bias.defined()) grads_[2 + place] = std::move(gradients.bias);
  }

  const SequentialBackwardArguments& network_;
  const SequentialSteps& steps_;
  std::vector<Segment> segments_;
  std::vector<Tensor> grads_;
  std::vector<Tensor> of_kept_;  // the gradients of what residuals kept, so far through their adds
  Tensor grad_;
};

}  // namespace

std::vector<Tensor> layered_sequential_backward(const SequentialBackwardArguments& network,
                                                const SequentialSteps& steps) {
  return Backward(network, steps).run();
}

std::vector<Tensor> composite_sequential_backward(const SequentialBackwardArguments& network) {
  SequentialBackwardArguments again = network;
  std::vector<Tensor> saved;
  layered_sequential(network, &saved);
  again.saved = saved;
  return layered_sequential_backward(again);
}

namespace {

// ---- the ops ----

Tensor sequential_fallback(const SequentialArguments& network) { return layered_sequential(network, nullptr); }

SequentialForward::Result sequential_forward_fallback(const SequentialArguments& network) {
  std::vector<Tensor> saved;
  Tensor output = layered_sequential(network, &saved);
  return {std::move(output), std::move(saved)};
}

std::vector<Tensor> sequential_backward_fallback(const SequentialBackwardArguments& network) {
  return layered_sequential_backward(network);
}

// Results without values.
SequentialForward::Result sequential_forward_meta(const SequentialArguments& network) {
  const auto empty = [&](const c10::SymInt& features, at::ScalarType dtype) {
    return at::empty_symint(sizes_with(network.input, features), network.input.options().dtype(dtype));
  };
  std::vector<Tensor> saved;
  const std::vector<Segment> segments = network.segments();
  for (const Segment& segment : segments) {
    if (segment.saved != static_cast<int>(saved.size())) continue;
    for (int i = 0; i < (segment.gate ? 2 : 1); ++i) saved.push_back(empty(segment.features, segment.dtype));
  }
  return {empty(segments.back().features, segments.back().rows_type), std::move(saved)};
}

Tensor sequential_meta(const SequentialArguments& network) { return std::get<0>(sequential_forward_meta(network)); }

std::vector<Tensor> sequential_backward_meta(const SequentialBackwardArguments& network) {
  const auto empty_like = [](const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); };
  std::vector<Tensor> grads;
  if (network.wants_input()) grads.push_back(empty_like(network.input));
  for (const Step& step : network.steps) {
    size_t place = step.parameter;
    for (const Tensor& parameter : {step.weight, step.bias, step.up_weight, step.up_bias}) {
      if (parameter.defined() && network.wants_parameter(place)) {
        const Tensor grad = empty_like(parameter);
        grads.push_back(step.is_product() ? in_layout_of(parameter, grad) : grad);
      }
      ++place;
    }
  }
  return grads;
}

bool is_batched(at::TensorList tensors) {
  const Vmap vmap(tensors);
  return vmap.is_batched(tensors);
}

// Rows are computed one by one: a batch of inputs is more rows. Other batches are for PyTorch's rules of the formulas,
// and so is dropout, which depends on the row.
template <class Op, auto formula>
typename Op::Result sequential_batched(Op op) {
  const SequentialArguments network = op.checked();
  std::vector<Tensor> others;
  for (const Step& step : network.steps) {
    others.insert(others.end(), {step.weight, step.bias, step.up_weight, step.up_bias});
  }
  const bool drops = std::any_of(network.steps.begin(), network.steps.end(),
                                 [](const Step& step) { return step.kind == Kind::dropout; });
  if (drops || is_batched(others)) return formula(network);
  const Vmap vmap(network.input);
  const Tensor input = vmap.expand(network.input);
  op.input = input;
  const std::optional<Tensor> no_seed;  // what is given belongs to dropouts that drop nothing; it may be batched, too
  op.seed = no_seed;
  return vmap.wrap(call_op(op));
}

// Products in the context's dtype, everything else in its own.
template <c10::DeviceType device, c10::DispatchKey key>
Tensor sequential_autocast(Sequential op) {
  const AutocastScope scope(Sequential::name, device, key);
  OptionalTensors parameters = op.parameters.get().copy();
  for (const Step& step : op.resolved().steps) {
    const size_t tensors = step.kind == Kind::linear ? 2 : step.kind == Kind::gated_linear ? 4 : 0;
    for (size_t place = step.parameter; place < step.parameter + tensors; ++place) {
      parameters.set(place, scope.lower({"parameters", place}, std::optional<Tensor>(parameters.get(place))));
    }
  }
  op.parameters = parameters;
  return call_op(op);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fastops, m) {
  const std::string arguments = "(Tensor input, Tensor?[] parameters, str steps, float[] params=[], Tensor? seed=None)";
  define(m, "sequential" + arguments + " -> Tensor");
  define(m, "sequential_forward" + arguments + " -> (Tensor output, Tensor[] saved)");
  define(m,
         "sequential_backward(Tensor grad_output, Tensor input, Tensor?[] parameters, Tensor[] saved, str steps, "
         "float[] params, Tensor? seed, bool[] output_mask) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(fastops, Meta, m) {
  implement<Sequential, sequential_meta>(m);
  implement<SequentialForward, sequential_forward_meta>(m);
  implement<SequentialBackward, sequential_backward_meta>(m);
}

TORCH_LIBRARY_IMPL(fastops, CompositeExplicitAutograd, m) {
  implement_fallback<Sequential, sequential_fallback>(m);
  implement_fallback<SequentialForward, sequential_forward_fallback>(m);
  implement_fallback<SequentialBackward, sequential_backward_fallback>(m);
}

TORCH_LIBRARY_IMPL(fastops, Batched, m) {
  implement<Sequential, sequential_fallback>(m);
  implement<SequentialForward, sequential_forward_fallback>(m);
  implement<SequentialBackward, composite_sequential_backward>(m);
}

TORCH_LIBRARY_IMPL(fastops, FuncTorchBatched, m) {
  implement<Sequential, after_autocast<Sequential, sequential_batched<Sequential, sequential_fallback>>>(m);
  implement<SequentialForward, sequential_batched<SequentialForward, sequential_forward_fallback>>(m);
  implement<SequentialBackward, composite_sequential_backward>(m);
}

#define FASTOPS_AUTOCAST(DEVICE, KEY)                                                                                  \
  TORCH_LIBRARY_IMPL(fastops, KEY, m) {                                                                                \
    implement<Sequential, sequential_autocast<c10::DeviceType::DEVICE, c10::DispatchKey::KEY>>(m);                     \
    m.impl("sequential_forward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>());  \
    m.impl("sequential_backward", torch::CppFunction::makeFromBoxedFunction<below_autocast<c10::DispatchKey::KEY>>()); \
  }
FASTOPS_AUTOCAST_DEVICES(FASTOPS_AUTOCAST)
#undef FASTOPS_AUTOCAST

}  // namespace fastops
