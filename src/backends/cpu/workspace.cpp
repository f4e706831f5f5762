#include "backends/cpu/workspace.h"

#include <algorithm>
#include <utility>

#include "backends/cpu/pages.h"

namespace fastops::cpu {
namespace {

// What a thread keeps at most. A training step of a transformer's feed-forward block (768-3072-768, 2048 rows) takes
// 60 MiB.
constexpr size_t most_kept = size_t{256} << 20;

}  // namespace

struct Workspace::Buffer {
  char* data = nullptr;
  size_t size = 0;
  size_t wanted = 0;  // the most that a call has taken
  bool in_use = false;

  ~Buffer() { release_pages(data, size); }
};

Workspace::Buffer& Workspace::kept() {
  thread_local Buffer buffer;
  return buffer;
}

Workspace::Workspace() : owner_(!kept().in_use) {
  if (!owner_) return;
  Buffer& buffer = kept();
  if (buffer.wanted > buffer.size && buffer.wanted <= most_kept) {
    release_pages(std::exchange(buffer.data, nullptr), std::exchange(buffer.size, 0));
    buffer.data = static_cast<char*>(allocate_pages(buffer.wanted));
    buffer.size = buffer.wanted;
  }
  buffer.in_use = true;
}

Workspace::~Workspace() {
  for (const auto& [data, bytes] : extra_) release_pages(data, bytes);
  if (!owner_) return;
  Buffer& buffer = kept();
  buffer.wanted = std::max(buffer.wanted, used_ + beyond_);
  buffer.in_use = false;
}

void* Workspace::take(int64_t bytes) {
  const size_t size = round_up(static_cast<size_t>(bytes), cache_line);
  Buffer& buffer = kept();
  if (owner_ && used_ + size <= buffer.size) {
    void* piece = buffer.data + used_;
    used_ += size;
    return piece;
  }
  void* piece = allocate_pages(size);
  extra_.emplace_back(piece, size);
  beyond_ += size;
  return piece;
}

}  // namespace fastops::cpu
