// Autocast: PyTorch's own lists of what runs in the lower dtype, in float32 and in the widest type. The rules of
// fastops' ops are in fastops.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {

// What has no rule is left alone. PyTorch registers this for its own devices, but not for this key.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define HOSTMEM_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define HOSTMEM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define HOSTMEM_FP32_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define HOSTMEM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(HOSTMEM_LOWER)
  AT_FORALL_FP32(HOSTMEM_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(HOSTMEM_FP32_RESULT)
  AT_FORALL_PROMOTE(HOSTMEM_PROMOTE)
}

}  // namespace at::autocast
