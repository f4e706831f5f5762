// Chooses the instruction set: what PyTorch itself uses on this CPU (its choice honours ATEN_CPU_CAPABILITY), unless
// FASTOPS_CPU_CAPABILITY asks for a lesser one: default, avx2, avx512, avx512_bf16, amx; default, sve128 or sve256.
#include <ATen/Version.h>

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <string>
#include <vector>

#include "backends/cpu/cpu_traits.h"
#include "backends/cpu/kernels.h"
#include "ops/environment.h"

namespace fastops::cpu {

bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

namespace {

// What this CPU runs, best first.
std::vector<std::string> usable_tiers() {
  const std::string torch_uses = at::get_cpu_capability();
  const CpuTraits cpu = cpu_traits();
  std::vector<std::string> usable = {"default"};
  if (torch_uses == "AVX2" || torch_uses == "AVX512") usable.insert(usable.begin(), "avx2");
  if (torch_uses == "AVX512") usable.insert(usable.begin(), "avx512");
  if (torch_uses == "AVX512" && cpu.has_bfloat16) {
    // Numbers of 16 bits are converted and multiplied in float32 where that is faster.
    usable.insert(usable.begin() + (cpu.has_slow_bfloat16 ? 1 : 0), "avx512_bf16");
    if (cpu.has_tiles && may_use_tiles()) usable.insert(usable.begin(), "amx");
  }
  // Each has vectors of one length, and CPUs of another do not run it.
  if (torch_uses == "SVE128" && cpu.has_bfloat16) usable.insert(usable.begin(), "sve128");
  if (torch_uses == "SVE256" && cpu.has_bfloat16) usable.insert(usable.begin(), "sve256");
  std::erase_if(usable, [](const std::string& tier) { return !has_tier(tier.c_str()); });
  return usable;
}

const char* choose() {
  static const std::string chosen = [] {
    const std::vector<std::string> usable = usable_tiers();
    const std::string wanted = environment_choice("FASTOPS_CPU_CAPABILITY", usable);
    return wanted.empty() ? usable.front() : wanted;
  }();
  return chosen.c_str();
}

const bool is_chosen_here = (choose_tier_by(choose), true);
const ReadAtImport chosen_at_import([] { capability(); });

}  // namespace
}  // namespace fastops::cpu
