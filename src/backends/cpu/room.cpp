#include "backends/cpu/room.h"

#include <c10/core/CPUAllocator.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#endif

#include "ops/environment.h"

namespace fastops::cpu {
namespace {

constexpr size_t default_limit_mib = 64;
constexpr size_t huge_page = size_t{2} << 20;
constexpr auto longest_unused = std::chrono::seconds(10);

size_t limit_from_environment() {
  const char* const text = std::getenv("FASTOPS_CPU_KEPT_MIB");
  if (!text || !*text) return default_limit_mib << 20;
  size_t mib = 0;
  const char* const end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, mib);
  TORCH_CHECK_VALUE(error == std::errc() && last == end && mib <= (SIZE_MAX >> 20), "fastops: FASTOPS_CPU_KEPT_MIB is ",
                    printable(text), ", but must be a whole number of MiB, 0 or more");
  return mib << 20;
}
const ReadAtImport limit_at_import([] { limit_from_environment(); });

}  // namespace

void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = begin / page * page;
  // It is a hint: where it is refused, nothing is lost.
  madvise(reinterpret_cast<void*>(first), begin + bytes - first, MADV_HUGEPAGE);
#endif
}

namespace {

MemoryBlock* const lent = reinterpret_cast<MemoryBlock*>(alignof(MemoryBlock));

// PyTorch's own allocators tell the profiler what they allocate. The profiler shall see results instead, whether their
// memory is new or was kept.
bool is_reported(const c10::Allocator* allocator) {
  return allocator == c10::GetDefaultCPUAllocator() || allocator == c10::GetDefaultMobileCPUAllocator();
}

size_t size_index(size_t bytes) {
  const size_t octave = std::bit_width(bytes) - 1;
  return 8 * (octave - (std::bit_width(least_bytes) - 1)) + (bytes >> (octave - 3)) - 8;
}

// In front of the data, with what aligns it.
constexpr size_t header_bytes = sizeof(MemoryBlock) + cache_line - 1;

MemoryBlock* make_block(c10::Allocator& allocator, size_t bytes) {
  c10::DataPtr memory = allocator.allocate(header_bytes + bytes);
  if (is_reported(&allocator)) c10::profiledCPUMemoryReporter().Delete(memory.get_context());
  const auto data = round_up(reinterpret_cast<uintptr_t>(memory.get()) + sizeof(MemoryBlock), cache_line);
  if (bytes >= huge_page) advise_huge_pages(reinterpret_cast<void*>(data), bytes);
  return new (MemoryBlock::of(reinterpret_cast<void*>(data))) MemoryBlock{std::move(memory), &allocator, bytes};
}

void destroy(MemoryBlock* block) {
  block->use_only(block->bytes);
  const c10::DataPtr memory = std::move(block->memory);
  if (is_reported(block->allocator)) {
    c10::profiledCPUMemoryReporter().New(memory.get_context(), header_bytes + block->bytes);
  }
  block->~MemoryBlock();
}

}  // namespace

// Blocks on their way back to the allocator, which is not called while the room is locked.
class Room::Leaving {
 public:
  Leaving() = default;
  Leaving(const Leaving&) = delete;
  ~Leaving() {
    while (MemoryBlock* const block = blocks_.newest()) {
      blocks_.remove(block);
      destroy(block);
    }
  }
  void add(MemoryBlock* block) { blocks_.add(block); }

 private:
  BlockList<&MemoryBlock::by_age> blocks_;
};

Room& Room::instance() {
  static Room* const room = new Room();  // never destroyed: tensors may outlive it
  return *room;
}

MemoryBlock* Room::take(size_t bytes) {
  const size_t size = block_bytes(std::max(bytes, least_bytes));
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  {
    Leaving leaving;
    const std::lock_guard lock(mutex_);
    if (allocator != std::exchange(allocator_, allocator)) shrink(0, leaving);
    give_up_unused(longest_unused, leaving);
    BlocksOfSize& blocks = of_size_[size_index(size)];
    // The one that was freed last may still be in the caches.
    if (MemoryBlock* const block = blocks.newest()) {
      remove(block);
      ++reused_;
      block->use_only(bytes);
      return block;
    }
    ++allocated_;
  }
  MemoryBlock* const block = or_without_kept([&] { return make_block(*allocator, size); });
  block->use_only(bytes);
  return block;
}

void Room::give(MemoryBlock* block) noexcept {
  block->use_only(0);
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  if (block->bytes > limit() || block->allocator != allocator_) {
    leave(block, leaving);
    return;
  }
  block->since = Clock::now();
  by_age_.add(block);
  of_size_[size_index(block->bytes)].add(block);
  kept_ += block->bytes;
  shrink(limit(), leaving);
  give_up_unused(longest_unused, leaving);
}

std::pair<Desk*, MemoryBlock*> Room::lend() {
  Desk& desk = desk_of_thread();
  MemoryBlock* block = desk.block.load(std::memory_order_relaxed);
  if (block && block != lent && desk.block.compare_exchange_strong(block, lent, std::memory_order_acquire)) {
    return {&desk, block};
  }
  block = take(least_bytes);
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  if (desk.block.load(std::memory_order_relaxed) || block->bytes > limit()) return {nullptr, block};
  desk.block.store(lent, std::memory_order_relaxed);
  kept_ += block->bytes;
  shrink(limit(), leaving);
  return {&desk, block};
}

void Room::put_back(Desk& desk, MemoryBlock* block) noexcept {
  block->use_only(0);
  desk.used_at.store(look_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  desk.block.store(block, std::memory_order_release);
  if (kept_.load(std::memory_order_relaxed) <= limit()) return;
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  shrink(limit(), leaving);
}

void Room::set_limit(size_t bytes) {
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  limit_.store(bytes, std::memory_order_relaxed);
  shrink(bytes, leaving);
}

void Room::empty(Clock::duration unused_for) {
  Leaving leaving;
  const std::lock_guard lock(mutex_);
  unused_for > Clock::duration::zero() ? give_up_unused(unused_for, leaving) : shrink(0, leaving);
}

MemoryStats Room::stats() {
  const std::lock_guard lock(mutex_);
  return {limit(), kept_, reused_, allocated_, released_};
}

Room::Room() : limit_(limit_from_environment()) { empty_at_forks(); }

void Room::empty_at_forks() {
#ifndef _WIN32
  // After a fork each page that is written to is copied first, in either process: what was kept would be worth nothing.
  pthread_atfork(
      [] {
        Room& room = instance();
        room.mutex_.lock();
        Leaving leaving;
        room.shrink(0, leaving);
      },
      [] { instance().mutex_.unlock(); },
      [] {
        Room& room = instance();
        room.forget_other_threads();
        Leaving leaving;
        room.shrink(0, leaving);  // what threads have put back meanwhile
        room.mutex_.unlock();
      });
#endif
}

Desk& Room::desk_of_thread() {
  static std::atomic<size_t> threads = 0;
  thread_local const size_t number = threads++;
  return desks_[number % desks_.size()];
}

void Room::remove(MemoryBlock* block) {
  by_age_.remove(block);
  of_size_[size_index(block->bytes)].remove(block);
  kept_ -= block->bytes;
}

void Room::leave(MemoryBlock* block, Leaving& leaving) {
  leaving.add(block);
  ++released_;
}

void Room::leave_oldest(Leaving& leaving) {
  MemoryBlock* const block = by_age_.oldest();
  remove(block);
  leave(block, leaving);
}

// A desk whose block is lent keeps it.
void Room::clear(Desk& desk, Leaving& leaving) {
  MemoryBlock* block = desk.block.load(std::memory_order_relaxed);
  if (!block || block == lent || !desk.block.compare_exchange_strong(block, nullptr, std::memory_order_acquire)) return;
  kept_ -= block->bytes;
  leave(block, leaving);
}

void Room::shrink(size_t most, Leaving& leaving) {
  while (kept_ > most && by_age_.oldest()) leave_oldest(leaving);
  for (size_t i = 0; i < desks_.size() && kept_ > most; ++i) clear(desks_[i], leaving);
}

void Room::give_up_unused(Clock::duration longest, Leaving& leaving) {
  const auto now = Clock::now();
  while (by_age_.oldest() && now - by_age_.oldest()->since >= longest) leave_oldest(leaving);
  if (now - last_look_ < longest) return;
  last_look_ = now;
  const size_t look = look_.fetch_add(1, std::memory_order_relaxed);
  for (Desk& desk : desks_) {
    if (desk.used_at.load(std::memory_order_relaxed) != look) clear(desk, leaving);
  }
}

// After a fork: what they had lent never comes back.
void Room::forget_other_threads() {
  for (Desk& desk : desks_) {
    if (&desk == &desk_of_thread() || desk.block.load(std::memory_order_relaxed) != lent) continue;
    desk.block.store(nullptr, std::memory_order_relaxed);
    kept_ -= least_bytes;
  }
}

}  // namespace fastops::cpu
