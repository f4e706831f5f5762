// A node of the autograd graph that several threads may come to at once.
#pragma once

#include <mutex>

#include "torch_internal/autograd.h"

namespace fastops {

// As in PyTorch's own nodes, one thread at a time uses what is saved or releases it. Other than there, a backward pass
// that is to release the node does so before the next thread gets its turn: only one comes through. And the thread that
// uses the node may come to it again, from a hook on a saved tensor: what is to be released stays until it has done
// with it.
class SharedNode : public Node {
 public:
  variable_list apply(variable_list&& grads) final;
  void will_release_variables() final;
  void release_variables() final;

 protected:
  // The gradients of the inputs, from those of the results.
  virtual variable_list gradients(variable_list&& grads) = 0;
  // Frees what is saved.
  virtual void release_saved() = 0;

 private:
  class Use;

  std::recursive_mutex turn_;
  int uses_ = 0;  // of the one thread whose turn it is
  bool release_ = false;
};

}  // namespace fastops
