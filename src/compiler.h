// What compilers spell differently. The rest of the sources keeps to C++20 (tools/check_extensions.py), so that GCC,
// Clang, Clang in place of MSVC (clang-cl) and MSVC compile it.
#pragma once

#if defined(_MSC_VER) && !defined(__clang__) && defined(_M_X64)
#include <immintrin.h>
#endif

// In front of a function. What files include that are built for different instruction sets: a function that is not
// inlined would be one for all of them.
#if defined(_MSC_VER)
#define FASTOPS_ALWAYS_INLINE __forceinline
#else
#define FASTOPS_ALWAYS_INLINE inline __attribute__((always_inline))
#endif

// FASTOPS_FEWER_REGISTERS in front of a function: GCC does not keep addresses of its own choice for each step of a
// loop.
#if defined(__GNUC__) && !defined(__clang__)
#define FASTOPS_FEWER_REGISTERS __attribute__((optimize("no-ivopts")))
#else
#define FASTOPS_FEWER_REGISTERS
#endif

// FASTOPS_FLATTEN in front of a function: what it calls is part of it, as far as the compiler sees its definition.
// FASTOPS_INLINE_LAMBDA behind the parameters of a lambda. FASTOPS_UNROLL(n) in front of a loop: n of its steps at
// once. FASTOPS_TARGET(name) in front of a function that has an instruction set of its own. FASTOPS_PREFETCH: a cache
// line that is read soon; _OUTER, not into the first cache; _WRITE, to be written.
#if defined(__GNUC__) || defined(__clang__)
#define FASTOPS_PRAGMA(text) _Pragma(#text)
#define FASTOPS_FLATTEN __attribute__((flatten))
#define FASTOPS_INLINE_LAMBDA __attribute__((always_inline))
#define FASTOPS_UNROLL(count) FASTOPS_PRAGMA(GCC unroll count)
#define FASTOPS_TARGET(name) __attribute__((target(name)))
#define FASTOPS_PREFETCH(address) __builtin_prefetch(address)
#define FASTOPS_PREFETCH_OUTER(address) __builtin_prefetch(address, 0, 2)
#define FASTOPS_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)
#else
#define FASTOPS_FLATTEN
#define FASTOPS_INLINE_LAMBDA
#define FASTOPS_UNROLL(count)
#define FASTOPS_TARGET(name)
#if defined(_M_X64)
#define FASTOPS_PREFETCH(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0)
#define FASTOPS_PREFETCH_OUTER(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T1)
#define FASTOPS_PREFETCH_WRITE(address) FASTOPS_PREFETCH(address)
#else
#define FASTOPS_PREFETCH(address) static_cast<void>(address)
#define FASTOPS_PREFETCH_OUTER(address) static_cast<void>(address)
#define FASTOPS_PREFETCH_WRITE(address) static_cast<void>(address)
#endif
#endif
