#include "ops/define.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "ops/checks.h"

namespace fastops {
namespace {

using at::Tensor;
using c10::DispatchKey;
using torch::jit::Stack;

// Nested tensors are what check_tensor refuses.
void refuse_nested(const c10::OperatorHandle& op, Stack* stack) {
  const std::string name = op.schema().name().substr(std::string_view("fastops::").size());
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack->at(stack->size() - arguments.size() + i);
    const std::string_view argument = arguments[i].name();
    if (value.isTensor()) {
      check_tensor(name, argument, value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      const auto list = value.toListRef();
      for (size_t item = 0; item < list.size(); ++item) {
        if (!list[item].isNone()) check_tensor(name, {argument, item}, list[item].toTensor());
      }
    }
  }
  TORCH_INTERNAL_ASSERT(false, "fastops.", name, " was called for a nested tensor, but has none among its arguments");
}

// The tensor with its numbers in memory.
Tensor resolved(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor._is_zerotensor()) return at::zeros_symint(tensor.sym_sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

// Lists are replaced, as others may hold them.
c10::IValue resolved(const c10::IValue& value) {
  if (value.isTensor()) return resolved(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(resolved(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(resolved(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

template <DispatchKey key>
void with_resolved_tensors(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  for (auto value = stack->end() - static_cast<int64_t>(op.schema().arguments().size()); value != stack->end();
       ++value) {
    *value = resolved(*value);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

bool is_list_of_optional_tensors(const c10::Argument& argument) {
  return *argument.type() == *c10::getTypePtr<c10::List<std::optional<Tensor>>>();
}

bool is_written_to(const c10::Argument& argument) { return argument.alias_info() != nullptr; }

}  // namespace

void define(torch::Library& m, const std::string& schema, std::vector<at::Tag> tags) {
  tags.push_back(at::Tag::pt2_compliant_tag);
  m.def(schema.c_str(), std::as_const(tags));
  const c10::FunctionSchema parsed = torch::schema(schema.c_str());
  const std::string overload = parsed.overload_name().empty() ? "" : "." + parsed.overload_name();
  const std::string name = parsed.name() + overload;
  const std::vector<c10::Argument>& arguments = parsed.arguments();
  const auto implement = [&](DispatchKey key, torch::CppFunction&& kernel) {
    m.impl(name.c_str(), torch::dispatch(key, std::move(kernel)));
  };
  for (const DispatchKey key : {DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorCUDA}) {
    implement(key, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
  }
  // Of those with the layout torch.jagged, PyTorch itself handles the ops with this tag. For the others it looks for
  // the second of these keys where autograd is off.
  if (std::find(tags.begin(), tags.end(), at::Tag::pointwise) == tags.end()) {
    for (const DispatchKey key :
         {DispatchKey::AutogradNestedTensor, DispatchKey::CompositeImplicitAutogradNestedTensor}) {
      implement(key, torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
    }
  }
  if (std::none_of(arguments.begin(), arguments.end(), is_list_of_optional_tensors)) return;
  TORCH_INTERNAL_ASSERT(std::none_of(arguments.begin(), arguments.end(), is_written_to), "fastops.", name,
                        " has a list of optional tensors, and writes to an argument: who resolves them both?");
  implement(DispatchKey::ZeroTensor,
            torch::CppFunction::makeFromBoxedFunction<&with_resolved_tensors<DispatchKey::ZeroTensor>>());
  implement(DispatchKey::Negative,
            torch::CppFunction::makeFromBoxedFunction<&with_resolved_tensors<DispatchKey::Negative>>());
  implement(DispatchKey::Conjugate,
            torch::CppFunction::makeFromBoxedFunction<&with_resolved_tensors<DispatchKey::Conjugate>>());
}

}  // namespace fastops
