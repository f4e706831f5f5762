#include "backends/cpu/memory.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "backends/cpu/room.h"

namespace fastops::cpu {
namespace {

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = Room::instance().take(bytes)->data();
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  static void release(void* data) {
    c10::profiledCPUMemoryReporter().Delete(data);
    Room::instance().give(MemoryBlock::of(data));
  }
};

// A tensor whose memory is PyTorch's. From 32 MiB on glibc takes it afresh from the system.
template <class F>
at::Tensor not_kept(F empty) {
  constexpr size_t always_fresh = size_t{32} << 20;
  at::Tensor fresh = Room::instance().or_without_kept(empty);
  if (fresh.nbytes() >= always_fresh) advise_huge_pages(fresh.mutable_data_ptr(), fresh.nbytes());
  return fresh;
}

// torch.utils.deterministic.fill_uninitialized_memory: at::empty does that.
bool fills_new_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

}  // namespace

at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like) {
  size_t bytes = like.element_size();
  for (const int64_t size : sizes) bytes *= size;
  if (bytes < least_bytes) return at::empty(sizes, like.options());
  if (block_bytes(bytes) > Room::instance().limit() || fills_new_memory()) {
    return not_kept([&] { return at::empty(sizes, like.options()); });
  }
  static ResultAllocator* const allocator = new ResultAllocator();
  return at::detail::empty_generic(sizes, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), like.scalar_type(),
                                   std::nullopt);
}

at::Tensor empty_result_like(const at::Tensor& like) {
  if (like.is_contiguous()) return empty_result(like.sizes(), like);
  return not_kept([&] { return at::empty_like(like); });
}

Workspace::~Workspace() {
  if (desk_) Room::instance().put_back(*desk_, lent_);
  for (MemoryBlock* const block : blocks_) Room::instance().give(block);
}

void* Workspace::take(int64_t bytes) {
  const size_t size = round_up(std::max<size_t>(bytes, 1) + fence_bytes, cache_line);
  if (size > least_bytes) {
    blocks_.push_back(Room::instance().take(bytes));
    return blocks_.back()->data();
  }
  if (size > rest_bytes_) {
    MemoryBlock* block = nullptr;
    if (rest_) {
      block = Room::instance().take(least_bytes);
    } else {
      std::tie(desk_, block) = Room::instance().lend();
    }
    if (desk_ && !lent_) {
      lent_ = block;
    } else {
      blocks_.push_back(block);
    }
    cut_from(*block);
  }
  unpoison(rest_, bytes);
  rest_bytes_ -= size;
  return std::exchange(rest_, rest_ + size);
}

void Workspace::clear() {
  for (MemoryBlock* const block : blocks_) Room::instance().give(block);
  blocks_.clear();
  rest_bytes_ = 0;
  if (lent_) cut_from(*lent_);
}

void Workspace::cut_from(MemoryBlock& block) {
  block.use_only(0);
  rest_ = static_cast<char*>(block.data());
  rest_bytes_ = least_bytes;
}

MemoryStats memory_stats() { return Room::instance().stats(); }
void set_memory_limit(size_t bytes) { Room::instance().set_limit(bytes); }
void empty_memory(double seconds_unused) {
  const std::chrono::duration<double> unused(std::min(seconds_unused, 1e9));
  Room::instance().empty(std::chrono::duration_cast<std::chrono::steady_clock::duration>(unused));
}

}  // namespace fastops::cpu
