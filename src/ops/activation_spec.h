// An activation with its parameters, as ops receive them (a name and numbers) and as kernels want them.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "activations/activations.h"
#include "activations/table.h"
#include "export.h"

namespace fastops {

namespace detail {

constexpr size_t count_parameters(std::string_view schema) {
  size_t count = 0;
  for (size_t at = schema.find("float "); at != schema.npos; at = schema.find("float ", at + 1)) ++count;
  return count;
}

#define FASTOPS_COUNT_PARAMETERS(name, A, parameters, ...) count_parameters(parameters),
inline constexpr std::array<size_t, activation_count> parameter_counts = {
    FASTOPS_ACTIVATIONS(FASTOPS_COUNT_PARAMETERS)};
#undef FASTOPS_COUNT_PARAMETERS

}  // namespace detail

// How many parameters an activation has: 0 to 2.
constexpr size_t parameter_count(Activation id) { return detail::parameter_counts[static_cast<size_t>(id)]; }

struct ActivationSpec {
  Activation id;
  std::array<double, 2> values;  // those that the activation lacks are 0

  Params<double> params() const { return {values[0], values[1]}; }
  auto fields() { return std::tie(id, values); }
};

// What the table says of an activation.
struct ActivationInfo {
  struct Parameter {
    std::string_view name;
    double default_value;
  };
  const char* name;
  const char* class_name;
  const char* schema;  // the parameters, as in an operator schema
  const char* constraint;
  const char* formula;
  std::vector<Parameter> parameters;
};
FASTOPS_API const ActivationInfo& info(Activation id);

// That of a name; nothing where it is no activation's. And all names, for errors.
FASTOPS_API std::optional<Activation> activation_named(std::string_view name);
FASTOPS_API std::string activation_names();

// Resolves the arguments `activation` and `params` of `op`, or those with `prefix` before their names: missing
// parameters take their defaults. Throws ValueError for an unknown name (and lists the known ones), a wrong number of
// parameters or an invalid one.
FASTOPS_API ActivationSpec activation_spec(std::string_view op, std::string_view name, c10::ArrayRef<double> params,
                                           std::string_view prefix = "");

// As above for an activation that is known; all parameters must be given.
FASTOPS_API ActivationSpec activation_spec(Activation id, c10::ArrayRef<double> params);

// The parameters that the activation has, in order.
inline c10::ArrayRef<double> parameters(const ActivationSpec& spec) {
  return {spec.values.data(), parameter_count(spec.id)};
}

// Whether the derivative can be had from the output; and whether it is also as exact where that has this dtype.
FASTOPS_API bool output_suffices(const ActivationSpec& spec);
FASTOPS_API bool output_suffices(const ActivationSpec& spec, c10::ScalarType dtype);

// Calls f(A()) with the struct A of the activation.
template <class F>
decltype(auto) visit(Activation id, F&& f) {
#define FASTOPS_CASE(name, A, ...) \
  case Activation::name:           \
    return f(activations::A());
  switch (id) { FASTOPS_ACTIVATIONS(FASTOPS_CASE) }
#undef FASTOPS_CASE
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace fastops
