// The memory of large results, and what calls need while they run. What is freed is kept for the next ones, so that its
// pages need not be mapped anew: room.h says how much of it, and for how long.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

#include "export.h"

namespace fastops::cpu {

// As at::empty and at::empty_like, with a tensor's dtype.
at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like);
at::Tensor empty_result_like(const at::Tensor& like);

struct MemoryBlock;
struct Desk;

// Memory that a call needs while it runs: many small pieces of one block, and a block for each large piece.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // `bytes` bytes, aligned to 64, not initialized. Valid until the Workspace goes or is cleared.
  void* take(int64_t bytes);
  void clear();

 private:
  Desk* desk_ = nullptr;  // the desk that lent a block, which goes back there
  MemoryBlock* lent_ = nullptr;
  c10::SmallVector<MemoryBlock*, 8> blocks_;
  char* rest_ = nullptr;  // of the block that small pieces are cut from
  size_t rest_bytes_ = 0;

  void cut_from(MemoryBlock& block);
};

// In bytes, and in numbers of blocks since the process began.
struct MemoryStats {
  size_t limit, kept;
  size_t reused, allocated, released;
};
FASTOPS_API MemoryStats memory_stats();
// The most bytes that are kept.
FASTOPS_API void set_memory_limit(size_t bytes);
// Gives back what is kept and has not been used for so long.
FASTOPS_API void empty_memory(double seconds_unused);

}  // namespace fastops::cpu
