#include "ops/activation_spec.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace fastops {
namespace {

// "float beta=1.0, float threshold=20.0" -> {{"beta", 1.0}, {"threshold", 20.0}}
std::vector<ActivationInfo::Parameter> parse_parameters(std::string_view schema) {
  constexpr std::string_view type = "float ";
  std::vector<ActivationInfo::Parameter> parsed;
  for (size_t at = schema.find(type); at != schema.npos; at = schema.find(type, at)) {
    at += type.size();
    const size_t equals = schema.find('=', at);
    parsed.push_back({schema.substr(at, equals - at), std::strtod(schema.data() + equals + 1, nullptr)});
  }
  return parsed;
}

#define FASTOPS_INFO(name, A, parameters, constraint, formula) \
  ActivationInfo{#name, #A, parameters, constraint, formula, parse_parameters(parameters)},
const std::array<ActivationInfo, activation_count>& table() {
  static const std::array<ActivationInfo, activation_count> entries = {FASTOPS_ACTIVATIONS(FASTOPS_INFO)};
  return entries;
}
#undef FASTOPS_INFO

std::string describe(const ActivationInfo& entry, c10::ArrayRef<double> params) {
  std::string text;
  for (size_t i = 0; i < params.size(); ++i) {
    text += c10::str(i ? ", " : "", entry.parameters[i].name, "=", params[i]);
  }
  return text;
}

bool is_valid(const ActivationSpec& spec) {
  return visit(spec.id, [&](auto activation) { return decltype(activation)::valid(spec.params()); });
}

[[noreturn]] void throw_invalid(std::string_view op, const ActivationSpec& spec) {
  const ActivationInfo& entry = info(spec.id);
  TORCH_CHECK_VALUE(false, "fastops.", op, ": ", entry.name, " needs ", entry.constraint, ", but got ",
                    describe(entry, parameters(spec)));
}

}  // namespace

std::optional<Activation> activation_named(std::string_view name) {
  for (int i = 0; i < activation_count; ++i) {
    if (name == table()[i].name) return static_cast<Activation>(i);
  }
  return std::nullopt;
}

std::string activation_names() {
  std::string names;
  for (const ActivationInfo& entry : table()) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

const ActivationInfo& info(Activation id) { return table()[static_cast<size_t>(id)]; }

ActivationSpec activation_spec(std::string_view op, std::string_view name, c10::ArrayRef<double> params,
                               std::string_view prefix) {
  const std::optional<Activation> id = activation_named(name);
  TORCH_CHECK_VALUE(id, "fastops.", op, ": unknown ", prefix, "activation '", name, "'; it must be one of ",
                    activation_names());
  const ActivationInfo& entry = info(*id);
  TORCH_CHECK_VALUE(params.empty() || params.size() == entry.parameters.size(), "fastops.", op, ": ", name, " takes ",
                    entry.parameters.size(), " parameters (", *entry.schema ? entry.schema : "none", "), but ", prefix,
                    "params has ", params.size());
  ActivationSpec spec{*id, {0, 0}};
  for (size_t k = 0; k < entry.parameters.size(); ++k) {
    spec.values[k] = params.empty() ? entry.parameters[k].default_value : params[k];
  }
  if (!is_valid(spec)) throw_invalid(op, spec);
  return spec;
}

ActivationSpec activation_spec(Activation id, c10::ArrayRef<double> params) {
  ActivationSpec spec{id, {0, 0}};
  std::copy(params.begin(), params.end(), spec.values.begin());
  if (!is_valid(spec)) throw_invalid(info(id).name, spec);
  return spec;
}

bool output_suffices(const ActivationSpec& spec) {
  return visit(spec.id, [&](auto activation) { return decltype(activation)::output_suffices(spec.params()); });
}

bool output_suffices(const ActivationSpec& spec, c10::ScalarType dtype) {
  const bool rounded = c10::elementSize(dtype) == 2;
  return output_suffices(spec) &&
         visit(spec.id, [&](auto activation) { return decltype(activation)::from_rounded_output || !rounded; });
}

}  // namespace fastops
