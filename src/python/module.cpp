// fastops._C: direct entry points for the eager hot path, and what the Python package asks of the library.
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <limits>

#include "autograd/mlp.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/roofs.h"
#include "ops/activation.h"
#include "ops/autocast.h"
#include "ops/bias_act.h"
#include "ops/environment.h"
#include "ops/gated_act.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"
#include "ops/sequential.h"
#include "python/plain.h"
#include "torch_internal/bindings.h"

namespace fastops {

namespace py = pybind11;

// What a list of Python's has, which pybind11 would take from any sequence, a tensor included, and convert.
template <class Items>
struct Listed {
  Items items;
};

static bool append(std::vector<double>& numbers, py::handle item) {
  if (!PyFloat_CheckExact(item.ptr()) && !PyLong_CheckExact(item.ptr())) return false;
  numbers.push_back(PyFloat_AsDouble(item.ptr()));
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}
static bool append(std::vector<Tensor>& tensors, py::handle item) {
  py::detail::make_caster<Tensor> tensor;
  if (!tensor.load(item, /*convert=*/false)) return false;
  tensors.push_back(py::detail::cast_op<const Tensor&>(tensor));
  return true;
}
static bool append(OptionalTensors& tensors, py::handle item) {
  std::vector<Tensor> one;
  if (!item.is_none() && !append(one, item)) return false;
  tensors.push_back(one.empty() ? std::nullopt : std::optional(std::move(one[0])));
  return true;
}

}  // namespace fastops

namespace pybind11::detail {

template <class Items>
struct type_caster<fastops::Listed<Items>> {
  PYBIND11_TYPE_CASTER(fastops::Listed<Items>, const_name("list"));
  bool load(handle source, bool) {
    if (!PyList_CheckExact(source.ptr())) return false;
    for (const handle item : reinterpret_borrow<list>(source)) {
      if (!fastops::append(value.items, item)) return false;
    }
    return true;
  }
};

}  // namespace pybind11::detail

namespace fastops {
namespace {

// The table of activations, as dictionaries.
py::list activation_table() {
  py::list table;
  for (int i = 0; i < activation_count; ++i) {
    const ActivationInfo& entry = info(static_cast<Activation>(i));
    py::dict parameters;
    for (const auto& parameter : entry.parameters) {
      parameters[py::str(std::string(parameter.name))] = parameter.default_value;
    }
    py::dict row;
    row["name"] = entry.name;
    row["class_name"] = entry.class_name;
    row["parameters"] = parameters;
    row["constraint"] = entry.constraint;
    row["formula"] = entry.formula;
    table.append(row);
  }
  return table;
}

// What an activation was called with may not be what it takes: says which parameter that is.
void check_parameters(Activation id, const py::args& arguments) {
  const ActivationInfo& activation = info(id);
  for (size_t i = 1; i < arguments.size() && i <= activation.parameters.size(); ++i) {
    const py::handle value = arguments[i];
    if (PyNumber_Check(value.ptr()) && !PyComplex_Check(value.ptr())) continue;
    throw py::type_error(c10::str("fastops.", activation.name, ": ", activation.parameters[i - 1].name,
                                  " must be a number, but is a ", Py_TYPE(value.ptr())->tp_name));
  }
}

// fastops.relu(self), ...
template <size_t... I>
void define_activation(py::module_& m, Activation id, std::index_sequence<I...>) {
  m.def(info(id).name, wrap_pybind_function_no_gil([id](const Tensor& self, Parameter<I>... p) {
          return call_activation({id, {p...}}, self);
        }));
  // Comes second: where the arguments are of other types, which pybind11 may yet convert.
  m.def(info(id).name, [id](const py::args& arguments) {
    check_parameters(id, arguments);
    throw py::reference_cast_error();
  });
}

// Without the GIL, which is held again before what is called with goes out of scope.
template <class Op>
typename Op::Result call_released(const Op& op) {
  py::gil_scoped_release no_gil;
  return call_op(op);
}

// mlp of the plain torch.nn.Linear modules that are the `_modules` of another; None if one of them is not plain.
py::object mlp_of_linears(const Tensor& input, const py::dict& modules, const std::string& activation,
                          const std::string& output_activation, const std::vector<double>& params,
                          const std::vector<double>& output_params, bool checkpoint) {
  c10::SmallVector<Tensor, 8> weights;
  OptionalTensors biases;
  biases.reserve(modules.size());
  for (const auto& [name, module] : plain::in_order(modules)) {
    auto layer = plain::linear(module.ptr());
    if (!layer) return py::none();
    weights.push_back(std::move(layer->weight));
    biases.push_back(std::move(layer->bias));
  }
  return py::cast(
      call_released(Mlp{{input, weights, biases, activation, output_activation, params, output_params}, checkpoint}));
}

py::object gated_mlp_of(const Tensor& input, py::handle gate, py::handle up, py::handle down,
                        std::string_view activation, c10::ArrayRef<double> params, bool checkpoint) {
  const auto g = plain::linear(gate.ptr());
  const auto u = plain::linear(up.ptr());
  const auto d = plain::linear(down.ptr());
  if (!g || !u || !d) return py::none();
  return py::cast(call_released(
      GatedMlp{{input, g->weight, u->weight, d->weight, g->bias, u->bias, d->bias, activation, params}, checkpoint}));
}

// gated_mlp of three plain torch.nn.Linear modules; None if one of them is not plain.
py::object gated_mlp_of_linears(const Tensor& input, py::handle gate, py::handle up, py::handle down,
                                const std::string& activation, const std::vector<double>& params, bool checkpoint) {
  return gated_mlp_of(input, gate, up, down, activation, params, checkpoint);
}

// The input of an ensemble with such a weight: with fewer than three dimensions, it is the same for all members.
Tensor points_of_ensemble(const Tensor& input, const Tensor& weight) {
  if (input.dim() > 2 || input.layout() != at::kStrided) return input;
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), weight.size(0));
  return input.expand(sizes);
}

// mlp of the modules that are the `_modules` of another: Linear and activations; None if one of them is not plain. Or
// of EnsembleLinear.
template <bool ensemble>
py::object mlp_of_modules(py::handle input, const py::dict& modules, bool checkpoint) {
  if (!plain::is_eager(input)) return py::none();
  const auto network = plain::network(modules, ensemble);
  if (!network) return py::none();
  Tensor output;
  {
    const auto& [weights, biases, hidden, last] = *network;
    Tensor x = tensor_in(input.ptr());
    py::gil_scoped_release no_gil;
    if (ensemble) x = points_of_ensemble(x, weights[0]);
    output = call_op(Mlp{{x, weights, biases, hidden.name, last.name, hidden.params, last.params}, checkpoint});
  }
  return py::cast(std::move(output));
}

// The outputs of such modules and their Jacobians in the input in one pass (mlp_jet), with `laplacians` also these:
// what mlp_jacobian and mlp_laplacian of python/fastops/_propagation.py give; None if one of the modules is not plain,
// or where the former goes in reverse mode.
py::object jets_of_modules(py::handle input, const py::dict& modules, bool ensemble, bool laplacians) {
  if (!plain::is_eager(input)) return py::none();
  const auto network = plain::network(modules, ensemble);
  Tensor x = tensor_in(input.ptr());
  if (!network || x.dim() == 0 || x.layout() != at::kStrided) return py::none();
  const int64_t features = x.size(-1);
  const int64_t outputs = network->weights.back().size(-2);
  if (network->weights.front().size(-1) != features) return py::none();
  if (!laplacians && features > 2 && outputs > 0 && features >= 2 * outputs) return py::none();
  std::vector<Tensor> results;
  {
    const auto& [weights, biases, hidden, last] = *network;
    py::gil_scoped_release no_gil;
    if (ensemble) x = points_of_ensemble(x, weights[0]);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.insert(sizes.end() - 1, features);
    const Tensor directions = at::eye(features, x.options()).expand(sizes);
    sizes.end()[-2] = 1;
    std::vector<Tensor> rows = {x.unsqueeze(-2), directions};
    if (laplacians) rows.push_back(at::zeros({1}, x.options()).expand(sizes));
    const Tensor points = at::cat(rows, -2);
    const Tensor jets = call_op(MlpJet{
        {points, features, weights, biases, hidden.name, last.name, hidden.params, last.params, /*trace_weights=*/{}}});
    results = parts_of_jets(jets, features, laplacians ? 1 : 0);
    results[0] = results[0].squeeze(-2);
    results[1] = results[1].transpose(-2, -1);
    if (laplacians) {
      results[2] = results[2].squeeze(-2);
    } else {
      results.pop_back();
    }
  }
  return py::tuple(py::cast(std::move(results)));
}

// Raises what the checks of mlp do, in the name of another function.
void check_network(const std::string& owner, const Tensor& input, const std::vector<Tensor>& weights,
                   const std::vector<std::optional<Tensor>>& biases, const std::string& activation,
                   const std::string& output_activation, const std::vector<double>& params,
                   const std::vector<double>& output_params) {
  const OptionalTensors list{c10::ArrayRef(biases)};
  check_mlp(owner, {input, weights, list, activation, output_activation, params, output_params});
}

// The outputs of such modules and their Jacobians in the input where these are the gradients of one output: what
// mlp_jacobian of python/fastops/_propagation.py gives where it takes the network's own backward pass, and as it says
// when; None elsewhere.
py::object gradients_of_modules(py::handle input, const py::dict& modules) {
  if (!plain::is_eager(input)) return py::none();
  const auto network = plain::network(modules);
  const Tensor& x = tensor_in(input.ptr());
  constexpr int64_t least_features = 3;
  if (!network || x.dim() == 0 || x.size(-1) < least_features) return py::none();
  const auto& [weights, biases, hidden, last] = *network;
  if (weights.front().size(1) != x.size(-1) || weights.back().size(0) != 1) return py::none();
  const bool is_fused = !at::GradMode::is_enabled() || are_few_for_jet(weights);
  if (!is_fused || is_autocast_on(x)) return py::none();
  Tensor output, gradient;
  {
    py::gil_scoped_release no_gil;
    std::vector<Tensor> saved;
    std::tie(output, saved) =
        call_op(MlpForward{x, weights, biases, hidden.name, last.name, hidden.params, last.params});
    c10::List<bool> mask;
    for (size_t i = 0; i < 1 + 2 * weights.size(); ++i) mask.push_back(i == 0);
    const Tensor ones = at::ones_like(output);
    const std::optional<Tensor> kept = output;
    gradient = call_op(MlpBackward{ones, x, weights, biases, kept, saved, hidden.name, last.name, hidden.params,
                                   last.params, mask})[0];
    leave_gradients(output, gradient);
    gradient = gradient.unsqueeze(-2);
  }
  return py::make_tuple(std::move(output), std::move(gradient));
}

// mlp or, with other modules, dropout that is on, or a residual connection, sequential of the modules that are the
// `_modules` of another; None if one of them is not plain, and where something is dropped unless that `may_drop`.
py::object network_of_modules(py::handle input, const py::dict& modules, bool residual, bool checkpoint,
                              bool may_drop) {
  if (!residual) {
    py::object output = mlp_of_modules<false>(input, modules, checkpoint);
    if (!output.is_none()) return output;
  }
  if (checkpoint || !plain::is_eager(input)) return py::none();
  const Tensor& x = tensor_in(input.ptr());
  const auto steps = plain::steps(modules, x, residual);
  if (!steps || (steps->drops && !may_drop)) return py::none();
  Tensor output;
  {
    py::gil_scoped_release no_gil;
    std::optional<Tensor> seed;  // as dropout_seed of _steps.py
    if (steps->drops) seed = at::randint(std::numeric_limits<int64_t>::max(), {}, x.options().dtype(at::kLong));
    output = call_op(Sequential{{x, steps->parameters, steps->names, steps->params, seed}});
  }
  return py::cast(std::move(output));
}

// A module among the `_modules` of another.
PyObject* child(const py::dict& modules, const char* name) {
  PyObject* const module = PyDict_GetItemString(modules.ptr(), name);
  return module ? module : Py_None;
}

// gated_mlp of the projections and the activation among the `_modules` of another; None if one of them is not plain.
py::object gated_mlp_of_modules(py::handle input, const py::dict& modules, bool checkpoint) {
  if (!plain::is_eager(input)) return py::none();
  const auto function = plain::activation(child(modules, "act_fn"));
  if (!function) return py::none();
  return gated_mlp_of(tensor_in(input.ptr()), child(modules, "gate_proj"), child(modules, "up_proj"),
                      child(modules, "down_proj"), function->name, function->params, checkpoint);
}

// gated_mlp of the layer with both halves of the unit and the one after it, in this order, with dropouts that are off
// anywhere between; None if one of them or the activation is not plain, and where there are no halves, or not of `half`
// features each, if that is not 0.
py::object packed_mlp_of_modules(py::handle input, const py::list& layers, py::handle activation, bool gate_last,
                                 int64_t half) {
  if (!plain::is_eager(input)) return py::none();
  const auto function = plain::activation(activation.ptr());
  const auto pair = plain::two_linears(layers);
  if (!function || !pair) return py::none();
  const auto& [both, down] = *pair;
  if (both.weight.dim() != 2 || both.weight.size(0) % 2 != 0) return py::none();
  if (half != 0 && both.weight.size(0) != 2 * half) return py::none();
  if (both.bias && (both.bias->dim() != 1 || both.bias->size(0) != both.weight.size(0))) return py::none();
  Tensor output;
  {
    const Tensor& x = tensor_in(input.ptr());
    py::gil_scoped_release no_gil;
    const auto weights = both.weight.chunk(2);
    std::array<std::optional<Tensor>, 2> biases;
    if (both.bias) std::ranges::move(both.bias->chunk(2), biases.begin());
    const int gate = gate_last ? 1 : 0;
    output = call_op(GatedMlp{{x, weights[gate], weights[1 - gate], down.weight, biases[gate], biases[1 - gate],
                               down.bias, function->name, function->params},
                              false});
  }
  return py::cast(std::move(output));
}

// linear_act of a module's parameters and the activation among its `_modules`; None if one of them is not plain.
py::object linear_act_of_modules(py::handle input, py::handle parameters, const py::dict& modules) {
  if (!plain::is_eager(input)) return py::none();
  const auto function = plain::activation(child(modules, "act_fn"));
  const auto layer = plain::parameters(parameters.ptr());
  if (!function || !layer) return py::none();
  return py::cast(
      call_released(LinearAct{tensor_in(input.ptr()), layer->weight, layer->bias, function->name, function->params}));
}

// The ops as python/fastops/functional.py calls them: None where arguments are of other classes than these.
namespace functional {

using OptionalTensor = std::optional<Tensor>;
using Name = const std::string&;
using Numbers = Listed<std::vector<double>>;
using Tensors = Listed<std::vector<Tensor>>;
using PerhapsTensors = Listed<OptionalTensors>;

Tensor bias_act(const Tensor& self, const OptionalTensor& bias, Name activation, const Numbers& params) {
  return call_op(BiasAct{self, bias, activation, params.items});
}

Tensor act_mul(const Tensor& gate, const Tensor& up, Name activation, const Numbers& params) {
  return call_op(ActMul{gate, up, activation, params.items});
}

Tensor gated_act(const Tensor& self, Name activation, const Numbers& params, bool gate_last) {
  return call_op(GatedAct{self, activation, params.items, gate_last});
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Name activation,
                  const Numbers& params) {
  return call_op(LinearAct{input, weight, bias, activation, params.items});
}

Tensor mlp(const Tensor& input, const Tensors& weights, const PerhapsTensors& biases, Name activation,
           Name output_activation, const Numbers& params, const Numbers& output_params, bool checkpoint) {
  return call_op(
      Mlp{{input, weights.items, biases.items, activation, output_activation, params.items, output_params.items},
          checkpoint});
}

Tensor mlp_jet(const Tensor& input, int64_t directions, const Tensors& weights, const PerhapsTensors& biases,
               Name activation, Name output_activation, const Numbers& params, const Numbers& output_params,
               const Numbers& trace_weights) {
  return call_op(MlpJet{{input, directions, weights.items, biases.items, activation, output_activation, params.items,
                         output_params.items, trace_weights.items}});
}

Tensor gated_mlp(const Tensor& input, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
                 const OptionalTensor& gate_bias, const OptionalTensor& up_bias, const OptionalTensor& down_bias,
                 Name activation, const Numbers& params, bool checkpoint) {
  return call_op(
      GatedMlp{{input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation, params.items},
               checkpoint});
}

Tensor sequential(const Tensor& input, const PerhapsTensors& parameters, Name steps, const Numbers& params,
                  const OptionalTensor& seed) {
  return call_op(Sequential{{input, parameters.items, steps, params.items, seed}});
}

template <class F>
void define(py::module_& m, const char* name, F function) {
  m.def(name, wrap_pybind_function_no_gil(function));
  m.def(name, [](const py::args&) { return py::none(); });
}

}  // namespace functional

py::tuple memory_stats() {
  const cpu::MemoryStats stats = cpu::memory_stats();
  return py::make_tuple(stats.limit, stats.kept, stats.reused, stats.allocated, stats.released);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("activations", &activation_table);
  m.def("cpu_capability", wrap_pybind_function(cpu::capability));
  m.def("read_environment", wrap_pybind_function(read_environment));
  m.def("environment_choice", wrap_pybind_function(environment_choice));
  m.def("peak_flops", wrap_pybind_function_no_gil(cpu::peak_flops));
  m.def("copy_bandwidth", wrap_pybind_function_no_gil(cpu::copy_bandwidth));
  m.def("memory_stats", wrap_pybind_function(memory_stats));
  m.def("set_memory_limit", wrap_pybind_function_no_gil(cpu::set_memory_limit));
  m.def("empty_memory", wrap_pybind_function_no_gil(cpu::empty_memory));
  m.attr("torch_version") = TORCH_VERSION;
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#elif defined(__GNUC__)
  m.attr("compiler") = "gcc " __VERSION__;
#elif defined(_MSC_VER)
  m.attr("compiler") = c10::str("msvc ", _MSC_VER);
#endif
  // As torch.ops.fastops.*; they release the GIL.
  for (int i = 0; i < activation_count; ++i) {
    const auto id = static_cast<Activation>(i);
    with_parameters(id, [&](auto indices) { define_activation(m, id, indices); });
  }
  functional::define(m, "bias_act", functional::bias_act);
  functional::define(m, "act_mul", functional::act_mul);
  functional::define(m, "gated_act", functional::gated_act);
  functional::define(m, "linear_act", functional::linear_act);
  functional::define(m, "mlp", functional::mlp);
  functional::define(m, "mlp_jet", functional::mlp_jet);
  functional::define(m, "gated_mlp", functional::gated_mlp);
  functional::define(m, "sequential", functional::sequential);
  for (const NodeClass& node : node_classes()) define_node_class(node);
  m.def("initialize_plain", &plain::initialize);
  m.def("add_plain_class", &plain::add_class);
  m.def("network_of_modules", wrap_pybind_function(network_of_modules), py::arg("input"), py::arg("modules"),
        py::arg("residual"), py::arg("checkpoint"), py::arg("may_drop"));
  m.def("ensemble_of_modules", wrap_pybind_function(mlp_of_modules<true>));
  m.def("jets_of_modules", wrap_pybind_function(jets_of_modules));
  m.def("gradients_of_modules", wrap_pybind_function(gradients_of_modules));
  m.def("gated_mlp_of_modules", wrap_pybind_function(gated_mlp_of_modules));
  m.def("packed_mlp_of_modules", wrap_pybind_function(packed_mlp_of_modules));
  m.def("linear_act_of_modules", wrap_pybind_function(linear_act_of_modules));
  m.def("mlp_of_linears", wrap_pybind_function(mlp_of_linears));
  m.def("check_mlp", wrap_pybind_function(check_network));
  m.def("leave_gradients", wrap_pybind_function(leave_gradients));
  m.def("most_weights_by_jet", wrap_pybind_function(most_weights_by_jet));
  m.def("gated_mlp_of_linears", wrap_pybind_function(gated_mlp_of_linears));
}

}  // namespace fastops
