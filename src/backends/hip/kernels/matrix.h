// Products of tiles on matrix cores: a wave multiplies matrices of 16 x 16 numbers of 16 bits, with sums in float32.
//
// A struct for each kind of matrix core says where the matrices' elements are. Element e of a lane's part of an operand
// is the operand's (row(lane, e), depth(lane, e)), where b has its columns as rows; `run` elements lie beside each
// other along the depth. Element e of a lane's part of the sums is (sum_row(lane, e), sum_column(lane, e)).
//
// Sources: for AMD's, the AMD Matrix Instruction Calculator (github.com/ROCm/amd_matrix_instruction_calculator), which
// prints the layout of each instruction; for NVIDIA's, PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point
// type" and "ldmatrix". All lanes of a wave must take part.
#pragma once

#include "backends/hip/kernels/matrix_instructions.h"
#include "backends/hip/kernels/tile.h"

namespace fastops::hip {

#if defined(FASTOPS_MFMA)
struct Cdna3 {
  static constexpr int wave = 64;
  static constexpr int elements = 4;
  using Words = uint32_t[elements / 2];
  static constexpr int run = 4;
  static constexpr int sums = 4;

  __device__ static constexpr int row(int lane, int) { return lane % 16; }
  __device__ static constexpr int depth(int lane, int e) { return 4 * (lane / 16) + e; }
  __device__ static constexpr int sum_row(int lane, int e) { return 4 * (lane / 16) + e; }
  __device__ static constexpr int sum_column(int lane, int) { return lane % 16; }

  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
    mfma_16x16x16<Storage>(sum, a, b);
  }

 protected:
  // The same with the instruction for float32. It multiplies by a depth of 4, of which a lane has one: here one of its
  // four. In which order the depth is gone through does not matter, as long as both operands have the same.
  template <class Storage>
  __device__ static void multiply_add_float32(float (&sum)[sums], const Words& a, const Words& b) {
    const auto element = [](const Words& words, int e) {
      return widen(Storage{static_cast<uint16_t>(words[e / 2] >> (16 * (e % 2)))});
    };
#pragma unroll
    for (int e = 0; e < elements; ++e) mfma_16x16x4(sum, element(a, e), element(b, e));
  }
};

// Takes subnormal 16-bit numbers for zeros (MIOpen documentation, "MI200 MFMA behavior specifics"). Those of bfloat16
// are too small to matter.
struct Cdna2 : Cdna3 {
  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
    if constexpr (is_float16<Storage>) {
      multiply_add_float32<Storage>(sum, a, b);
    } else {
      mfma_16x16x16<Storage>(sum, a, b);
    }
  }
};

// Has no such instruction for bfloat16.
struct Cdna1 : Cdna3 {
  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
    if constexpr (is_float16<Storage>) {
      mfma_16x16x16<Storage>(sum, a, b);
    } else {
      multiply_add_float32<Storage>(sum, a, b);
    }
  }
};
#endif

#if defined(FASTOPS_WMMA_GFX11)
// Lanes 16 to 31 have the operands of lanes 0 to 15 once more.
struct Rdna3 {
  static constexpr int wave = 32;
  static constexpr int elements = 16;
  using Words = uint32_t[elements / 2];
  static constexpr int run = 8;
  static constexpr int sums = 8;

  __device__ static constexpr int row(int lane, int) { return lane % 16; }
  __device__ static constexpr int depth(int, int e) { return e; }
  __device__ static constexpr int sum_row(int lane, int e) { return 2 * e + lane / 16; }
  __device__ static constexpr int sum_column(int lane, int) { return lane % 16; }

  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
    wmma_gfx11<Storage>(sum, a, b);
  }
};
#endif

#if defined(FASTOPS_WMMA_GFX12)
struct Rdna4 {
  static constexpr int wave = 32;
  static constexpr int elements = 8;
  using Words = uint32_t[elements / 2];
  static constexpr int run = 4;
  static constexpr int sums = 8;

  __device__ static constexpr int row(int lane, int) { return lane % 16; }
  __device__ static constexpr int depth(int lane, int e) { return 8 * (e / 4) + 4 * (lane / 16) + e % 4; }
  __device__ static constexpr int sum_row(int lane, int e) { return 8 * (lane / 16) + e; }
  __device__ static constexpr int sum_column(int lane, int) { return lane % 16; }

  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
    wmma_gfx12<Storage>(sum, a, b);
  }
};
#endif

#if defined(FASTOPS_MMA_SYNC)
// Two instructions, for 8 columns each: of b, laid out as a is, the first takes the elements of rows 0 to 7.
struct TensorCore {
  static constexpr int wave = 32;
  static constexpr int elements = 8;
  using Words = uint32_t[elements / 2];
  static constexpr int run = 2;
  static constexpr int sums = 8;

  __device__ static constexpr int row(int lane, int e) { return lane / 4 + 8 * (e / 2 % 2); }
  __device__ static constexpr int depth(int lane, int e) { return 2 * (lane % 4) + e % 2 + 8 * (e / 4); }
  __device__ static constexpr int sum_row(int lane, int e) { return lane / 4 + 8 * (e / 2 % 2); }
  __device__ static constexpr int sum_column(int lane, int e) { return 2 * (lane % 4) + e % 2 + 8 * (e / 4); }

  // Of 16 lines of 16 numbers from `at` on, along the depth or with `transposed` along the rows: four matrices, of rows
  // and then depth.
  template <bool transposed, int stride, class Storage>
  __device__ static void load(Words& words, const Storage* at, int lane) {
    const int across = lane / 8 % 2, along = lane / 16;
    const int line = lane % 8 + 8 * (transposed ? along : across);
    ldmatrix_x4<transposed>(words, at + line * stride + 8 * (transposed ? across : along));
  }

  template <class Storage>
  __device__ static void multiply_add(float (&sum)[sums], const Words& a, const Words& b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t columns[2] = {b[half], b[2 + half]};
      float part[4] = {sum[4 * half], sum[4 * half + 1], sum[4 * half + 2], sum[4 * half + 3]};
      mma_m16n8k16<Storage>(part, a, columns);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[4 * half + e] = part[e];
    }
  }
};
#endif

// Those of the GPU that is compiled for.
#if defined(__gfx908__)
#define FASTOPS_MATRIX_CORES Cdna1
#elif defined(__gfx90a__)
#define FASTOPS_MATRIX_CORES Cdna2
#elif defined(FASTOPS_MFMA)
#define FASTOPS_MATRIX_CORES Cdna3
#elif defined(FASTOPS_WMMA_GFX11)
#define FASTOPS_MATRIX_CORES Rdna3
#elif defined(FASTOPS_WMMA_GFX12)
#define FASTOPS_MATRIX_CORES Rdna4
#elif defined(FASTOPS_MMA_SYNC)
#define FASTOPS_MATRIX_CORES TensorCore
#endif

struct NoCores {};

// f(Cores()) with those of the GPU, NoCores where it has none.
template <class F>
__device__ void with_matrix_cores(F f) {
#if !defined(__HIP__) && !defined(__CUDACC__)
  switch (emulator::gpu) {
    case emulator::Gpu::gfx90a:
      return f(Cdna2());
    case emulator::Gpu::gfx942:
      return f(Cdna3());
    case emulator::Gpu::gfx1100:
      return f(Rdna3());
    case emulator::Gpu::gfx1201:
      return f(Rdna4());
    case emulator::Gpu::sm_90:
      return f(TensorCore());
    case emulator::Gpu::none:
      return f(NoCores());
  }
#elif defined(FASTOPS_MATRIX_CORES)
  f(FASTOPS_MATRIX_CORES());
#else
  f(NoCores());
#endif
}

inline constexpr int matrix_size = 16;

// The next multiple of 16.
__device__ constexpr int padded(int size) { return (size + matrix_size - 1) / matrix_size * matrix_size; }

// A lane's part of an operand: of the 16 x 16 elements of a tile from `at` on, in rows of this distance, which are the
// operand's, or with `transposed` its depth.
template <class Cores, class Storage>
struct Part {
  typename Cores::Words words;

  // Of an operand whose elements are all the same.
  __device__ static Part all(Storage element) {
    Part part;
#pragma unroll
    for (uint32_t& word : part.words) word = element.bits * 0x10001u;
    return part;
  }

  template <bool transposed, int stride = tile_stride<Storage>>
  __device__ static Part load(const Storage* at, int lane) {
    Part part;
    if constexpr (transposed) {
      const auto element = [&](int e) -> uint32_t {
        return at[Cores::depth(lane, e) * stride + Cores::row(lane, e)].bits;
      };
#pragma unroll
      for (int e = 0; e < Cores::elements; e += 2) part.words[e / 2] = element(e) | element(e + 1) << 16;
    } else {
      constexpr int bytes = Cores::run * sizeof(Storage);
#pragma unroll
      for (int e = 0; e < Cores::elements; e += Cores::run) {
        const Storage* begin = at + Cores::row(lane, e) * stride + Cores::depth(lane, e);
        memcpy(part.words + e / 2, __builtin_assume_aligned(begin, bytes), bytes);
      }
    }
    return part;
  }

  // The same with the GPU's instruction for it, where it has one: fewer instructions where the place in memory is a
  // constant, more registers where it is not.
  template <bool transposed, int stride>
  __device__ static Part load_at_once(const Storage* at, int lane) {
    if constexpr (requires(Part part) { Cores::template load<transposed, stride>(part.words, at, lane); }) {
      Part part;
      Cores::template load<transposed, stride>(part.words, at, lane);
      return part;
    } else {
      return load<transposed, stride>(at, lane);
    }
  }
};

// A lane's part of 16 x 16 sums.
template <class Cores>
struct MatrixSums {
  float sum[Cores::sums] = {};

  template <class Storage>
  __device__ void add(const Part<Cores, Storage>& a, const Part<Cores, Storage>& b) {
    Cores::template multiply_add<Storage>(sum, a.words, b.words);
  }

  // f(row, column, sum), counting from these.
  template <class F>
  __device__ void for_each(int first_row, int first_column, int lane, F f) const {
#pragma unroll
    for (int e = 0; e < Cores::sums; ++e) {
      f(first_row + Cores::sum_row(lane, e), first_column + Cores::sum_column(lane, e), sum[e]);
    }
  }
};

}  // namespace fastops::hip
