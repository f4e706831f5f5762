#include "python/modules.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>

#include "autograd/mlp.h"
#include "ops/autocast.h"
#include "ops/checks.h"
#include "ops/gated_mlp.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"
#include "ops/sequential.h"
#include "python/plain.h"

namespace fastops {

namespace py = pybind11;

namespace {

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

// Whether the weights are matrices, or of an ensemble matrices of each member: else it is for the op to say so.
bool are_matrices(at::TensorList weights, bool ensemble) {
  return std::all_of(weights.begin(), weights.end(),
                     [=](const Tensor& weight) { return weight.dim() == (ensemble ? 3 : 2); });
}

// The input of an ensemble with such a weight: with fewer than three dimensions, it is the same for all members.
Tensor points_of_ensemble(const Tensor& input, const Tensor& weight) {
  if (input.dim() > 2 || input.layout() != at::kStrided || weight.dim() == 0) return input;
  check_tensor("mlp", "input", input);
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
  if (!network || !are_matrices(network->weights, ensemble) || x.dim() == 0 || x.layout() != at::kStrided) {
    return py::none();
  }
  check_tensor("mlp_jet", "input", x);
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
    const int64_t seconds = laplacians ? 1 : 0;
    sizes.insert(sizes.end() - 1, features + seconds);
    // The axes and, of all points as of one matrix, what is zero: a fraction of the time of expanding them.
    const Tensor directions = at::zeros(sizes, x.options());
    directions.diagonal(0, -2, -1).fill_(1);
    const Tensor points = at::cat({x.unsqueeze(-2), directions}, -2);
    const Tensor jets = call_op(MlpJet{
        {points, features, weights, biases, hidden.name, last.name, hidden.params, last.params, /*trace_weights=*/{}}});
    results = parts_of_jets(jets, features, seconds);
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

// The outputs of such modules and their Jacobians in the input where these are the gradients of one output: what
// mlp_jacobian of python/fastops/_propagation.py gives where it takes the network's own backward pass, and as it says
// when; None elsewhere.
py::object gradients_of_modules(py::handle input, const py::dict& modules) {
  if (!plain::is_eager(input)) return py::none();
  const auto network = plain::network(modules);
  const Tensor& x = tensor_in(input.ptr());
  constexpr int64_t least_features = 3;
  if (!network || !are_matrices(network->weights, /*ensemble=*/false)) return py::none();
  if (x.dim() == 0 || x.size(-1) < least_features) return py::none();
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

}  // namespace

void define_calls_of_modules(py::module_& m) {
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
  m.def("gated_mlp_of_linears", wrap_pybind_function(gated_mlp_of_linears));
  m.def("mlp_of_linears", wrap_pybind_function(mlp_of_linears));
}

}  // namespace fastops
