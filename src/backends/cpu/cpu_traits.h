// What is to be known of a CPU beyond the instruction sets that PyTorch tells apart.
#pragma once

#include <cstdint>

#include "compiler.h"

#if defined(_M_X64)
#include <intrin.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace fastops::cpu {

struct CpuTraits {
  bool is_intel = false;
  bool is_zen4 = false;       // with AVX-512; Zen 3, of the same family, has none
  bool has_bfloat16 = false;  // instructions that multiply 16-bit numbers
  bool has_float16 = false;
  bool has_slow_bfloat16 = false;  // slower than those of float32, and no tiles
  bool has_tiles = false;          // of bfloat16 (AMX)
};

// Whether this process may use the tiles of AMX, on a CPU that has them. Linux wants to be asked, as a signal handler's
// stack needs more room then (its Documentation/arch/x86/xstate.rst); other systems are not known to have them.
bool may_use_tiles();

#if defined(_M_X64) || defined(__x86_64__)
struct Registers {
  uint32_t eax, ebx, ecx, edx;
};

// What the instruction of this name says: Intel's manual, volume 2A.
FASTOPS_ALWAYS_INLINE Registers cpuid(uint32_t leaf, uint32_t part) {
  Registers out;
#if defined(_M_X64)
  __cpuidex(reinterpret_cast<int*>(&out), static_cast<int>(leaf), static_cast<int>(part));
#else
  __cpuid_count(leaf, part, out.eax, out.ebx, out.ecx, out.edx);
#endif
  return out;
}

FASTOPS_ALWAYS_INLINE CpuTraits cpu_traits() {
  constexpr uint32_t genu = 0x756e6547;  // as "GenuineIntel" begins
  constexpr uint32_t auth = 0x68747541;  // as "AuthenticAMD" begins
  constexpr uint32_t features = 7;
  const Registers vendor = cpuid(0, 0);
  CpuTraits traits{.is_intel = vendor.ebx == genu};
  if (vendor.eax < features) return traits;
  const Registers found = cpuid(features, 0);
  const uint32_t version = cpuid(1, 0).eax;
  const uint32_t family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
  const bool has_avx512 = found.ebx >> 16 & 1;
  traits.is_zen4 = vendor.ebx == auth && family == 0x19 && has_avx512;
  traits.has_tiles = found.edx >> 22 & 1;
  traits.has_float16 = found.edx >> 23 & 1;
  traits.has_bfloat16 = found.eax > 0 && (cpuid(features, 1).eax >> 5 & 1);
  // Golden Cove and later cores begin one for pairs in two cycles, and two of float32 in each. Measured.
  traits.has_slow_bfloat16 = traits.is_intel && traits.has_bfloat16 && traits.has_float16 && !traits.has_tiles;
  return traits;
}
#elif defined(__linux__) && defined(__aarch64__)
FASTOPS_ALWAYS_INLINE CpuTraits cpu_traits() {
  constexpr unsigned long with_bfloat16 = 1 << 14;  // HWCAP2_BF16
  return {.has_bfloat16 = (getauxval(AT_HWCAP2) & with_bfloat16) != 0};
}
#else
FASTOPS_ALWAYS_INLINE CpuTraits cpu_traits() { return {}; }
#endif

}  // namespace fastops::cpu
