// Memory in huge pages where the system gives them on request (Linux): one page fault instead of 512.
//
// glibc takes every block of 32 MiB or more afresh from the system and gives it back at once when it is freed. Each
// call that returns such a tensor then takes longer for its page faults than for its work.
#pragma once

#include <ATen/core/Tensor.h>

namespace fastops::cpu {

inline constexpr size_t huge_page = size_t{2} << 20;

// Asks for huge pages for those that lie wholly within a block.
void advise_huge_pages(void* data, size_t bytes);

// Memory for any type, aligned to cache lines; large pieces in huge pages.
void* allocate_pages(size_t bytes);
void release_pages(void* data, size_t bytes);

// A tensor that was just made and not yet written to, in huge pages if it is large.
at::Tensor in_huge_pages(at::Tensor fresh);

}  // namespace fastops::cpu
