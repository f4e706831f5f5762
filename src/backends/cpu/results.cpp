#include "backends/cpu/results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "backends/cpu/pages.h"

namespace fastops::cpu {
namespace {

constexpr size_t default_kept_mib = 256;

size_t most_kept() {
  static const size_t bytes = [] {
    const char* const text = std::getenv("FASTOPS_CPU_KEPT_MIB");
    if (!text || !*text) return default_kept_mib << 20;
    size_t mib = 0;
    const char* const end = text + std::strlen(text);
    const auto [last, error] = std::from_chars(text, end, mib);
    TORCH_CHECK_VALUE(error == std::errc() && last == end && mib <= (SIZE_MAX >> 20),
                      "fastops: FASTOPS_CPU_KEPT_MIB is '", text, "', but must be a number of MiB, 0 or more");
    return mib << 20;
  }();
  return bytes;
}

// Blocks come in eight sizes for each power of two, so that a result of nearly the same size can have one again.
size_t block_bytes(size_t bytes) { return round_up(bytes, std::bit_floor(bytes) / 8); }

struct Block {
  void* data;
  size_t bytes;

  explicit Block(size_t size) : data(allocate_pages(size)), bytes(size) {}
  Block(const Block&) = delete;
  ~Block() { release_pages(data, bytes); }
};

// The blocks that are kept. Without locks, as a process may fork at any time.
class Kept {
 public:
  // The one of that size that was freed last, which may still be in the caches; null if there is none.
  std::unique_ptr<Block> take(size_t bytes) {
    const size_t next = next_;
    for (size_t age = 1; age <= slots_.size(); ++age) {
      Slot& slot = slots_[(next - age) % slots_.size()];
      if (slot.bytes.load(std::memory_order_relaxed) != bytes) continue;
      std::unique_ptr<Block> block(slot.block.exchange(nullptr));
      if (!block) continue;
      total_ -= block->bytes;
      if (block->bytes == bytes) return block;
      give(std::move(block));  // another one came in between
    }
    return nullptr;
  }

  // The ones that have been kept for longest give way.
  void give(std::unique_ptr<Block> block) {
    const size_t limit = most_kept();
    if (block->bytes > limit) return;
    total_ += block->bytes;
    for (size_t tries = 0; tries < slots_.size() && total_ > limit; ++tries) put(nullptr);
    put(std::move(block));
  }

 private:
  struct Slot {
    std::atomic<size_t> bytes = 0;  // of the block, or of one that was here
    std::atomic<Block*> block = nullptr;
  };

  // Into the slot whose turn it is; frees what was there.
  void put(std::unique_ptr<Block> block) {
    Slot& slot = slots_[next_++ % slots_.size()];
    if (block) slot.bytes.store(block->bytes, std::memory_order_relaxed);
    const std::unique_ptr<Block> old(slot.block.exchange(block.release()));
    if (old) total_ -= old->bytes;
  }

  std::array<Slot, 128> slots_;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> total_ = 0;
};

Kept& kept() {
  static Kept* const blocks = new Kept();  // never destroyed: tensors may outlive it
  return *blocks;
}

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = block_bytes(std::max<size_t>(bytes, 8));
    auto block = kept().take(size);
    if (!block) block = std::make_unique<Block>(size);
    void* const data = block->data;
    c10::profiledCPUMemoryReporter().New(data, size);
    return {data, block.release(), &release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  static void release(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    c10::profiledCPUMemoryReporter().Delete(block->data);
    kept().give(std::move(block));
  }
};

// Below, glibc keeps what is freed itself.
constexpr size_t least_bytes = size_t{256} << 10;

// Memory that is not kept, just made and not yet written to. From 32 MiB on glibc takes it afresh from the system.
at::Tensor in_huge_pages(at::Tensor fresh) {
  constexpr size_t always_fresh = size_t{32} << 20;
  if (fresh.nbytes() >= always_fresh) advise_huge_pages(fresh.mutable_data_ptr(), fresh.nbytes());
  return fresh;
}

}  // namespace

at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like) {
  size_t bytes = like.element_size();
  for (const int64_t size : sizes) bytes *= size;
  if (bytes < least_bytes || bytes > most_kept()) return in_huge_pages(at::empty(sizes, like.options()));
  static ResultAllocator* const allocator = new ResultAllocator();
  return at::detail::empty_generic(sizes, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), like.scalar_type(),
                                   std::nullopt);
}

at::Tensor empty_result_like(const at::Tensor& like) {
  return like.is_contiguous() ? empty_result(like.sizes(), like) : in_huge_pages(at::empty_like(like));
}

}  // namespace fastops::cpu
