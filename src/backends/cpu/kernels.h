// The CPU kernels: raw pointers and sizes, no tensors, one thread. Built once per instruction set (kernels/); the
// binding files beside this one unwrap tensors and share the work among threads.
#pragma once

#include <cstdint>

#include "activations/activations.h"
#include "activations/jet.h"
#include "activations/table.h"
#include "export.h"

namespace fastops::cpu {

enum class Dtype : int { float32, float64, bfloat16, float16 };
inline constexpr int dtype_count = 4;

// 16-bit types are computed with, and their sums kept, in float32.
inline constexpr int64_t accumulator_size(Dtype dtype) {
  return dtype == Dtype::float64 ? sizeof(double) : sizeof(float);
}

using ActivationParams = Params<double>;

// A matrix whose rows are `stride` elements apart and contiguous within.
struct Rows {
  void* data;
  int64_t stride;
};
struct ConstRows {
  const void* data;
  int64_t stride;
};

// y[i] = f(x[i])
using ForwardKernel = void (*)(const void* x, void* y, int64_t n, ActivationParams);

// dx[i] = grad[i] * d(saved[i]), d the derivative of some order in terms of the input or of the output
using BackwardKernel = void (*)(const void* grad, const void* saved, void* dx, int64_t n, ActivationParams);

// y[r, c] = f(x[r, c] + bias[c])
using BiasForwardKernel = void (*)(ConstRows x, const void* bias, Rows y, int64_t rows, int64_t columns,
                                   ActivationParams);

// dx[r, c] = grad[r, c] * f'(saved[r, c] + bias[c]), or in terms of the output; sums[c] = sum of dx[:, c], in the
// accumulator's type. `bias`, `dx.data` and `sums` may be null.
using BiasBackwardKernel = void (*)(ConstRows grad, ConstRows saved, const void* bias, Rows dx, void* sums,
                                    int64_t rows, int64_t columns, ActivationParams);

// y[r, c] = f(gate[r, c]) * up[r, c]
using GatedForwardKernel = void (*)(ConstRows gate, ConstRows up, Rows y, int64_t rows, int64_t columns,
                                    ActivationParams);

// dgate = grad * up * f'(gate), dup = grad * f(gate); `dgate.data` and `dup.data` may be null.
using GatedBackwardKernel = void (*)(ConstRows grad, ConstRows gate, ConstRows up, Rows dgate, Rows dup, int64_t rows,
                                     int64_t columns, ActivationParams);

// The kernels of one activation for one dtype. Those in terms of the output are null where the activation has none.
struct Kernels {
  ForwardKernel forward;
  BackwardKernel backward[max_order];
  BackwardKernel backward_from_output[max_order];
  BiasForwardKernel bias_forward;
  BiasBackwardKernel bias_backward;
  BiasBackwardKernel bias_backward_from_output;
  GatedForwardKernel gated_forward;
  GatedBackwardKernel gated_backward;
};

struct KernelTable {
  Kernels entries[activation_count][dtype_count];

  Kernels& at(Activation activation, Dtype dtype) {
    return entries[static_cast<int>(activation)][static_cast<int>(dtype)];
  }
};

// The kernels of the instruction set in use.
const Kernels& kernels(Activation activation, Dtype dtype);

// The instruction set in use: "default", "avx2", "avx512" (capability.cpp says how it is chosen).
FASTOPS_API const char* capability();

// Each instruction set fills the table from its own build of kernels/*.cpp.
#define FASTOPS_DECLARE_TIER(TIER)           \
  namespace TIER {                           \
  void add_activation_kernels(KernelTable&); \
  void add_bias_act_kernels(KernelTable&);   \
  void add_gated_act_kernels(KernelTable&);  \
  }
FASTOPS_DECLARE_TIER(DEFAULT)
FASTOPS_DECLARE_TIER(AVX2)
FASTOPS_DECLARE_TIER(AVX512)
#undef FASTOPS_DECLARE_TIER

}  // namespace fastops::cpu
