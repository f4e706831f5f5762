// Each device has a region of memory that is mapped twice: once without any access, at the addresses that tensors hold,
// and once for the kernels. Code of the host that follows a device pointer therefore crashes, as with a real device.
#include "memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "device.h"

namespace hostmem {
namespace {

constexpr size_t region_bytes = size_t{1} << 36;  // addresses; memory is taken when it is written

class Region {
 public:
  Region() {
#ifdef __linux__
    const int file = memfd_create("hostmem", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, region_bytes) == 0, "hostmem: no memory for the device");
    device_ = map(PROT_NONE, MAP_SHARED | MAP_NORESERVE, file);
    host_ = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file);
    close(file);
#else
    device_ = host_ = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1);
#endif
  }

  bool contains(const void* pointer) const { return pointer >= device_ && pointer < device_ + region_bytes; }
  char* on_host(const void* pointer) const { return host_ + (static_cast<const char*>(pointer) - device_); }

  // Blocks have a power of two of bytes; one that is given back serves the next request of its size.
  void* allocate(size_t bytes) {
    const size_t size = std::bit_ceil(std::max<size_t>(bytes, 512));
    const std::lock_guard lock(mutex_);
    char* block = take(cached_, size);
    if (!block) {
      block = take(released_, size);
      if (!block) {
        TORCH_CHECK_WITH(OutOfMemoryError, size <= region_bytes - used_, "hostmem: out of memory: tried to allocate ",
                         bytes, " bytes, but ", region_bytes - used_, " of ", region_bytes, " are free");
        block = device_ + used_;
        used_ += size;
      }
      stats_.reserved_bytes[0].increase(size);
    }
    blocks_[block] = size;
    stats_.allocation[0].increase(1);
    stats_.allocated_bytes[0].increase(size);
    stats_.requested_bytes[0].increase(bytes);
    std::memset(on_host(block), 0xff, bytes);  // NaN: an element that is never written shows
    return block;
  }

  void free(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(pointer));
    cached_.emplace(found->second, found->first);
    stats_.allocation[0].decrease(1);
    stats_.allocated_bytes[0].decrease(found->second);
    blocks_.erase(found);
  }

  // Gives the memory of the blocks that nobody uses back to the system.
  void empty_cache() {
    const std::lock_guard lock(mutex_);
    for (const auto& [size, block] : cached_) {
      stats_.reserved_bytes[0].decrease(size);
#ifdef __linux__
      if (size >= static_cast<size_t>(getpagesize())) madvise(on_host(block), size, MADV_REMOVE);
#endif
    }
    released_.merge(cached_);
  }

  template <class F>
  auto with_stats(F f) {
    const std::lock_guard lock(mutex_);
    return f(stats_);
  }

 private:
  using Blocks = std::multimap<size_t, char*>;

  static char* map(int protection, int flags, int file) {
    void* memory = mmap(nullptr, region_bytes, protection, flags, file, 0);
    TORCH_CHECK(memory != MAP_FAILED, "hostmem: no addresses for the device");
    return static_cast<char*>(memory);
  }

  static char* take(Blocks& blocks, size_t size) {
    const auto found = blocks.find(size);
    if (found == blocks.end()) return nullptr;
    char* block = found->second;
    blocks.erase(found);
    return block;
  }

  char* device_;
  char* host_;
  size_t used_ = 0;
  std::map<char*, size_t> blocks_;
  Blocks cached_, released_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
  std::mutex mutex_;
};

// For the life of the process: tensors may be freed after static destructors have run.
Region& region(int device) {
  static auto* const regions = new std::array<Region, device_count>();
  return regions->at(device);
}

void free_block(void* pointer) {
  if (pointer) region(device_of(pointer)).free(pointer);
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(device_type, static_cast<c10::DeviceIndex>(current_device()));
    void* block = bytes ? region(device.index()).allocate(bytes) : nullptr;
    return {block, block, free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(host_pointer(to), host_pointer(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int device = 0; device < device_count; ++device) region(device).empty_cache();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // a kernel is done when its call returns
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return region(device).with_stats([](const auto& stats) { return stats; });
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto reserved = static_cast<size_t>(getDeviceStats(device).reserved_bytes[0].current);
    return {region_bytes - reserved, region_bytes};
  }

 private:
  template <class F>
  static void each_stat(int device, F f) {
    region(device).with_stats([&](auto& stats) {
      f(stats.allocation[0]), f(stats.allocated_bytes[0]), f(stats.reserved_bytes[0]), f(stats.requested_bytes[0]);
    });
  }
};

// Page-locked on a real system; here it only knows its own.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    if (memory) {
      const std::lock_guard lock(mutex());
      ranges()[static_cast<char*>(memory)] = bytes;
    }
    return {memory, memory, release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  static bool owns(const void* pointer) {
    const std::lock_guard lock(mutex());
    auto range = ranges().upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    if (range == ranges().begin()) return false;
    --range;
    return pointer < range->first + range->second;
  }

 private:
  static void release(void* memory) {
    if (!memory) return;
    const std::lock_guard lock(mutex());
    ranges().erase(static_cast<char*>(memory));
    std::free(memory);
  }
  static std::mutex& mutex() {
    static auto* const mutex = new std::mutex();
    return *mutex;
  }
  static std::map<char*, size_t>& ranges() {
    static auto* const ranges = new std::map<char*, size_t>();
    return *ranges;
  }
};

DeviceAllocator the_device_allocator;
PinnedAllocator the_pinned_allocator;
REGISTER_ALLOCATOR(device_type, &the_device_allocator)

}  // namespace

int device_of(const void* pointer) {
  for (int device = 0; device < device_count; ++device) {
    if (region(device).contains(pointer)) return device;
  }
  return -1;
}

void* host_pointer(const void* pointer) {
  if (!pointer) return nullptr;
  const int device = device_of(pointer);
  TORCH_INTERNAL_ASSERT(device >= 0, "hostmem: not a device pointer");
  return region(device).on_host(pointer);
}

c10::Allocator* device_allocator() { return &the_device_allocator; }
c10::Allocator* pinned_allocator() { return &the_pinned_allocator; }
bool is_pinned(const void* pointer) { return PinnedAllocator::owns(pointer); }

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto* const impl = storage.unsafeGetStorageImpl();
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = the_device_allocator.allocate(bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes())) {
    the_device_allocator.copy_data(data.get(), storage.data(), kept);
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != device_type) return tensor;
  at::Tensor view = at::from_blob(host_pointer(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                                  tensor.options().device(c10::kCPU).pinned_memory(false));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

}  // namespace hostmem
