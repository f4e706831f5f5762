// Tensors in Python, and what stands between Python and an op.
//
// Private, in all torch versions from 2.11 to 2.15: torch/csrc, in which PyTorch's own bindings are written. Where it
// is missing fastops._C cannot be built; libfastops, with the ops, needs none of it.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>              // whether a mode wants to see functions
#include <ATen/TracerMode.h>                          // whether torch.jit.trace is going on
#include <torch/csrc/Exceptions.h>                    // C++ exceptions as Python's, with torch's classes
#include <torch/csrc/autograd/python_cpp_function.h>  // nodes of the autograd graph as Python's objects
#include <torch/csrc/autograd/python_variable.h>      // the tensor in a Python object
#include <torch/csrc/utils/pybind.h>                  // tensors as arguments and results of pybind11

#include "torch_internal/node_classes.h"

namespace fastops {

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

// Whether an object is of torch's own class of tensors, and none derived from it.
inline bool is_exactly_tensor(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == THPVariableClass;
}

// The tensor in an object of that class, or of one derived from it.
inline const at::Tensor& tensor_in(PyObject* object) { return THPVariable_Unpack(object); }

// Whether somebody wants to see functions before the dispatcher does, or records them.
inline bool calls_are_watched() {
  return at::impl::torch_function_mode_enabled() || at::tracer::impl::is_dispatch_enabled();
}

// Makes a class of nodes one of Python's. AOTAutograd takes the others, which are all CppFunction there, for nodes of
// custom functions, and what these return for a tensor that is none of the arguments.
inline void define_node_class(const NodeClass& node) {
  auto* const name = new std::string(node.name());  // both are kept for as long as the process
  auto* const type = new PyTypeObject{};
  torch::autograd::registerCppFunction(
      *node.type, torch::autograd::_initFunctionPyTypeObject(*type, name->c_str(), nullptr, nullptr));
}

}  // namespace fastops
