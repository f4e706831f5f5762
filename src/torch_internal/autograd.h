// What fastops takes from PyTorch's autograd: nodes, saved tensors and history, as its own code generator uses them.
//
// Private, in all torch versions from 2.11 to 2.15, but for what is marked below. Where one is missing, fastops cannot
// be built; the public way, torch::autograd::Function, packs arguments and saved tensors for every call.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>  // history, versions and checks of what an op writes
#include <torch/csrc/autograd/function.h>           // Node
#include <torch/csrc/autograd/functions/utils.h>    // collect_next_edges
#include <torch/csrc/autograd/graph_task.h>         // which run of the engine this is
#include <torch/csrc/autograd/saved_variable.h>     // SavedVariable, with its hooks and its check of versions
#include <torch/csrc/dynamo/compiled_autograd.h>    // what node.h says to compiled autograd
#include <torch/version.h>

#include <optional>
#include <vector>

namespace fastops {

using at::Tensor;
using torch::autograd::check_inplace;
using torch::autograd::collect_next_edges;
using torch::autograd::get_current_graph_task_id;
using torch::autograd::increment_version;
using torch::autograd::Node;
using torch::autograd::rebase_history;
using torch::autograd::SavedVariable;
using torch::autograd::set_history;
using torch::autograd::throw_error_out_requires_grad;
using torch::autograd::variable_list;

// Nodes are held by std::shared_ptr up to torch 2.12 and by c10::intrusive_ptr since.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
template <class T>
using NodePtr = c10::intrusive_ptr<T>;
template <class T>
NodePtr<T> make_node() {
  return c10::make_intrusive<T>();
}
#else
template <class T>
using NodePtr = std::shared_ptr<T>;
template <class T>
NodePtr<T> make_node() {
  return std::shared_ptr<T>(new T(), torch::autograd::deleteNode);
}
#endif

inline SavedVariable save(const Tensor& tensor, bool is_output = false) { return SavedVariable(tensor, is_output); }
inline SavedVariable save(const std::optional<Tensor>& tensor) {
  return SavedVariable(tensor ? *tensor : Tensor(), /*is_output=*/false);
}
inline std::vector<SavedVariable> save(at::TensorList tensors) {
  std::vector<SavedVariable> saved;
  saved.reserve(tensors.size());
  for (const Tensor& tensor : tensors) saved.emplace_back(tensor, /*is_output=*/false);
  return saved;
}
inline std::vector<Tensor> unpack(const std::vector<SavedVariable>& saved) {
  std::vector<Tensor> tensors;
  tensors.reserve(saved.size());
  for (const SavedVariable& variable : saved) tensors.push_back(variable.unpack());
  return tensors;
}

}  // namespace fastops
