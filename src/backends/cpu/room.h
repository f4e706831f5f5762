// The room for memory that is kept, for results and workspaces of all threads alike. It comes from PyTorch's CPU
// allocator and goes back there: what is over the limit, the oldest first; what nobody has used for a while; everything
// when the allocator has nothing left, when it is replaced, and before the process forks.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <limits>
#include <mutex>
#include <utility>

#include "backends/cpu/memory.h"
#include "backends/cpu/poison.h"

namespace fastops::cpu {

inline constexpr size_t cache_line = 64;

// Smaller results are PyTorch's: glibc keeps what is freed of that size itself.
inline constexpr size_t least_bytes = size_t{256} << 10;

inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Blocks come in eight sizes for each power of two, so that a result of nearly the same size can have one again.
inline size_t block_bytes(size_t bytes) { return round_up(bytes, std::bit_floor(bytes) / 8); }

// One page fault instead of 512, where the system gives huge pages on request (Linux).
void advise_huge_pages(void* data, size_t bytes);

struct Link {
  MemoryBlock *newer = nullptr, *older = nullptr;
};

// Lies right in front of its data, as the context of a tensor's memory must be the data: PyTorch's copy-on-write needs
// that.
struct MemoryBlock {
  c10::DataPtr memory;  // of all of it
  const c10::Allocator* allocator;
  size_t bytes;  // of the data
  std::chrono::steady_clock::time_point since{};
  Link by_age{}, of_size{};

  void* data() { return this + 1; }
  // Only so many bytes of the data may be used.
  void use_only(size_t used) {
    unpoison(data(), used);
    poison(static_cast<char*>(data()) + used, bytes - used);
  }
  static MemoryBlock* of(void* data) { return static_cast<MemoryBlock*>(data) - 1; }
};

// A block for the small workspaces of one thread, or of a few that take turns: taken and put back without a lock.
struct alignas(cache_line) Desk {
  std::atomic<MemoryBlock*> block = nullptr;  // the address `lent` while a workspace has it
  std::atomic<size_t> used_at = 0;            // Room::look_
};

template <Link MemoryBlock::* link>
class BlockList {
 public:
  MemoryBlock* newest() const { return newest_; }
  MemoryBlock* oldest() const { return oldest_; }
  void add(MemoryBlock* block) {
    block->*link = {nullptr, newest_};
    (newest_ ? (newest_->*link).newer : oldest_) = block;
    newest_ = block;
  }
  void remove(MemoryBlock* block) {
    const Link& around = block->*link;
    (around.newer ? (around.newer->*link).older : newest_) = around.older;
    (around.older ? (around.older->*link).newer : oldest_) = around.newer;
  }

 private:
  MemoryBlock *newest_ = nullptr, *oldest_ = nullptr;
};

class Room {
 public:
  static Room& instance();

  size_t limit() const { return limit_.load(std::memory_order_relaxed); }

  // At least `bytes` bytes, of what is kept or new.
  MemoryBlock* take(size_t bytes);
  void give(MemoryBlock* block) noexcept;

  // A block for small pieces, and the desk that it is to be put back on; null if it is to be given.
  std::pair<Desk*, MemoryBlock*> lend();
  void put_back(Desk& desk, MemoryBlock* block) noexcept;

  void set_limit(size_t bytes);
  // Gives back what has not been used for so long.
  void empty(std::chrono::steady_clock::duration unused_for);
  MemoryStats stats();

  // What `allocate` returns; where it fails, once more after everything that is kept has been given back.
  template <class F>
  auto or_without_kept(F allocate) -> decltype(allocate()) {
    try {
      return allocate();
    } catch (...) {
      if (kept_ == 0) throw;
    }
    empty({});
    return allocate();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using BlocksOfSize = BlockList<&MemoryBlock::of_size>;
  class Leaving;

  Room();
  void empty_at_forks();
  Desk& desk_of_thread();

  // These are called with the lock.
  void remove(MemoryBlock* block);
  void leave(MemoryBlock* block, Leaving& leaving);
  void leave_oldest(Leaving& leaving);
  void clear(Desk& desk, Leaving& leaving);
  void shrink(size_t most, Leaving& leaving);
  void give_up_unused(Clock::duration longest, Leaving& leaving);
  void forget_other_threads();

  std::mutex mutex_;
  std::atomic<size_t> limit_;
  std::atomic<size_t> kept_ = 0;  // in lists and on desks, with what desks have lent
  c10::Allocator* allocator_ = nullptr;
  BlockList<&MemoryBlock::by_age> by_age_;
  std::array<BlocksOfSize, 8 * (std::numeric_limits<size_t>::digits - std::bit_width(least_bytes) + 1)> of_size_;
  size_t reused_ = 0, allocated_ = 0, released_ = 0;
  std::array<Desk, 64> desks_;
  std::atomic<size_t> look_ = 0;  // how often desks have been looked through
  Clock::time_point last_look_ = Clock::now();
};

}  // namespace fastops::cpu
