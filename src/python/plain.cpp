#include "python/plain.h"

#include <array>
#include <limits>
#include <unordered_map>

#include "ops/autocast.h"

namespace fastops::plain {
namespace {

namespace py = pybind11;

// A name or another object that lives as long as the process.
PyObject* kept(py::object object) { return object.release().ptr(); }
PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

enum class Role : uint8_t { linear, ensemble_linear, layer_norm, rms_norm, dropout, activation };

// A class of modules, as it was when fastops was imported.
struct Class {
  PyTypeObject* type;
  PyObject* forward;
  struct Use {
    PyObject* dictionary;
    PyObject* name;
    PyObject* value;
  };
  std::vector<Use> uses;
  Role role;
  bool transposed;  // whether the weight of a linear layer is [in_features, out_features]
  std::string activation;
  std::vector<PyObject*> attributes;  // the names of the activation's parameters
  unsigned int unchanged_version;     // CPython gives a type another one whenever it or a base changes; 0 is none
};

// What is asked of torch.nn again and again.
struct Torch {
  PyObject* parameter;
  PyTypeObject* ordered_dict;
  PyObject* call;       // torch.nn.Module.__call__
  PyObject* call_impl;  // torch.nn.Module._call_impl
  c10::SmallVector<PyObject*, 4> global_hooks;
  PyTypeObject* linear;
  std::unordered_map<PyTypeObject*, Class> classes;
};
Torch* torch_nn = nullptr;  // never destroyed: the interpreter may be gone by then; null before initialize()

struct Names {
  std::array<PyObject*, 4> hooks;
  std::array<PyObject*, 3> overrides;
  PyObject *parameters, *buffers, *weight, *bias, *training, *p, *eps, *normalized_shape, *approximate, *min_val,
      *max_val, *forward, *call, *call_impl;
};
Names names;

bool is_attribute(const Class& known, PyObject* name, PyObject* value) {
  const auto now = py::reinterpret_steal<py::object>(PyObject_GetAttr(reinterpret_cast<PyObject*>(known.type), name));
  if (!now) PyErr_Clear();
  return now.ptr() == value;
}

// Whether class and functions are those that were there when fastops was imported.
bool is_unchanged(Class& known) {
  const unsigned int version = known.type->tp_version_tag;
  if (version == 0 || version != known.unchanged_version) {
    if (!is_attribute(known, names.forward, known.forward) || !is_attribute(known, names.call, torch_nn->call) ||
        !is_attribute(known, names.call_impl, torch_nn->call_impl)) {
      return false;
    }
    known.unchanged_version = known.type->tp_version_tag;
  }
  for (const auto& [dictionary, name, value] : known.uses) {
    if (PyDict_GetItem(dictionary, name) != value) return false;
  }
  return true;
}

bool has_global_hooks() {
  for (PyObject* hooks : torch_nn->global_hooks) {
    if (PyDict_Size(hooks) > 0) return true;
  }
  return false;
}

// A plain module: what its class is known for, and its attributes.
struct Module {
  Class* kind = nullptr;
  py::object attributes;
  explicit operator bool() const { return kind != nullptr; }
};
Module plain_module(PyObject* object) {
  if (!torch_nn) return {};
  const auto found = torch_nn->classes.find(Py_TYPE(object));
  if (found == torch_nn->classes.end() || !is_unchanged(found->second)) return {};
  auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!attributes) throw py::error_already_set();
  for (PyObject* name : names.overrides) {
    if (PyDict_GetItem(attributes.ptr(), name)) return {};
  }
  for (PyObject* name : names.hooks) {
    PyObject* const registered = PyDict_GetItem(attributes.ptr(), name);
    if (!registered || !PyDict_Check(registered) || PyDict_Size(registered) > 0) return {};
  }
  return {&found->second, std::move(attributes)};
}

// Whether it is a tensor of no other Python class than torch's own.
bool is_tensor(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == torch_nn->parameter || is_exactly_tensor(object);
}

// Whether the ops take it, and nobody would miss being called.
const Tensor* plain_tensor(PyObject* object) {
  if (!is_tensor(object)) return nullptr;
  const Tensor& tensor = tensor_in(object);
  const auto dtype = tensor.scalar_type();
  const bool is_float = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  return is_float && tensor.layout() == at::kStrided && !tensor.is_nested() ? &tensor : nullptr;
}

// A number of Python's among a module's attributes.
std::optional<double> number(const Module& module, PyObject* name) {
  PyObject* const value = PyDict_GetItem(module.attributes.ptr(), name);
  if (!value || !(PyFloat_Check(value) || PyLong_Check(value))) return {};
  const double result = PyFloat_AsDouble(value);
  if (PyErr_Occurred()) throw py::error_already_set();
  return result;
}

std::optional<Function> activation(const Module& module) {
  Function function{module.kind->activation, {}};
  for (PyObject* name : module.kind->attributes) {
    const auto value = number(module, name);
    if (!value) return {};
    function.params.push_back(*value);
  }
  // It is a Hardtanh with these numbers.
  if (function.name == "relu6" && PyDict_GetItem(module.attributes.ptr(), names.min_val) &&
      (number(module, names.min_val) != 0.0 || number(module, names.max_val) != 6.0)) {
    return {};
  }
  // The one activation of torch.nn that has several forms.
  if (PyObject* const approximate = PyDict_GetItem(module.attributes.ptr(), names.approximate)) {
    if (!PyUnicode_Check(approximate)) return {};
    if (PyUnicode_CompareWithASCIIString(approximate, "tanh") == 0) {
      function.name = "gelu_tanh";
    } else if (PyUnicode_CompareWithASCIIString(approximate, "none") != 0) {
      return {};
    }
  }
  return function;
}

// Of a dictionary of a module's tensors. A subclass may do more when it is asked, such as fetching what is elsewhere.
PyObject* tensor_in_dictionary(PyObject* dictionary, PyObject* name) {
  const bool is_plain = dictionary && (PyDict_CheckExact(dictionary) || Py_TYPE(dictionary) == torch_nn->ordered_dict);
  return is_plain ? PyDict_GetItem(dictionary, name) : nullptr;
}

// Where torch.nn.Module finds it: most are parameters, some are left as attributes while weights are elsewhere (FSDP)
// or frozen as buffers. Null where it is in none of these.
PyObject* tensor_of(const Module& module, PyObject* name) {
  PyObject* const attributes = module.attributes.ptr();
  if (PyObject* found = tensor_in_dictionary(PyDict_GetItem(attributes, names.parameters), name)) return found;
  if (PyObject* found = PyDict_GetItem(attributes, name)) return found;
  return tensor_in_dictionary(PyDict_GetItem(attributes, names.buffers), name);
}

std::optional<Parameters> plain_parameters(PyObject* weight, PyObject* bias) {
  if (!weight || !bias) return {};
  const Tensor* const weight_tensor = plain_tensor(weight);
  const Tensor* const bias_tensor = bias == Py_None ? nullptr : plain_tensor(bias);
  if (!weight_tensor || (!bias_tensor && bias != Py_None)) return {};
  return Parameters{*weight_tensor, bias_tensor ? std::optional(*bias_tensor) : std::nullopt};
}

std::optional<Parameters> linear(const Module& module) {
  auto found = plain_parameters(tensor_of(module, names.weight), tensor_of(module, names.bias));
  if (!found || !module.kind->transposed) return found;
  if (found->weight.dim() != 2 || !found->bias) return {};
  found->weight = found->weight.t();
  return found;
}

// Appends a module's vector, which may be None; false where it is no plain tensor.
bool take_vector(const Module& module, PyObject* name, OptionalTensors& parameters) {
  PyObject* const value = tensor_of(module, name);
  const Tensor* const tensor = value && value != Py_None ? plain_tensor(value) : nullptr;
  parameters.push_back(tensor ? std::optional(*tensor) : std::nullopt);
  return tensor || value == Py_None;
}

// Appends a norm of the last dimension; false where it is another one.
bool take_norm(const Module& norm, const Tensor& input, int64_t features, Steps& steps) {
  PyObject* const shape = PyDict_GetItem(norm.attributes.ptr(), names.normalized_shape);
  if (!shape || !PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) != 1) return false;
  PyObject* const size = PyTuple_GET_ITEM(shape, 0);
  if (!PyLong_Check(size) || PyLong_AsLongLong(size) != features) return false;
  const bool is_layer_norm = norm.kind->role == Role::layer_norm;
  auto eps = number(norm, names.eps);
  // RMSNorm may have none. What that means for 16-bit types differs among versions of torch.
  if (!is_layer_norm && PyDict_GetItem(norm.attributes.ptr(), names.eps) == Py_None) {
    if (input.scalar_type() == at::kFloat) eps = std::numeric_limits<float>::epsilon();
    if (input.scalar_type() == at::kDouble) eps = std::numeric_limits<double>::epsilon();
  }
  if (!eps) return false;
  steps.params.push_back(*eps);
  steps.names += is_layer_norm ? " layer_norm" : " rms_norm";
  return take_vector(norm, names.weight, steps.parameters) &&
         (!is_layer_norm || take_vector(norm, names.bias, steps.parameters));
}

bool is_off(const Module& dropout) {
  PyObject* const training = PyDict_GetItem(dropout.attributes.ptr(), names.training);
  return training == Py_False || number(dropout, names.p) == 0.0;
}

}  // namespace

void initialize(const py::object& call_impl, const std::vector<py::object>& global_hooks) {
  const auto nn = py::module_::import("torch.nn");
  torch_nn = new Torch{kept(nn.attr("Parameter")),
                       reinterpret_cast<PyTypeObject*>(kept(py::module_::import("collections").attr("OrderedDict"))),
                       kept(nn.attr("Module").attr("__call__")),
                       kept(call_impl),
                       {},
                       nullptr,
                       {}};
  for (const py::object& hooks : global_hooks) torch_nn->global_hooks.push_back(kept(hooks));
  names = {{interned("_forward_hooks"), interned("_forward_pre_hooks"), interned("_backward_hooks"),
            interned("_backward_pre_hooks")},
           {interned("forward"), interned("_call_impl"), interned("_compiled_call_impl")},
           interned("_parameters"),
           interned("_buffers"),
           interned("weight"),
           interned("bias"),
           interned("training"),
           interned("p"),
           interned("eps"),
           interned("normalized_shape"),
           interned("approximate"),
           interned("min_val"),
           interned("max_val"),
           interned("forward"),
           interned("__call__"),
           interned("_call_impl")};
}

void add_class(const py::type& kind, const py::object& forward,
               const std::vector<std::tuple<py::object, std::string, py::object>>& uses, const std::string& activation,
               const std::vector<std::string>& attributes, bool transposed) {
  if (!torch_nn) return;
  auto* const type = reinterpret_cast<PyTypeObject*>(kept(kind));
  Class known{type, kept(forward), {}, Role::activation, transposed, activation, {}, 0};
  if (transposed) {
    known.role = Role::linear;
  } else if (activation.empty()) {
    const auto nn = py::module_::import("torch.nn");
    known.role = kind.is(nn.attr("Linear"))      ? Role::linear
                 : kind.is(nn.attr("LayerNorm")) ? Role::layer_norm
                 : kind.is(nn.attr("RMSNorm"))   ? Role::rms_norm
                 : kind.is(nn.attr("Dropout"))   ? Role::dropout
                                                 : Role::ensemble_linear;
    if (known.role == Role::linear) torch_nn->linear = type;
  }
  for (const auto& name : attributes) known.attributes.push_back(interned(name.c_str()));
  for (const auto& [module, name, value] : uses) {
    known.uses.push_back({kept(module.attr("__dict__")), interned(name.c_str()), kept(value)});
  }
  torch_nn->classes.insert_or_assign(type, std::move(known));
}

bool is_eager(py::handle input) {
  return torch_nn && is_tensor(input.ptr()) && !calls_are_watched() && !has_global_hooks();
}

std::optional<Parameters> parameters(PyObject* dictionary) {
  if (!torch_nn) return {};
  const auto found = torch_nn->classes.find(torch_nn->linear);
  if (found == torch_nn->classes.end() || !is_unchanged(found->second)) return {};
  return plain_parameters(tensor_in_dictionary(dictionary, names.weight), tensor_in_dictionary(dictionary, names.bias));
}

std::optional<Parameters> linear(PyObject* object) {
  const Module module = plain_module(object);
  if (!module || module.kind->role != Role::linear) return {};
  return linear(module);
}

std::optional<std::array<Parameters, 2>> two_linears(const py::list& layers) {
  std::array<Parameters, 2> found;
  size_t count = 0;
  for (const auto& object : layers) {
    const Module module = plain_module(object.ptr());
    if (!module) return {};
    if (module.kind->role == Role::linear && count < found.size()) {
      auto layer = linear(module);
      if (!layer) return {};
      found[count++] = *std::move(layer);
    } else if (module.kind->role != Role::dropout || !is_off(module)) {
      return {};
    }
  }
  return count == found.size() ? std::optional(std::move(found)) : std::nullopt;
}

std::optional<Function> activation(PyObject* object) {
  const Module module = plain_module(object);
  if (!module || module.kind->role != Role::activation) return {};
  return activation(module);
}

py::dict in_order(const py::dict& modules) {
  if (PyDict_CheckExact(modules.ptr())) return modules;
  py::dict copy;
  if (PyDict_Update(copy.ptr(), modules.ptr()) != 0) throw py::error_already_set();
  return copy;
}

std::optional<Network> network(const py::dict& modules, bool ensemble) {
  const Role layers = ensemble ? Role::ensemble_linear : Role::linear;
  Network network;
  network.biases.reserve(modules.size());
  const Function identity;
  for (const auto& [name, object] : in_order(modules)) {
    const Module module = plain_module(object.ptr());
    if (!module) return {};
    if (module.kind->role == layers) {
      auto layer = linear(module);
      if (!layer) return {};
      // What was the output layer is a hidden one: all of these have the activation of the first.
      if (network.weights.size() == 1) {
        network.hidden = std::move(network.output);
      } else if (network.weights.size() > 1 && network.output != network.hidden) {
        return {};
      }
      network.output = identity;
      network.weights.push_back(std::move(layer->weight));
      network.biases.push_back(std::move(layer->bias));
    } else if (module.kind->role == Role::activation) {
      auto function = activation(module);
      if (!function || network.weights.empty() || network.output != identity) return {};
      network.output = *std::move(function);
    } else if (module.kind->role != Role::dropout || !is_off(module)) {
      return {};
    }
  }
  if (network.weights.empty()) return {};
  return network;
}

// Whether a linear layer has the input's dtype, which torch.nn asks for, or autocast gives it one.
static bool fits(const Tensor& weight, const Tensor& input) {
  return weight.scalar_type() == input.scalar_type() || is_autocast_on(input);
}

std::optional<Steps> steps(const py::dict& modules, const Tensor& input, bool residual) {
  if (input.dim() == 0) return {};
  Steps steps;
  int64_t features = input.size(-1);
  bool has_linear = false;
  if (residual) steps.names = "residual";
  for (const auto& [name, object] : in_order(modules)) {
    const Module module = plain_module(object.ptr());
    if (!module) return {};
    const Role role = module.kind->role;
    // What came before made a tensor of its own, which modules may write into.
    const bool is_own = has_linear || !steps.params.empty();
    if (role == Role::linear) {
      auto layer = linear(module);
      if (!layer || !fits(layer->weight, input)) return {};
      features = layer->weight.size(0);
      has_linear = true;
      steps.names += " linear";
      steps.parameters.push_back(std::move(layer->weight));
      steps.parameters.push_back(std::move(layer->bias));
    } else if (role == Role::layer_norm || role == Role::rms_norm) {
      if (!take_norm(module, input, features, steps)) return {};
    } else if (role == Role::activation) {
      const auto function = activation(module);
      if (!function || !is_own) return {};
      steps.names += ' ';
      steps.names += function->name;
      steps.params.append(function->params.begin(), function->params.end());
    } else if (role == Role::dropout) {
      if (is_off(module)) continue;
      const auto p = number(module, names.p);
      if (!p || !is_own) return {};
      steps.names += " dropout";
      steps.params.push_back(*p);
      steps.drops = true;
    } else {
      return {};
    }
  }
  if (!has_linear) return {};
  if (residual) steps.names += " add";
  return steps;
}

}  // namespace fastops::plain
