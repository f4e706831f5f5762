// Memory that a call needs while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastops::cpu {

// Pieces of a buffer that each thread keeps from call to call, so that its pages need not be mapped anew. What a call
// takes beyond it is allocated, and the buffer is larger the next time, up to a limit (workspace.cpp).
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // `bytes` bytes, aligned to 64, not initialized. Valid until the Workspace goes.
  void* take(int64_t bytes);

 private:
  struct Buffer;
  static Buffer& kept();

  bool owner_;  // whether this is the one Workspace of the thread that uses the kept buffer
  size_t used_ = 0;
  size_t beyond_ = 0;
  std::vector<std::pair<void*, size_t>> extra_;
};

}  // namespace fastops::cpu
