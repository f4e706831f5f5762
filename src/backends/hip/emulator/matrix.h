// The instructions of matrix cores in the emulator, written from the documents that kernels/matrix.h names and without
// a look at it: where in the registers of a wave an element of a matrix is, and the products by their definition.
#pragma once

#include "backends/hip/emulator/emulator.h"
#include "backends/hip/kernels/number.h"

#define FASTOPS_MFMA
#define FASTOPS_WMMA_GFX11
#define FASTOPS_WMMA_GFX12
#define FASTOPS_MMA_SYNC

namespace fastops::hip {
namespace emulator {

// The place of an element: the lane, and the how-manieth number in its registers.
struct Place {
  int lane;
  int number;
};

// ---- each instruction: the matrices' sizes, and the places of a[i][k], b[k][j] and of the sums [i][j] ----

struct Mfma16x16x16 {
  static constexpr int wave = 64, rows = 16, columns = 16, depth = 16, copies = 1;
  static Place a(int i, int k) { return {16 * (k / 4) + i, k % 4}; }
  static Place b(int k, int j) { return {16 * (k / 4) + j, k % 4}; }
  static Place sum(int i, int j) { return {16 * (i / 4) + j, i % 4}; }
};

struct Mfma16x16x4 {
  static constexpr int wave = 64, rows = 16, columns = 16, depth = 4, copies = 1;
  static Place a(int i, int k) { return {16 * k + i, 0}; }
  static Place b(int k, int j) { return {16 * k + j, 0}; }
  static Place sum(int i, int j) { return {16 * (i / 4) + j, i % 4}; }
};

// Operands are in lanes 0 to 15 and once more in lanes 16 to 31.
struct WmmaGfx11 {
  static constexpr int wave = 32, rows = 16, columns = 16, depth = 16, copies = 2;
  static Place a(int i, int k) { return {i, k}; }
  static Place b(int k, int j) { return {j, k}; }
  static Place sum(int i, int j) { return {16 * i % 32 + j, i / 2}; }
};

struct WmmaGfx12 {
  static constexpr int wave = 32, rows = 16, columns = 16, depth = 16, copies = 1;
  static Place a(int i, int k) { return {16 * (k / 4 % 2) + i, 4 * (k / 8) + k % 4}; }
  static Place b(int k, int j) { return {16 * (k / 4 % 2) + j, 4 * (k / 8) + k % 4}; }
  static Place sum(int i, int j) { return {16 * (i / 8) + j, i % 8}; }
};

struct MmaM16n8k16 {
  static constexpr int wave = 32, rows = 16, columns = 8, depth = 16, copies = 1;
  static Place a(int i, int k) { return {4 * (i % 8) + k % 8 / 2, k % 2 + 2 * (i / 8) + 4 * (k / 8)}; }
  static Place b(int k, int j) { return {4 * j + k % 8 / 2, k % 2 + 2 * (k / 8)}; }
  static Place sum(int i, int j) { return {4 * (i % 8) + j / 2, j % 2 + 2 * (i / 8)}; }
};

// The registers of a lane that an instruction names.
struct MatrixRegisters {
  float* sum;
  const void* a;
  const void* b;
};

// As gfx90a sees an operand: a subnormal 16-bit number is zero.
template <class Number>
float flushed(Number number) {
  constexpr float smallest = is_float16<Number> ? 0x1p-14f : 0x1p-126f;
  const float value = widen(number);
  return sizeof(Number) == 2 && std::fabs(value) < smallest ? 0.0f : value;
}

// Number is the type of the operands.
template <class Instruction, class Number>
void multiply_add(void* const* lanes) {
  const auto lane = [&](int i) -> const MatrixRegisters& { return *static_cast<MatrixRegisters*>(lanes[i]); };
  const auto number = [&](const void* MatrixRegisters::* operand, Place place) {
    Number copies[Instruction::copies];
    for (int i = 0; i < Instruction::copies; ++i) {
      const auto* numbers = static_cast<const char*>(lane(place.lane + 16 * i).*operand);
      std::memcpy(&copies[i], numbers + place.number * sizeof(Number), sizeof(Number));
      if (std::memcmp(&copies[0], &copies[i], sizeof(Number)) != 0) fail("the copies of a matrix operand differ");
    }
    return gpu == Gpu::gfx90a ? flushed(copies[0]) : widen(copies[0]);
  };
  float b[Instruction::columns][Instruction::depth];
  for (int j = 0; j < Instruction::columns; ++j) {
    for (int k = 0; k < Instruction::depth; ++k) b[j][k] = number(&MatrixRegisters::b, Instruction::b(k, j));
  }
  for (int i = 0; i < Instruction::rows; ++i) {
    float a[Instruction::depth];
    for (int k = 0; k < Instruction::depth; ++k) a[k] = number(&MatrixRegisters::a, Instruction::a(i, k));
    for (int j = 0; j < Instruction::columns; ++j) {
      const Place place = Instruction::sum(i, j);
      float sum = lane(place.lane).sum[place.number];
      for (int k = 0; k < Instruction::depth; ++k) sum = library::fma(a[k], b[j][k], sum);
      lane(place.lane).sum[place.number] = sum;
    }
  }
}

template <class Instruction, class Number>
void matrix_instruction(float* sum, const void* a, const void* b) {
  MatrixRegisters registers = {sum, a, b};
  wave_operation(Instruction::wave, multiply_add<Instruction, Number>, &registers);
}

// ldmatrix's four matrices: the lines that the lanes name, and where their numbers go.
struct MatrixLine {
  uint32_t* words;
  const void* line;
};

template <bool transposed>
void load_matrices(void* const* lanes) {
  const auto lane = [&](int i) -> const MatrixLine& { return *static_cast<MatrixLine*>(lanes[i]); };
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int line = 0; line < 8; ++line) {
      const void* numbers = lane(8 * matrix + line).line;
      if (reinterpret_cast<uintptr_t>(numbers) % 16 != 0) fail("a line of ldmatrix is not aligned to 16 bytes");
      for (int number = 0; number < 8; ++number) {
        const int row = transposed ? number : line, column = transposed ? line : number;
        auto* to = reinterpret_cast<char*>(lane(4 * row + column / 2).words + matrix) + 2 * (column % 2);
        std::memcpy(to, static_cast<const char*>(numbers) + 2 * number, 2);
      }
    }
  }
}

}  // namespace emulator

template <class Storage>
void mfma_16x16x16(float (&sum)[4], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
  emulator::matrix_instruction<emulator::Mfma16x16x16, Storage>(sum, a, b);
}
inline void mfma_16x16x4(float (&sum)[4], float a, float b) {
  emulator::matrix_instruction<emulator::Mfma16x16x4, float>(sum, &a, &b);
}
template <class Storage>
void wmma_gfx11(float (&sum)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  emulator::matrix_instruction<emulator::WmmaGfx11, Storage>(sum, a, b);
}
template <class Storage>
void wmma_gfx12(float (&sum)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  emulator::matrix_instruction<emulator::WmmaGfx12, Storage>(sum, a, b);
}
template <class Storage>
void mma_m16n8k16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulator::matrix_instruction<emulator::MmaM16n8k16, Storage>(sum, a, b);
}
template <bool transposed>
void ldmatrix_x4(uint32_t (&words)[4], const void* line) {
  emulator::MatrixLine lane = {words, line};
  emulator::wave_operation(32, emulator::load_matrices<transposed>, &lane);
}

}  // namespace fastops::hip
