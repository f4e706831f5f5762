// What the address sanitizer shall report: use of memory that is kept, and of what lies between the pieces of a
// workspace.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace fastops::cpu {

#ifdef __SANITIZE_ADDRESS__
inline constexpr size_t fence_bytes = 64;  // behind each piece
inline void poison(void* data, size_t bytes) { __asan_poison_memory_region(data, bytes); }
inline void unpoison(void* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
#else
inline constexpr size_t fence_bytes = 0;
inline void poison(void*, size_t) {}
inline void unpoison(void*, size_t) {}
#endif

}  // namespace fastops::cpu
