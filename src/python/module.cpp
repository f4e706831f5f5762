// fastops._C: direct entry points for the eager hot path, and what the Python package asks of the library.
#include <torch/version.h>

#include "autograd/mlp.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/roofs.h"
#include "ops/activation.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/environment.h"
#include "ops/gated_act.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"
#include "ops/sequential.h"
#include "python/modules.h"
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

// Raises what the checks of mlp do, in the name of another function.
void check_network(const std::string& owner, const Tensor& input, const std::vector<Tensor>& weights,
                   const std::vector<std::optional<Tensor>>& biases, const std::string& activation,
                   const std::string& output_activation, const std::vector<double>& params,
                   const std::vector<double>& output_params) {
  const OptionalTensors list{c10::ArrayRef(biases)};
  check_mlp(owner, {input, weights, list, activation, output_activation, params, output_params});
}

// Raises what an op's check of a tensor among its arguments does.
void check_argument(const std::string& owner, const std::string& argument, const Tensor& tensor) {
  check_tensor(owner, std::string_view(argument), tensor);
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
  define_calls_of_modules(m);
  m.def("check_mlp", wrap_pybind_function(check_network));
  m.def("check_tensor", wrap_pybind_function(check_argument));
  m.def("leave_gradients", wrap_pybind_function(leave_gradients));
  m.def("most_weights_by_jet", wrap_pybind_function(most_weights_by_jet));
}

}  // namespace fastops
