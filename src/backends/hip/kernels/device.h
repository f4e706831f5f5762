// The language of the kernels: HIP for AMD's GPUs, CUDA for NVIDIA's, or plain C++ for the emulator. Everything that
// differs between the three and is not a number stands here.
//
// Threads meet at barriers, so that waves of 32 and of 64 threads are the same to every kernel. Within a wave there are
// products on matrix cores, with matrix.h hiding what differs there, whose waves meet by themselves in product.hip, and
// sums over 32 lanes.
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "backends/hip/emulator/emulator.h"
#endif

#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "activations/scalar_of.h"
#include "backends/hip/kernels.h"

namespace fastops::hip {

#if defined(__HIP__)
inline constexpr bool is_hip = true;
#else
inline constexpr bool is_hip = false;
#endif

#if defined(__HIP__) || defined(__CUDACC__)

#if defined(__HIP__)
using Stream = hipStream_t;
inline const char* launch_error() {
  const hipError_t error = hipGetLastError();
  return error == hipSuccess ? nullptr : hipGetErrorString(error);
}
inline int attribute(hipDeviceAttribute_t name, int device) {
  int value = 0;
  return hipDeviceGetAttribute(&value, name, device) == hipSuccess ? value : 0;
}
inline int multiprocessors_of(int device) { return attribute(hipDeviceAttributeMultiprocessorCount, device); }
inline int most_shared_bytes_of(int device) { return attribute(hipDeviceAttributeMaxSharedMemoryPerBlock, device); }
inline bool is_captured_by_runtime(void* stream) {
  hipStreamCaptureStatus status{};
  if (hipStreamIsCapturing(static_cast<Stream>(stream), &status) == hipSuccess) {
    return status != hipStreamCaptureStatusNone;
  }
  launch_error();  // takes the error, which is not the next launch's
  return true;
}
#else
using Stream = cudaStream_t;
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
inline int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, name, device) == cudaSuccess ? value : 0;
}
inline int multiprocessors_of(int device) { return attribute(cudaDevAttrMultiProcessorCount, device); }
inline int most_shared_bytes_of(int device) { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device); }
inline bool is_captured_by_runtime(void* stream) {
  cudaStreamCaptureStatus status{};
  if (cudaStreamIsCapturing(static_cast<Stream>(stream), &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  launch_error();  // takes the error, which is not the next launch's
  return true;
}
#endif

extern __shared__ double2 dynamic_shared_memory[];

// The block's shared memory: as much as it was launched with, aligned for every type.
__device__ inline void* shared_memory() { return dynamic_shared_memory; }

// Runs kernel(arguments...) on `grid` blocks of `block` threads with `shared` bytes of shared memory each.
template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, void* stream,
                   Arguments... arguments) {
#if defined(__CUDACC__) && !defined(__HIP__)
  // More than on every GPU, a kernel has to be allowed. As that holds for launches by other threads, too, it is always
  // the same: all that there is.
  if (shared > size_t{shared_bytes_everywhere}) {
    static thread_local std::set<std::pair<const void*, int>> allowed;
    int device = 0;
    cudaGetDevice(&device);
    if (allowed.emplace(reinterpret_cast<const void*>(kernel), device).second) {
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           most_shared_bytes_of(device));
    }
  }
#endif
  kernel<<<grid, block, shared, static_cast<Stream>(stream)>>>(arguments...);
  return launch_error();
}

#else

inline int multiprocessors_of(int) { return 132; }  // as many as an H100 has
inline int most_shared_bytes_of(int) { return emulator::most_shared_memory; }
inline bool is_captured_by_runtime(void*) { return false; }

inline void* shared_memory() { return emulator::shared_memory(); }

template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, void*, Arguments... arguments) {
  return emulator::run(grid, block, shared, [=] { kernel(arguments...); });
}

#endif

// `data`, which is in global memory: AMD's compiler cannot see that of a pointer that it finds by an index.
__device__ inline void* in_global_memory(void* data) {
#if defined(__HIP_DEVICE_COMPILE__)
  return (void*)(__attribute__((address_space(1))) void*)reinterpret_cast<uintptr_t>(data);
#else
  return data;
#endif
}

// `value`, which is the same in all threads of a wave: AMD's compiler can then branch on it without masks.
__device__ inline int wave_uniform(int value) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}

// A barrier for what threads have in shared memory alone. __syncthreads() also waits, on AMD's GPUs with two CUs for a
// block, for what they have asked for of global memory. The instructions are those of Composable Kernel's
// block_sync_lds.
__device__ inline void sync_shared() {
#if defined(__GFX12__)
  asm volatile("s_wait_dscnt 0x0\n\ts_barrier_signal -1\n\ts_barrier_wait -1" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
  asm volatile("s_waitcnt lgkmcnt(0)\n\ts_barrier" ::: "memory");
#else
  __syncthreads();
#endif
}

// A barrier of some lanes of a wave, 32 or all, for what they have in shared memory.
template <int lanes = 32>
__device__ void sync_lanes() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#elif defined(__CUDA_ARCH__)
  __syncwarp();
#elif !defined(__HIP__) && !defined(__CUDACC__)
  emulator::wave_operation(lanes, [](void* const*) {}, nullptr);
#endif
}

// The value of the lane whose number differs in one bit, below 32. Lanes of a wave come here together.
template <class S>
__device__ S of_other_lane(S value, int bit) {
#if defined(__HIP__)
  return __shfl_xor(value, bit);
#elif defined(__CUDACC__)
  return __shfl_xor_sync(0xffffffffu, value, bit);
#else
  struct Lane {
    S value;
    int bit;
    S other;
  } lane{value, bit, {}};
  emulator::wave_operation(
      32,
      [](void* const* lanes) {
        for (int i = 0; i < 32; ++i) {
          auto& mine = *static_cast<Lane*>(lanes[i]);
          mine.other = static_cast<Lane*>(lanes[i ^ mine.bit])->value;
        }
      },
      &lane);
  return lane.other;
#endif
}

// 1 / b and 2^x by the GPU's instructions for them, to 2 or 3 units in the last place. Numbers below 2^-126, given or
// resulting, may be 0.
FASTOPS_HOST_DEVICE inline float fast_reciprocal(float b) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_rcpf(b);
#elif defined(__CUDA_ARCH__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(b));
  return result;
#else
  return 1.0f / b;
#endif
}
FASTOPS_HOST_DEVICE inline float fast_exp2(float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_exp2f(x);
#elif defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

// `value`, of which the compiler does not know that it is: it does not compute addresses from it ahead of a loop, which
// would take a register or two for each.
__device__ inline int64_t opaque(int64_t value) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm("" : "+v"(value));
#elif defined(__CUDA_ARCH__)
  asm("" : "+l"(value));
#endif
  return value;
}
// The same of what was loaded: it is not computed with where it is asked for, which would wait for it.
__device__ inline uint32_t opaque(uint32_t value) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm("" : "+v"(value));
#endif
  return value;
}

// 16 bytes of zeros in global memory.
__device__ inline const void* zeros() {
  alignas(16) static int zeros[4];
  return zeros;
}

inline constexpr int64_t most_blocks_y = 65535;

inline constexpr int block_threads = 256;

// Threads in the first direction of a grid, of which AMD's GPUs take less than 2^32 in whole blocks: so many and, of a
// row in packets, a few more for what is left of it.
inline constexpr int64_t most_threads_x = (int64_t{1} << 32) - 2 * block_threads;

}  // namespace fastops::hip
