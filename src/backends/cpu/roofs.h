// What the CPU could do at most, to measure kernels against: multiply-adds per second and bytes copied per second.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "export.h"

namespace fastops::cpu {

// Does `iterations` rounds of independent multiply-adds in registers; returns a number that depends on all of them.
using MultiplyAddKernel = float (*)(int64_t iterations);

struct MultiplyAdd {
  MultiplyAddKernel kernel;     // null where the CPU has no such instruction
  int64_t flops_per_iteration;  // a multiply-add counts as two
};

// out[i] = factor * in[i]
using CopyKernel = void (*)(const float* in, float* out, int64_t n, float factor);

struct RoofKernels {
  MultiplyAdd float32;
  MultiplyAdd float64;
  MultiplyAdd bfloat16;  // dot products of pairs, added up in float32
  CopyKernel copy;
  CopyKernel copy_nontemporal;  // with stores that pass the caches by, where there are such
};

// Of each instruction set (kernels/roofs*.cpp), and of the one in use.
namespace DEFAULT {
RoofKernels roof_kernels();
}
namespace AVX2 {
RoofKernels roof_kernels();
}
namespace AVX512 {
RoofKernels roof_kernels();
}
namespace SVE128 {
RoofKernels roof_kernels();
}
namespace SVE256 {
RoofKernels roof_kernels();
}
namespace AMX {
MultiplyAdd tile_products();  // of bfloat16
}
FASTOPS_KERNELS_API RoofKernels roof_kernels();

// Floating-point operations per second of all threads together, the best seen within `seconds`; nothing for a dtype
// that the CPU has no arithmetic for. dtype: "float32", "float64" or "bfloat16".
FASTOPS_API std::optional<double> peak_flops(std::string_view dtype, double seconds);

// Bytes read and written per second by a copy of a float32 tensor of `bytes`, shared among the threads as the
// elementwise ops are; the best seen within `seconds`.
FASTOPS_API double copy_bandwidth(int64_t bytes, bool nontemporal, double seconds);

}  // namespace fastops::cpu
