// fastops._C: direct entry points for the eager hot path, and what the Python package asks of the library.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <array>

#include "backends/cpu/kernels.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/roofs.h"
#include "ops/activation.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"

namespace fastops {
namespace {

namespace py = pybind11;

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

// fastops.relu(self), ...
template <Activation id, size_t... I>
void define_activation(py::module_& m, std::index_sequence<I...>) {
  constexpr auto call = [](const Tensor& self, detail::Parameter<I>... p) -> Tensor {
    return detail::Typed<id, std::index_sequence<I...>>::functional_handle().call(self, p...);
  };
  m.def(info(id).name, torch::wrap_pybind_function_no_gil(+call));
}

// A class for the life of the process.
PyObject* class_of_torch_nn(const char* name) {
  return py::object(py::module_::import("torch.nn").attr(name)).release().ptr();
}

// The tensor behind an object that is a plain tensor or parameter, of no other Python class.
const Tensor* plain_tensor(PyObject* object) {
  static PyObject* const parameter = class_of_torch_nn("Parameter");
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == parameter || type == THPVariableClass ? &THPVariable_Unpack(object) : nullptr;
}

// A string that lives as long as the process.
PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// Weight and bias of a torch.nn.Linear whose forward could be left out: nothing where it is of another class, has hooks
// or a forward of its own, or has its parameters elsewhere (parametrized, pruned, ...).
struct LinearParameters {
  Tensor weight;
  std::optional<Tensor> bias;
};
std::optional<LinearParameters> plain_linear(PyObject* module) {
  static PyObject* const linear = class_of_torch_nn("Linear");
  static PyObject* const forward = interned("forward");
  static PyObject* const parameters_name = interned("_parameters");
  static PyObject* const weight_name = interned("weight");
  static PyObject* const bias_name = interned("bias");
  static const std::array<PyObject*, 4> hooks = {interned("_forward_hooks"), interned("_forward_pre_hooks"),
                                                 interned("_backward_hooks"), interned("_backward_pre_hooks")};
  if (reinterpret_cast<PyObject*>(Py_TYPE(module)) != linear) return {};
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
  if (!attributes) throw py::error_already_set();
  if (PyDict_GetItem(attributes.ptr(), forward)) return {};
  for (PyObject* name : hooks) {
    PyObject* const registered = PyDict_GetItem(attributes.ptr(), name);
    if (!registered || !PyDict_Check(registered) || PyDict_Size(registered) > 0) return {};
  }
  PyObject* const parameters = PyDict_GetItem(attributes.ptr(), parameters_name);
  if (!parameters || !PyDict_Check(parameters)) return {};
  PyObject* const weight = PyDict_GetItem(parameters, weight_name);
  PyObject* const bias = PyDict_GetItem(parameters, bias_name);
  if (!weight || !bias) return {};
  const Tensor* const weight_tensor = plain_tensor(weight);
  const Tensor* const bias_tensor = bias == Py_None ? nullptr : plain_tensor(bias);
  if (!weight_tensor || (!bias_tensor && bias != Py_None)) return {};
  return LinearParameters{*weight_tensor, bias_tensor ? std::optional(*bias_tensor) : std::nullopt};
}

// mlp of the plain torch.nn.Linear modules that are the `_modules` of another; None if one of them is not plain.
py::object mlp_of_linears(const Tensor& input, const py::dict& modules, const std::string& activation,
                          const std::string& output_activation, const std::vector<double>& params,
                          const std::vector<double>& output_params, bool checkpoint) {
  c10::SmallVector<Tensor, 8> weights;
  OptionalTensors biases;
  biases.reserve(modules.size());
  for (const auto& [name, module] : modules) {
    auto layer = plain_linear(module.ptr());
    if (!layer) return py::none();
    weights.push_back(std::move(layer->weight));
    biases.push_back(std::move(layer->bias));
  }
  Tensor output;
  {
    py::gil_scoped_release no_gil;
    output = mlp_op().call(input, weights, biases, activation, output_activation, params, output_params, checkpoint);
  }
  return py::cast(std::move(output));
}

// gated_mlp of three plain torch.nn.Linear modules; None if one of them is not plain.
py::object gated_mlp_of_linears(const Tensor& input, py::handle gate, py::handle up, py::handle down,
                                const std::string& activation, const std::vector<double>& params, bool checkpoint) {
  const auto g = plain_linear(gate.ptr());
  const auto u = plain_linear(up.ptr());
  const auto d = plain_linear(down.ptr());
  if (!g || !u || !d) return py::none();
  Tensor output;
  {
    py::gil_scoped_release no_gil;
    output = gated_mlp_op().call(input, g->weight, u->weight, d->weight, g->bias, u->bias, d->bias, activation, params,
                                 checkpoint);
  }
  return py::cast(std::move(output));
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  const std::string& activation, const std::vector<double>& params) {
  return linear_act_op().call(input, weight, bias, activation, params);
}

py::tuple memory_stats() {
  const cpu::MemoryStats stats = cpu::memory_stats();
  return py::make_tuple(stats.limit, stats.kept, stats.reused, stats.allocated, stats.released);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("activations", &activation_table);
  m.def("cpu_capability", torch::wrap_pybind_function(cpu::capability));
  m.def("peak_flops", torch::wrap_pybind_function_no_gil(cpu::peak_flops));
  m.def("copy_bandwidth", torch::wrap_pybind_function_no_gil(cpu::copy_bandwidth));
  m.def("memory_stats", torch::wrap_pybind_function(memory_stats));
  m.def("set_memory_limit", torch::wrap_pybind_function_no_gil(cpu::set_memory_limit));
  m.def("empty_memory", torch::wrap_pybind_function_no_gil(cpu::empty_memory));
  m.attr("torch_version") = TORCH_VERSION;
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#elif defined(__GNUC__)
  m.attr("compiler") = "gcc " __VERSION__;
#elif defined(_MSC_VER)
  m.attr("compiler") = c10::str("msvc ", _MSC_VER);
#endif
  // As torch.ops.fastops.*; they release the GIL.
#define FASTOPS_DEFINE(name, A, parameters, ...) \
  define_activation<Activation::name>(m, std::make_index_sequence<detail::count_parameters(parameters)>{});
  FASTOPS_ACTIVATIONS(FASTOPS_DEFINE)
#undef FASTOPS_DEFINE
  m.def("mlp_of_linears", torch::wrap_pybind_function(mlp_of_linears));
  m.def("linear_act", torch::wrap_pybind_function_no_gil(linear_act));
  m.def("gated_mlp_of_linears", torch::wrap_pybind_function(gated_mlp_of_linears));
}

}  // namespace fastops
