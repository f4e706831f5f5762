// Memory in huge pages where the system gives them on request (Linux): one page fault instead of 512.
#pragma once

#include <cstddef>

namespace fastops::cpu {

inline constexpr size_t cache_line = 64;
inline constexpr size_t huge_page = size_t{2} << 20;

inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Asks for huge pages for those that lie wholly within a block.
void advise_huge_pages(void* data, size_t bytes);

// Memory for any type, aligned to cache lines; large pieces in huge pages.
void* allocate_pages(size_t bytes);
void release_pages(void* data, size_t bytes);

}  // namespace fastops::cpu
