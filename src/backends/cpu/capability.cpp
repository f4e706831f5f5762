// Chooses the instruction set: what PyTorch itself uses on this CPU (its choice honours ATEN_CPU_CAPABILITY), unless
// FASTOPS_CPU_CAPABILITY asks for a lesser one: default, avx2, avx512.
#include <ATen/Version.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/roofs.h"
#include "ops/activation_spec.h"
#include "ops/environment.h"

namespace fastops::cpu {
namespace {

struct Tier {
  std::string name;
  void (*fill)(KernelTable&);
  RoofKernels (*roofs)();
};

template <void (*... add)(KernelTable&)>
void fill(KernelTable& table) {
  (add(table), ...);
}

#define FASTOPS_TIER(TIER)                                                                                            \
  fill<TIER::add_activation_kernels, TIER::add_bias_act_kernels, TIER::add_gated_act_kernels, TIER::add_gemm_kernels, \
       TIER::add_layer_kernels>

// What this CPU runs, best first.
std::vector<Tier> usable_tiers() {
  std::vector<Tier> usable = {
      {"default", fill<DEFAULT::add_activation_kernels, DEFAULT::add_bias_act_kernels, DEFAULT::add_gated_act_kernels>,
       DEFAULT::roof_kernels}};
  [[maybe_unused]] const std::string torch_uses = at::get_cpu_capability();
#ifdef FASTOPS_AVX2_TIER
  if (torch_uses == "AVX2" || torch_uses == "AVX512") {
    usable.insert(usable.begin(), {"avx2", FASTOPS_TIER(AVX2), AVX2::roof_kernels});
  }
#endif
#ifdef FASTOPS_AVX512_TIER
  if (torch_uses == "AVX512") usable.insert(usable.begin(), {"avx512", FASTOPS_TIER(AVX512), AVX512::roof_kernels});
#endif
  return usable;
}

Tier choose() {
  const std::vector<Tier> usable = usable_tiers();
  std::vector<std::string> names;
  for (const Tier& tier : usable) names.push_back(tier.name);
  const std::string wanted = environment_choice("FASTOPS_CPU_CAPABILITY", names);
  const auto tier = std::find(names.begin(), names.end(), wanted);
  return usable[tier == names.end() ? 0 : tier - names.begin()];
}

const Tier& chosen() {
  static const Tier tier = choose();
  return tier;
}
const ReadAtImport chosen_at_import([] { chosen(); });

KernelTable& table() {
  static KernelTable* const table = [] {
    auto* filled = new KernelTable();
    chosen().fill(*filled);
    return filled;
  }();
  return *table;
}

}  // namespace

const Kernels& kernels(Activation activation, Dtype dtype) {
  const Kernels& found = table().at(activation, dtype);
#ifdef FASTOPS_FEW_ACTIVATIONS
  TORCH_CHECK_NOT_IMPLEMENTED(found.forward, "fastops: this build has no kernels of ", info(activation).name);
#endif
  return found;
}

const GemmKernels& gemm_kernels(Dtype dtype) { return table().gemm[static_cast<int>(dtype)]; }
RoofKernels roof_kernels() { return chosen().roofs(); }

const char* capability() { return chosen().name.c_str(); }

}  // namespace fastops::cpu
