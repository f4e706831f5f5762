// fastops._C: direct entry points for the eager hot path, and what the Python package asks of the library.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/roofs.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"

namespace fastops {
namespace {

namespace py = pybind11;

using OptionalTensorVector = std::vector<std::optional<Tensor>>;

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

Tensor mlp(const Tensor& input, const std::vector<Tensor>& weights, const OptionalTensorVector& biases,
           const std::string& activation, const std::string& output_activation, const std::vector<double>& params,
           const std::vector<double>& output_params) {
  OptionalTensors bias_list;
  bias_list.reserve(biases.size());
  for (const auto& bias : biases) bias_list.push_back(bias);
  return mlp_op().call(input, weights, bias_list, activation, output_activation, params, output_params);
}

Tensor linear_act(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  const std::string& activation, const std::vector<double>& params) {
  return linear_act_op().call(input, weight, bias, activation, params);
}

Tensor gated_mlp(const Tensor& input, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
                 const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                 const std::optional<Tensor>& down_bias, const std::string& activation,
                 const std::vector<double>& params) {
  return gated_mlp_op().call(input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation,
                             params);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("activations", &activation_table);
  m.def("cpu_capability", torch::wrap_pybind_function(cpu::capability));
  m.def("peak_flops", torch::wrap_pybind_function_no_gil(cpu::peak_flops));
  m.def("copy_bandwidth", torch::wrap_pybind_function_no_gil(cpu::copy_bandwidth));
  m.attr("torch_version") = TORCH_VERSION;
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#elif defined(__GNUC__)
  m.attr("compiler") = "gcc " __VERSION__;
#elif defined(_MSC_VER)
  m.attr("compiler") = c10::str("msvc ", _MSC_VER);
#endif
  // The C++ signatures of torch.ops.fastops.*; they release the GIL.
  m.def("mlp", torch::wrap_pybind_function_no_gil(mlp));
  m.def("linear_act", torch::wrap_pybind_function_no_gil(linear_act));
  m.def("gated_mlp", torch::wrap_pybind_function_no_gil(gated_mlp));
}

}  // namespace fastops
