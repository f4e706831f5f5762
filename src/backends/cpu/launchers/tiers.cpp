// The kernels of every instruction set, and of the one that is used.
#include <string_view>

#include "backends/cpu/kernels.h"
#include "backends/cpu/roofs.h"

namespace fastops::cpu {
namespace {

struct Tier {
  std::string_view name;
  void (*fill)(KernelTable&);
  RoofKernels (*roofs)();
};

template <void (*... add)(KernelTable&)>
void fill(KernelTable& table) {
  (add(table), ...);
}

// The elementwise ones, and with products.
#define FASTOPS_ELEMENTWISE_OF(TIER)                                                               \
  TIER::add_activation_kernels, TIER::add_activation_backward_kernels, TIER::add_bias_act_kernels, \
      TIER::add_bias_act_backward_kernels, TIER::add_gated_act_kernels, TIER::add_row_kernels
#define FASTOPS_KERNELS_OF(TIER)                                                                              \
  FASTOPS_ELEMENTWISE_OF(TIER), TIER::add_gated_layer_kernels, TIER::add_gemm_kernels, TIER::add_jet_kernels, \
      TIER::add_layer_kernels, TIER::add_unpacked_kernels
#ifdef FASTOPS_AVX512_TIER
RoofKernels roofs_with_tiles() {
  RoofKernels kernels = AVX512::roof_kernels();
  kernels.bfloat16 = AMX::tile_products();
  return kernels;
}
#endif
constexpr Tier tiers[] = {
#ifdef FASTOPS_AVX512_TIER
    {"amx", fill<FASTOPS_KERNELS_OF(AVX512), AVX512_BF16::add_bfloat16_products, AMX::add_tile_products>,
     roofs_with_tiles},
    {"avx512_bf16", fill<FASTOPS_KERNELS_OF(AVX512), AVX512_BF16::add_bfloat16_products>, AVX512::roof_kernels},
    {"avx512", fill<FASTOPS_KERNELS_OF(AVX512)>, AVX512::roof_kernels},
#endif
#ifdef FASTOPS_AVX2_TIER
    {"avx2", fill<FASTOPS_KERNELS_OF(AVX2)>, AVX2::roof_kernels},
#endif
#ifdef FASTOPS_SVE_TIERS
    {"sve256", fill<FASTOPS_ELEMENTWISE_OF(SVE256)>, SVE256::roof_kernels},
    {"sve128", fill<FASTOPS_ELEMENTWISE_OF(SVE128)>, SVE128::roof_kernels},
#endif
    {"default", fill<FASTOPS_ELEMENTWISE_OF(DEFAULT)>, DEFAULT::roof_kernels},
};

const Tier* find_tier(std::string_view name) {
  for (const Tier& tier : tiers) {
    if (tier.name == name) return &tier;
  }
  return nullptr;
}

const char* (*choose)() = [] { return "default"; };

const Tier& chosen() {
  static const Tier& tier = *find_tier(choose());
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

bool has_tier(const char* name) { return find_tier(name); }
void choose_tier_by(const char* (*choice)()) { choose = choice; }
const char* capability() { return chosen().name.data(); }

const Kernels& kernels(Activation activation, Dtype dtype) { return table().at(activation, dtype); }
const GemmKernels& gemm_kernels(Dtype dtype) { return table().gemm[static_cast<int>(dtype)]; }
const RowKernels& row_kernels(Dtype dtype) { return table().rows[static_cast<int>(dtype)]; }
const UnpackedKernels& unpacked_kernels(Dtype dtype) { return table().unpacked[static_cast<int>(dtype)]; }
RoofKernels roof_kernels() { return chosen().roofs(); }

}  // namespace fastops::cpu
