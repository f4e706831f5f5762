// The instructions of matrix cores, one name for each whatever the type: sum += a * b, sum in float32, all threads of a
// wave at once. A lane has two numbers of a and b in each word; matrix.h says which.
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

template <class T, class Word, int count>
__device__ auto registers(const Word (&words)[count]) {
  Registers<Word, count> result;
#pragma unroll
  for (int i = 0; i < count; ++i) result[i] = words[i];
  return __builtin_bit_cast(Registers<T, count * sizeof(Word) / sizeof(T)>, result);
}

template <class Result, int count>
__device__ void assign(float (&sum)[count], Result result) {
  static_assert(sizeof(sum) == sizeof(result), "");
  memcpy(sum, &result, sizeof(sum));
}

#endif

#if defined(FASTOPS_MFMA)

template <class Storage>
__device__ void mfma_16x16x16(float (&sum)[4], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
  const auto c = registers<float>(sum);
  if constexpr (is_float16<Storage>) {
    assign(sum, __builtin_amdgcn_mfma_f32_16x16x16f16(registers<_Float16>(a), registers<_Float16>(b), c, 0, 0, 0));
  } else {
#if !defined(__gfx908__)
    assign(sum, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(registers<short>(a), registers<short>(b), c, 0, 0, 0));
#endif
  }
}

__device__ inline void mfma_16x16x4(float (&sum)[4], float a, float b) {
  assign(sum, __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, registers<float>(sum), 0, 0, 0));
}

#elif defined(FASTOPS_WMMA_GFX11)

template <class Storage>
__device__ void wmma_gfx11(float (&sum)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  const auto c = registers<float>(sum);
  if constexpr (is_float16<Storage>) {
    assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(registers<_Float16>(a), registers<_Float16>(b), c));
  } else {
    assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(registers<short>(a), registers<short>(b), c));
  }
}

#elif defined(FASTOPS_WMMA_GFX12)

template <class Storage>
__device__ void wmma_gfx12(float (&sum)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  const auto c = registers<float>(sum);
  if constexpr (is_float16<Storage>) {
    assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(registers<_Float16>(a), registers<_Float16>(b), c));
  } else {
    assign(sum, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(registers<short>(a), registers<short>(b), c));
  }
}

#elif defined(FASTOPS_MMA_SYNC)

#define FASTOPS_MMA(type)                                                             \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class Storage>
__device__ void mma_m16n8k16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (is_float16<Storage>) {
    FASTOPS_MMA("f16");
  } else {
    FASTOPS_MMA("bf16");
  }
}
#undef FASTOPS_MMA

// Four matrices of 8 x 8 numbers of 16 bits from shared memory. Lanes 8 i to 8 i + 7 name the lines of matrix i, 16
// bytes each. Lane l gets of each the numbers 2 (l % 4) and the next of line l / 4, or with `transposed` number l / 4
// of those lines.
template <bool transposed>
__device__ void ldmatrix_x4(uint32_t (&words)[4], const void* line) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(line));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address));
  }
}

#endif

}  // namespace fastops::hip
#endif
