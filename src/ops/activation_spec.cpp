#include "ops/activation_spec.h"

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

std::string known_names() {
  std::string names;
  for (const ActivationInfo& entry : table()) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

std::string describe(const ActivationInfo& entry, c10::ArrayRef<double> params) {
  std::string text;
  for (size_t i = 0; i < params.size(); ++i) {
    text += c10::str(i ? ", " : "", entry.parameters[i].name, "=", params[i]);
  }
  return text;
}

ActivationSpec checked(std::string_view op, Activation id, c10::ArrayRef<double> params) {
  const ActivationInfo& entry = info(id);
  ActivationSpec spec{id, {0, 0}};
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    spec.values[i] = params.empty() ? entry.parameters[i].default_value : params[i];
  }
  const bool valid = visit(id, [&](auto activation) { return decltype(activation)::valid(spec.params()); });
  TORCH_CHECK_VALUE(valid, "fastops.", op, ": ", entry.name, " needs ", entry.constraint, ", but got ",
                    describe(entry, parameters(spec)));
  return spec;
}

}  // namespace

const ActivationInfo& info(Activation id) { return table()[static_cast<size_t>(id)]; }

ActivationSpec activation_spec(std::string_view op, std::string_view name, c10::ArrayRef<double> params,
                               std::string_view prefix) {
  for (int i = 0; i < activation_count; ++i) {
    const ActivationInfo& entry = table()[i];
    if (name != entry.name) continue;
    TORCH_CHECK_VALUE(params.empty() || params.size() == entry.parameters.size(), "fastops.", op, ": ", name, " takes ",
                      entry.parameters.size(), " parameters (", *entry.schema ? entry.schema : "none", "), but ",
                      prefix, "params has ", params.size());
    return checked(op, static_cast<Activation>(i), params);
  }
  TORCH_CHECK_VALUE(false, "fastops.", op, ": unknown ", prefix, "activation '", name, "'; it must be one of ",
                    known_names());
}

ActivationSpec activation_spec(Activation id, c10::ArrayRef<double> params) {
  return checked(info(id).name, id, params);
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
