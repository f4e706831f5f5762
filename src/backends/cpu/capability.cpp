// Chooses the instruction set: what PyTorch itself uses on this CPU (its choice honours ATEN_CPU_CAPABILITY), unless
// FASTOPS_CPU_CAPABILITY asks for a lesser one: default, avx2, avx512, avx512_bf16.
#include <ATen/Version.h>

#include <string>
#include <vector>

#include "backends/cpu/cpu_traits.h"
#include "backends/cpu/kernels.h"
#include "ops/environment.h"

namespace fastops::cpu {
namespace {

// What this CPU runs, best first.
std::vector<std::string> usable_tiers() {
  const std::string torch_uses = at::get_cpu_capability();
  std::vector<std::string> usable = {"default"};
  if (torch_uses == "AVX2" || torch_uses == "AVX512") usable.insert(usable.begin(), "avx2");
  if (torch_uses == "AVX512") usable.insert(usable.begin(), "avx512");
  if (torch_uses == "AVX512" && cpu_traits().has_bfloat16) usable.insert(usable.begin(), "avx512_bf16");
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
