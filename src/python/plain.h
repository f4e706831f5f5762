// Which modules are plain: calling them does no more than torch.nn says, so that an op may stand for the call.
//
// Hooks of the module or of all modules, a forward of its own, a replaced class or function, weights that are computed
// or of another Python class: with any of these a module is called. The rules once more in Python, where torch.compile
// can follow them: python/fastops/_eager.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/mlp.h"
#include "torch_internal/bindings.h"

namespace fastops::plain {

// Takes what is needed of torch.nn: `call_impl` is torch.nn.Module._call_impl, `global_hooks` the dictionaries of the
// hooks of all modules. Before it, and where PyTorch has no such things, nothing is plain. Called while fastops is
// imported: a static within a function would import under the lock of its initialization, while another thread waits
// for that lock with the GIL.
void initialize(const pybind11::object& call_impl, const std::vector<pybind11::object>& global_hooks);

// Lets modules of a class be plain. `forward` is the class's, `uses` the (module, name, value) that forward looks up,
// all as they were when fastops was imported. `activation` is the name of one, whose parameters are the `attributes`;
// empty for torch.nn.Linear, LayerNorm, RMSNorm and Dropout, and for fastops.nn.EnsembleLinear.
void add_class(const pybind11::type& kind, const pybind11::object& forward,
               const std::vector<std::tuple<pybind11::object, std::string, pybind11::object>>& uses,
               const std::string& activation, const std::vector<std::string>& attributes, bool transposed);

// Whether an op may be called with the object without Python's side of the dispatcher: a plain tensor, while no mode
// wants to see functions and nothing is traced.
bool is_eager(pybind11::handle input);

// Weight and bias of a layer.
struct Parameters {
  Tensor weight;
  std::optional<Tensor> bias;
};

// Those in a module's `_parameters`; nothing where one is elsewhere or not a plain tensor, or torch.nn.Linear was
// changed.
std::optional<Parameters> parameters(PyObject* dictionary);

// Those of a plain torch.nn.Linear.
std::optional<Parameters> linear(PyObject* module);

// Those of the two plain torch.nn.Linear modules in a list, where nothing else is in it but dropouts that are off.
std::optional<std::array<Parameters, 2>> two_linears(const pybind11::list& layers);

// The dictionary, in Python's order: that of an OrderedDict is its own.
pybind11::dict in_order(const pybind11::dict& modules);

// A plain activation module.
struct Function {
  std::string_view name = "identity";
  c10::SmallVector<double, 2> params;
  bool operator==(const Function& other) const { return name == other.name && params == other.params; }
};
std::optional<Function> activation(PyObject* module);

// Plain Linear modules with their activations, one after another.
struct Network {
  c10::SmallVector<Tensor, 8> weights;
  OptionalTensors biases;
  Function hidden, output;
};
// That of the modules in the dictionary; nothing where one of them is not plain, where a dropout is on, or where the
// hidden layers' activations differ.
std::optional<Network> network(const pybind11::dict& modules, bool ensemble = false);

// The arguments of a sequential.
struct Steps {
  OptionalTensors parameters;
  std::string names;
  c10::SmallVector<double, 8> params;
  bool drops = false;  // whether there is a dropout that is on
};
// Those of the modules in the dictionary: Linear, norms of the last dimension, activations, dropouts, with a residual
// connection around them if `residual`. Nothing where one of them is not plain, where none is a Linear, or where the
// first could change the input.
std::optional<Steps> steps(const pybind11::dict& modules, const Tensor& input, bool residual);

}  // namespace fastops::plain
