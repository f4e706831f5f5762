#include "backends/cpu/pages.h"

#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fastops::cpu {

void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + huge_page - 1) / huge_page * huge_page;
  const uintptr_t last = (begin + bytes) / huge_page * huge_page;
  // It is a hint: where it is refused, nothing is lost.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

namespace {

size_t alignment_of(size_t bytes) { return bytes < huge_page ? cache_line : huge_page; }

}  // namespace

void* allocate_pages(size_t bytes) {
  const size_t unit = alignment_of(bytes);
  const size_t size = round_up(bytes, unit);
  void* const data = ::operator new(size, std::align_val_t(unit));
  if (unit == huge_page) advise_huge_pages(data, size);
  return data;
}

void release_pages(void* data, size_t bytes) {
  if (data) ::operator delete(data, std::align_val_t(alignment_of(bytes)));
}

}  // namespace fastops::cpu
