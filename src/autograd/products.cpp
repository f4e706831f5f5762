#include "autograd/products.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>

#include "autograd/node.h"
#include "ops/mlp.h"
#include "ops/product.h"
#include "torch_internal/functorch.h"

namespace fastops {
namespace {

// Neither of a subclass nor a stand-in for another tensor, nor with a tangent.
bool is_plain(const Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set() & c10::after_ADInplaceOrView_keyset;
  return keys.highestPriorityTypeId() == c10::DispatchKey::CPU && !is_of_transform(tensor) && !has_tangent(tensor);
}

bool is_watched() {
  return in_transform() || at::autocast::is_autocast_enabled(at::kCPU) ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

// The product, or undefined where it is for PyTorch.
Tensor product_without_history(const Tensor& a, const Tensor& b) {
  if (!is_plain(a) || !is_plain(b) || is_watched()) return {};
  at::AutoDispatchBelowADInplaceOrView below;
  return try_product(a, b);
}

struct ProductNode : OpNode<ProductNode> {
  SavedVariable a, b;

  auto fields() { return std::tie(a, b); }
  std::string name() const override { return "FastopsProductBackward"; }

  variable_list gradients(variable_list&& grads) override {
    constexpr auto op = "product";
    variable_list results(2);
    if (!grads[0].defined()) return results;
    if (wants(0)) results[0] = differentiable_product(grads[0], unpack(op, "b", b).t());
    if (wants(1)) results[1] = differentiable_product(unpack(op, "a", a).t(), grads[0]);
    return results;
  }
};
const RegisterNode<ProductNode> product_node;

}  // namespace

Tensor differentiable_product(const Tensor& a, const Tensor& b) {
  Tensor result = product_without_history(a, b);
  if (!result.defined()) return at::mm(a, b);
  if (needs_grad(a, b)) {
    const auto node = make_node<ProductNode>();
    node->set_next_edges(collect_next_edges(a, b));
    node->a = save(a);
    node->b = save(b);
    set_history(result, node);
  }
  return result;
}

Tensor projection(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return call_op(LinearAct{x, weight, bias, "identity", {}});
}

}  // namespace fastops
