#include "ops/sequential.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ops/checks.h"

namespace fastops {
namespace {

using Kind = Step::Kind;
constexpr auto op = Sequential::name;

// ---- the steps ----

struct StepInfo {
  std::string_view name;
  Kind kind;
  size_t tensors;
  size_t numbers;
};
constexpr std::array<StepInfo, 8> step_infos = {{{"linear", Kind::linear, 2, 0},
                                                 {"gated_linear", Kind::gated_linear, 4, 0},
                                                 {"layer_norm", Kind::layer_norm, 2, 1},
                                                 {"rms_norm", Kind::rms_norm, 1, 1},
                                                 {"scale", Kind::scale, 1, 0},
                                                 {"dropout", Kind::dropout, 0, 1},
                                                 {"residual", Kind::residual, 0, 0},
                                                 {"add", Kind::add, 0, 0}}};

[[noreturn]] void throw_unknown(std::string_view name, size_t place) {
  std::string known;
  for (const StepInfo& step : step_infos) known += std::string(step.name) + ", ";
  TORCH_CHECK_VALUE(false, "fastops.", op, ": step ", place, " is '", name, "', but must be one of ", known,
                    activation_names());
}

// Takes the tensors and the numbers of the steps from the lists.
class Reader {
 public:
  explicit Reader(const SequentialForward& network) : network_(network) {}

  SequentialArguments read() {
    SequentialArguments read{network_.input, network_.parameters.get().size(), {}, value_or_undefined(network_.seed)};
    for (size_t at = 0; at < network_.steps.size(); ++place_) {
      const size_t end = std::min(network_.steps.find(' ', at), network_.steps.size());
      if (const std::string_view name = network_.steps.substr(at, end - at); !name.empty()) {
        Step step = step_named(name);
        const bool is_nothing = step.kind == Kind::dropout && step.number == 0;
        if (gate_) {
          TORCH_CHECK_VALUE(step.kind == Kind::activation, "fastops.", op, ": step ", place_, " is '", name,
                            "', but after gated_linear must be an activation");
          read.steps.back().activation = step.activation;
        } else if (!is_nothing) {
          read.steps.push_back(std::move(step));
        }
        gate_ = !gate_ && name == "gated_linear";
      }
      at = end + 1;
    }
    TORCH_CHECK_VALUE(!gate_, "fastops.", op, ": gated_linear, the last step, must be followed by an activation");
    TORCH_CHECK_VALUE(next_tensor_ == read.parameters, "fastops.", op, ": parameters has ", read.parameters,
                      " entries, but the steps take ", next_tensor_, " (None where a layer has no bias)");
    TORCH_CHECK_VALUE(next_number_ == network_.params.size(), "fastops.", op, ": params has ", network_.params.size(),
                      " entries, but the steps take ", next_number_);
    return read;
  }

 private:
  Step step_named(std::string_view name) {
    const auto known =
        std::find_if(step_infos.begin(), step_infos.end(), [&](const StepInfo& step) { return step.name == name; });
    if (known == step_infos.end()) {
      const auto activation = activation_named(name);
      if (!activation) throw_unknown(name, place_);
      return {.kind = Kind::activation,
              .activation = activation_spec(op, name, numbers(name, parameter_count(*activation)))};
    }
    Step step{.kind = known->kind, .parameter = next_tensor_};
    if (known->tensors > 0) step.weight = tensor(name);
    if (known->tensors > 1) step.bias = tensor(name);
    if (known->tensors > 2) step.up_weight = tensor(name);
    if (known->tensors > 3) step.up_bias = tensor(name);
    if (known->numbers > 0) step.number = numbers(name, 1)[0];
    if (step.kind == Kind::dropout) step.stream = streams_++;
    return step;
  }

  Tensor tensor(std::string_view name) {
    const OptionalTensors& parameters = network_.parameters;
    TORCH_CHECK_VALUE(next_tensor_ < parameters.size(), "fastops.", op, ": parameters has ", parameters.size(),
                      " entries, but step ", place_, ", ", name, ", needs another");
    return value_or_undefined(parameters.get(next_tensor_++));
  }

  c10::ArrayRef<double> numbers(std::string_view name, size_t count) {
    TORCH_CHECK_VALUE(next_number_ + count <= network_.params.size(), "fastops.", op, ": params has ",
                      network_.params.size(), " entries, but step ", place_, ", ", name, ", needs ", count, " more");
    return network_.params.slice(std::exchange(next_number_, next_number_ + count), count);
  }

  const SequentialForward& network_;
  size_t place_ = 0;
  size_t next_tensor_ = 0;
  size_t next_number_ = 0;
  int64_t streams_ = 0;
  bool gate_ = false;  // whether the step before is a gated_linear
};

// ---- checks ----

class Checker {
 public:
  explicit Checker(const SequentialArguments& network) : network_(network) {}

  void check() {
    check_tensor(op, "input", network_.input);
    features_ = last_size(op, "input", network_.input);
    if (network_.seed.defined()) check_seed();
    for (const Step& step : network_.steps) check_step(step);
    TORCH_CHECK_VALUE(kept_.empty(), "fastops.", op, ": ", kept_.size(), " residual steps have no add");
  }

 private:
  void check_step(const Step& step) {
    if (step.is_product()) {
      const c10::SymInt features = checked_product(step.parameter, step.weight, step.bias);
      if (step.kind == Kind::gated_linear) {
        const size_t up = step.parameter + 2;
        const c10::SymInt up_features = checked_product(up, step.up_weight, step.up_bias);
        TORCH_CHECK_VALUE(up_features == features, "fastops.", op, ": ", Argument("parameters", up), " has ",
                          up_features, " outputs, but ", Argument("parameters", step.parameter), " has ", features);
        check_type(up, step.up_weight, step.weight, "the gate's");
      }
      features_ = features;
    } else if (step.is_norm()) {
      check_row(step.parameter, step.weight);
      check_row(step.parameter + 1, step.bias);
      TORCH_CHECK_VALUE(step.number >= 0, "fastops.", op, ": eps must not be negative, but is ", step.number);
    } else if (step.kind == Kind::scale) {
      check_parameter(step.parameter, step.weight);
      check_row(step.parameter, step.weight);
    } else if (step.kind == Kind::dropout) {
      TORCH_CHECK_VALUE(step.number >= 0 && step.number <= 1, "fastops.", op, ": dropout must be from 0 to 1, but is ",
                        step.number);
      TORCH_CHECK_VALUE(network_.seed.defined(), "fastops.", op,
                        ": seed is None, but there is a dropout, which needs one");
    } else if (step.kind == Kind::residual) {
      kept_.push_back(features_);
    } else if (step.kind == Kind::add) {
      TORCH_CHECK_VALUE(!kept_.empty(), "fastops.", op, ": add without a residual before it");
      TORCH_CHECK_VALUE(kept_.back() == features_, "fastops.", op, ": add has ", features_,
                        " features, but its residual has ", kept_.back());
      kept_.pop_back();
    }
  }

  // The features of the result.
  c10::SymInt checked_product(size_t place, const Tensor& weight, const Tensor& bias) const {
    check_parameter(place, weight);
    TORCH_CHECK_VALUE(weight.dim() == 2, "fastops.", op, ": ", Argument("parameters", place),
                      " must have shape [out_features, in_features], but has ", weight.dim(), " dimensions");
    TORCH_CHECK_VALUE(weight.sym_size(1) == features_, "fastops.", op, ": ", Argument("parameters", place), " has ",
                      weight.sym_size(1), " input features, but what comes to it has ", features_);
    check_row(place + 1, bias, weight.sym_size(0));
    if (bias.defined()) check_type(place + 1, bias, weight, "its");
    return weight.sym_size(0);
  }

  void check_type(size_t place, const Tensor& tensor, const Tensor& weight, const char* whose) const {
    TORCH_CHECK_TYPE(tensor.scalar_type() == weight.scalar_type(), "fastops.", op, ": ", Argument("parameters", place),
                     " is ", tensor.scalar_type(), ", but ", whose, " weight is ", weight.scalar_type());
  }

  void check_parameter(size_t place, const Tensor& tensor) const {
    const Argument argument("parameters", place);
    check_tensor(op, argument, tensor);
    const Tensor& input = network_.input;
    TORCH_CHECK_TYPE((tensor.scalar_type() == at::kDouble) == (input.scalar_type() == at::kDouble), "fastops.", op,
                     ": ", argument, " is ", tensor.scalar_type(), ", but input is ", input.scalar_type(),
                     ": float64 does not mix with others");
    TORCH_CHECK(tensor.device() == input.device(), "fastops.", op, ": ", argument, " is on ", tensor.device(),
                ", but input is on ", input.device());
  }

  void check_row(size_t place, const Tensor& tensor) const { check_row(place, tensor, features_); }
  void check_row(size_t place, const Tensor& tensor, const c10::SymInt& features) const {
    if (!tensor.defined()) return;
    check_parameter(place, tensor);
    TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.sym_size(0) == features, "fastops.", op, ": ",
                      Argument("parameters", place), " has shape ", tensor.sym_sizes(), ", but must have shape [",
                      features, "]");
  }

  void check_seed() const {
    const Tensor& seed = network_.seed;
    TORCH_CHECK_TYPE(seed.scalar_type() == at::kLong, "fastops.", op, ": seed must be int64, but is ",
                     seed.scalar_type());
    TORCH_CHECK_VALUE(seed.dim() == 0, "fastops.", op, ": seed must be a tensor without dimensions, but has ",
                      seed.dim());
    TORCH_CHECK(seed.device() == network_.input.device(), "fastops.", op, ": seed is on ", seed.device(),
                ", but input is on ", network_.input.device());
  }

  const SequentialArguments& network_;
  c10::SymInt features_;
  std::vector<c10::SymInt> kept_;
};

}  // namespace

SequentialArguments SequentialForward::resolved() const { return Reader(*this).read(); }

SequentialArguments SequentialForward::checked() const {
  SequentialArguments network = resolved();
  Checker(network).check();
  return network;
}

namespace {

// Whether the backward pass of a segment looks at what it starts from.
bool looks_at_value(const Segment& segment) {
  return segment.ends_with_product() || std::any_of(segment.rows.begin(), segment.rows.end(),
                                                    [](const Step& step) { return step.kind != Kind::dropout; });
}

void find_places_of_saved(std::vector<Segment>& segments) {
  std::vector<bool> looked_at(segments.size());
  for (const Segment& segment : segments) {
    if (segment.gate || looks_at_value(segment)) looked_at[segment.value] = true;
  }
  int places = 0;
  for (size_t s = 1; s < segments.size(); ++s) {
    const Segment& before = segments[s - 1];
    if (segments[s].value == before.value) {
      segments[s].saved = before.saved;
      segments[s].gate = before.gate;
    } else if (looked_at[segments[s].value]) {
      segments[s].saved = places;
      places += segments[s].gate ? 2 : 1;
    }
  }
}

}  // namespace

std::vector<Segment> SequentialArguments::segments() const {
  std::vector<Segment> segments;
  std::vector<at::ScalarType> kept;
  Segment next{{}, nullptr, 0, input.sym_size(-1), input.scalar_type(), {}};
  const Step* first = steps.data();
  const Step* const last = first + steps.size();
  for (const Step* step = first; step != last; ++step) {
    if (!step->is_product() && step->kind != Kind::residual && step->kind != Kind::add) continue;
    Segment segment = next;
    segment.rows = {first, step};
    segment.end = step;
    segment.rows_type = segment.dtype;
    next.value += step->kind != Kind::residual || step != first;
    next.gate = step->kind == Kind::gated_linear ? step : nullptr;
    if (step->is_product()) {
      segment.rows_type = step->weight.scalar_type();
      next.features = step->weight.sym_size(0);
    } else if (step->kind == Kind::residual) {
      kept.push_back(segment.dtype);
    } else {
      segment.rows_type = c10::promoteTypes(segment.dtype, kept.back());
      kept.pop_back();
    }
    next.dtype = segment.rows_type;
    segments.push_back(std::move(segment));
    first = step + 1;
  }
  next.rows = {first, last};
  next.rows_type = next.dtype;
  segments.push_back(std::move(next));
  find_places_of_saved(segments);
  return segments;
}

SequentialBackwardArguments SequentialBackward::checked() const {
  SequentialBackwardArguments network{SequentialForward{input, parameters, steps, params, seed}.checked(),
                                      grad_output,
                                      saved,
                                      {output_mask.get().begin(), output_mask.get().end()}};
  TORCH_CHECK_VALUE(network.output_mask.size() == 1 + network.parameters, "fastops.", name, ": output_mask has ",
                    network.output_mask.size(), " entries, but must have ", 1 + network.parameters);
  for (size_t i = 0; i < network.parameters; ++i) {
    TORCH_CHECK_VALUE(!network.wants_parameter(i) || parameters.get().get(i), "fastops.", name, ": output_mask asks ",
                      "for the gradient of parameters[", i, "], which is None");
  }
  const std::vector<Segment> segments = network.segments();
  const auto check = [&](Argument argument, const Tensor& tensor, const c10::SymInt& features, at::ScalarType dtype) {
    check_tensor(name, argument, tensor);
    TORCH_CHECK(tensor.device() == network.input.device(), "fastops.", name, ": ", argument, " is on ", tensor.device(),
                ", but input is on ", network.input.device());
    TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, "fastops.", name, ": ", argument, " is ", tensor.scalar_type(),
                     ", but must be ", dtype);
    const auto sizes = sizes_with(network.input, features);
    TORCH_CHECK_VALUE(has_sizes(tensor, sizes), "fastops.", name, ": ", argument, " has shape ", tensor.sym_sizes(),
                      ", but must have shape ", c10::SymIntArrayRef(sizes));
  };
  check("grad_output", grad_output, segments.back().features, segments.back().rows_type);
  size_t expected = 0;
  for (const Segment& segment : segments) {
    if (segment.saved < static_cast<int>(expected)) continue;
    for (const size_t end = expected + (segment.gate ? 2 : 1); expected < end; ++expected) {
      if (expected < saved.size()) check({"saved", expected}, saved[expected], segment.features, segment.dtype);
    }
  }
  TORCH_CHECK_VALUE(saved.size() == expected, "fastops.", name, ": saved has ", saved.size(),
                    " tensors, but must have ", expected, ", as sequential_forward returned them");
  return network;
}

}  // namespace fastops
