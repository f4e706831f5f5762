// The instructions of matrix cores, one name for each whatever the type: sum += a * b, sum in float32, all threads of a
// wave at once. matrix.h says which elements of the matrices a lane holds.
//
// FASTOPS_MFMA, FASTOPS_WMMA_GFX11, FASTOPS_WMMA_GFX12 and FASTOPS_MMA_SYNC say which of them there are: on a GPU at
// most one, in the emulator all.
#pragma once

#include "backends/hip/kernels/number.h"

#if !defined(__HIP__) && !defined(__CUDACC__)
#include "backends/hip/emulator/matrix.h"
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || \
    defined(__gfx942__) || defined(__gfx950__)
#define FASTOPS_MFMA
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1152__) || defined(__gfx1153__)
#define FASTOPS_WMMA_GFX11
#elif defined(__gfx1200__) || defined(__gfx1201__)
#define FASTOPS_WMMA_GFX12
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define FASTOPS_MMA_SYNC
#endif

#if defined(__HIP__) || defined(__CUDACC__)
namespace fastops::hip {

#if defined(__HIP__)

// `count` numbers in registers, as the compiler's builtins take them.
template <class T, int count>
using Registers = T __attribute__((ext_vector_type(count)));

template <class T, class Storage, int count>
__device__ Registers<T, count> registers(const Storage (&numbers)[count]) {
  Registers<T, count> result;
  memcpy(&result, numbers, sizeof(result));
  return result;
}

template <class Result, int count>
__device__ void assign(float (&sum)[count], Result result) {
  static_assert(sizeof(sum) == sizeof(result), "");
  memcpy(sum, &result, sizeof(sum));
}

#endif

#if defined(FASTOPS_MFMA)

__device__ inline void mfma_16x16x16(float (&sum)[4], const float16 (&a)[4], const float16 (&b)[4]) {
  assign(sum, __builtin_amdgcn_mfma_f32_16x16x16f16(registers<_Float16>(a), registers<_Float16>(b),
                                                    registers<float>(sum), 0, 0, 0));
}
#if !defined(__gfx908__)
__device__ inline void mfma_16x16x16(float (&sum)[4], const bfloat16 (&a)[4], const bfloat16 (&b)[4]) {
  assign(sum, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(registers<short>(a), registers<short>(b), registers<float>(sum),
                                                        0, 0, 0));
}
#endif
__device__ inline void mfma_16x16x4(float (&sum)[4], float a, float b) {
  assign(sum, __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, registers<float>(sum), 0, 0, 0));
}

#elif defined(FASTOPS_WMMA_GFX11)

__device__ inline void wmma_gfx11(float (&sum)[8], const float16 (&a)[16], const float16 (&b)[16]) {
  assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(registers<_Float16>(a), registers<_Float16>(b),
                                                         registers<float>(sum)));
}
__device__ inline void wmma_gfx11(float (&sum)[8], const bfloat16 (&a)[16], const bfloat16 (&b)[16]) {
  assign(sum,
         __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(registers<short>(a), registers<short>(b), registers<float>(sum)));
}

#elif defined(FASTOPS_WMMA_GFX12)

__device__ inline void wmma_gfx12(float (&sum)[8], const float16 (&a)[8], const float16 (&b)[8]) {
  assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(registers<_Float16>(a), registers<_Float16>(b),
                                                               registers<float>(sum)));
}
__device__ inline void wmma_gfx12(float (&sum)[8], const bfloat16 (&a)[8], const bfloat16 (&b)[8]) {
  assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(registers<short>(a), registers<short>(b),
                                                                registers<float>(sum)));
}

#elif defined(FASTOPS_MMA_SYNC)

#define FASTOPS_MMA(Storage, type)                                                                        \
  __device__ inline void mma_m16n8k16(float (&sum)[4], const Storage(&a)[8], const Storage(&b)[4]) {      \
    uint32_t left[4];                                                                                     \
    uint32_t right[2];                                                                                    \
    memcpy(left, a, sizeof(left));                                                                        \
    memcpy(right, b, sizeof(right));                                                                      \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                   \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                 \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1])); \
  }
FASTOPS_MMA(float16, "f16")
FASTOPS_MMA(bfloat16, "bf16")
#undef FASTOPS_MMA

#endif

}  // namespace fastops::hip
#endif
