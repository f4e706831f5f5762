// Chooses the instruction set: what PyTorch itself uses on this CPU (its choice honours ATEN_CPU_CAPABILITY), unless
// FASTOPS_CPU_CAPABILITY asks for a lesser one: default, avx2, avx512.
#include <ATen/Version.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/roofs.h"

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
#ifdef FASTOPS_X86_TIERS
  const std::string torch_uses = at::get_cpu_capability();
  const bool avx512 = torch_uses == "AVX512";
  if (avx512 || torch_uses == "AVX2") usable.insert(usable.begin(), {"avx2", FASTOPS_TIER(AVX2), AVX2::roof_kernels});
  if (avx512) usable.insert(usable.begin(), {"avx512", FASTOPS_TIER(AVX512), AVX512::roof_kernels});
#endif
  return usable;
}

Tier choose() {
  const std::vector<Tier> usable = usable_tiers();
  const char* wanted = std::getenv("FASTOPS_CPU_CAPABILITY");
  if (!wanted || !*wanted) return usable.front();
  std::string names;
  for (const Tier& tier : usable) {
    if (tier.name == wanted) return tier;
    names += (names.empty() ? "" : ", ") + tier.name;
  }
  TORCH_CHECK_VALUE(false, "fastops: FASTOPS_CPU_CAPABILITY is '", wanted, "', but here it can be one of: ", names);
}

const Tier& chosen() {
  static const Tier tier = choose();
  return tier;
}

KernelTable& table() {
  static KernelTable* const table = [] {
    auto* filled = new KernelTable();
    chosen().fill(*filled);
    return filled;
  }();
  return *table;
}

}  // namespace

const Kernels& kernels(Activation activation, Dtype dtype) { return table().at(activation, dtype); }

const GemmKernels& gemm_kernels(Dtype dtype) { return table().gemm[static_cast<int>(dtype)]; }
RoofKernels roof_kernels() { return chosen().roofs(); }

const char* capability() { return chosen().name.c_str(); }

}  // namespace fastops::cpu
