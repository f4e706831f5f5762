#include "torch_internal/shared_node.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "torch_internal/node_classes.h"

namespace fastops {

namespace {

// The node that this thread is about to use for the last time: the engine calls will_release_variables() and then
// apply().
thread_local const SharedNode* last_use = nullptr;

}  // namespace

std::vector<NodeClass>& node_classes() {
  static std::vector<NodeClass> classes;
  return classes;
}

class SharedNode::Use {
 public:
  explicit Use(SharedNode& node) : node_(node), lock_(node.turn_) { ++node_.uses_; }
  ~Use() {
    if (--node_.uses_ == 0 && std::exchange(node_.release_, false)) node_.release_saved();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  SharedNode& node_;
  std::lock_guard<std::recursive_mutex> lock_;
};

variable_list SharedNode::apply(variable_list&& grads) {
  const bool is_last = std::exchange(last_use, nullptr) == this;
  const Use use(*this);
  // The forward pass was cast; what it kept has the dtypes that the backward pass computes with.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  variable_list result = gradients(std::move(grads));
  if (is_last) release_ = true;
  return result;
}

void SharedNode::will_release_variables() { last_use = this; }

void SharedNode::release_variables() {
  const Use use(*this);
  release_ = true;
}

}  // namespace fastops
