// Matrix products of bfloat16 by the instruction that multiplies pairs of them and adds up in float32 (AVX512-BF16:
// Intel's manual, volume 2, VDPBF16PS). Two steps of the depth lie beside each other in 4 bytes: panels and tiles are
// those of panels.h with such pairs in place of numbers, and rows of a left-hand matrix are read in place.
#define CPU_CAPABILITY_AVX512  // of which this is a part

#include "backends/cpu/kernels/gemm.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

using BFloat16 = c10::BFloat16;

struct Pairs {
  using Operand = BFloat16;
  using Sum = float;
  static constexpr int64_t at_once = 2;
  static constexpr bool takes_transpose = true;

  using Values = __m512bh;
  static constexpr int64_t width = 32;
  static Values load(const BFloat16* panel) { return as_pairs(_mm512_loadu_si512(panel)); }
  static Values load(const BFloat16* row, int64_t count) {
    return as_pairs(_mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, row));
  }
  // Without a second number, it is 0: what lies behind a row is not read.
  static Values broadcast(const BFloat16* a, int64_t present) {
    uint32_t pair = 0;
    std::memcpy(&pair, a, present == at_once ? sizeof(pair) : sizeof(BFloat16));
    return as_pairs(_mm512_set1_epi32(static_cast<int>(pair)));
  }
  static Floats multiply_add(Values a, Values b, Floats sum) { return _mm512_dpbf16_ps(sum, a, b); }

 private:
  static Values as_pairs(__m512i bits) { return std::bit_cast<__m512bh>(bits); }
};

constexpr int64_t panel_width_max = panel_columns<float>;

int64_t pair_count(int64_t depth) { return (depth + 1) / 2; }

// The first `count` numbers of a row, at most 16, each in the lower half of 4 bytes.
__m512i load_16(const BFloat16* row, int64_t count) {
  const auto first = static_cast<__mmask16>((1U << std::clamp<int64_t>(count, 0, 16)) - 1);
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, row));
}

// target[c] = (row[c], next[c]) for the first `valid` columns, and zeros up to `width`; `next` may be null.
void interleave(const BFloat16* row, const BFloat16* next, int64_t valid, float* target, int64_t width) {
  for (int64_t c = 0; c < width; c += 16) {
    __m512i pairs = load_16(row + c, valid - c);
    if (next) pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(load_16(next + c, valid - c), 16));
    _mm512_storeu_si512(target + c, pairs);
  }
}

// Panels of a matrix [depth, columns], of f of it, or of f of it times a second one.
void pack(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  constexpr int64_t panels_at_once = 16;
  alignas(64) BFloat16 lines[2][panels_at_once * panel_width_max];
  const int64_t pairs = pair_count(to.depth);
  for (int64_t panel = first_panel; panel < last_panel; panel += panels_at_once) {
    const int64_t end = std::min(last_panel, panel + panels_at_once);
    const int64_t column = panel * panel_width_max;
    const int64_t columns = std::min(to.columns, end * panel_width_max) - column;
    // Row k from `column` on.
    const auto line = [&](int64_t k, BFloat16* place) -> const BFloat16* {
      if (k >= to.depth) return nullptr;
      const BFloat16* const source = row<BFloat16>(to.source, k) + column;
      if (!to.activation) return source;
      if (to.second.data) {
        const BFloat16* const second = row<BFloat16>(to.second, k) + column;
        to.activation->gated_forward({source, 0}, {second, 0}, {place, 0}, 1, columns, to.params);
      } else {
        to.activation->forward(source, place, columns, to.params, /*stream=*/false);
      }
      return place;
    };
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const BFloat16* const even = line(2 * pair, lines[0]);
      const BFloat16* const odd = line(2 * pair + 1, lines[1]);
      for (int64_t p = panel; p < end; ++p) {
        const int64_t width = panel_width<float>(p, to.columns);
        const int64_t first = (p - panel) * panel_width_max;
        float* const target = static_cast<float*>(to.panels) + p * panel_width_max * pairs + pair * width;
        interleave(even + first, odd ? odd + first : nullptr, columns - first, target, width);
      }
    }
  }
}

// Panels of the transpose of a matrix [columns, depth], whose rows have the pairs as they are wanted.
void pack_transposed(const PackArguments& to, int64_t first_panel, int64_t last_panel) {
  constexpr int64_t width = 16;
  const int64_t pairs = pair_count(to.depth);
  alignas(64) BFloat16 square[width][2 * width];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t panel_size = panel_width<float>(panel, to.columns);
    float* const panel_data = static_cast<float*>(to.panels) + panel * panel_width_max * pairs;
    for (int64_t part = 0; part < panel_size; part += width) {
      const int64_t first = panel * panel_width_max + part;
      const int64_t rows = std::clamp<int64_t>(to.columns - first, 0, width);
      for (int64_t pair = 0; pair < pairs; pair += width) {
        const int64_t numbers = std::min(2 * width, to.depth - 2 * pair);
        float* const target = panel_data + pair * panel_size + part;
        if (rows == width && numbers == 2 * width) {
          for (int64_t r = 0; r < width; ++r) {
            FASTOPS_PREFETCH(row<BFloat16>(to.source, first + r) + 2 * pair + 8 * width);
          }
          transpose_16x16(row<BFloat16>(to.source, first) + 2 * pair, to.source.stride * int64_t{sizeof(BFloat16)},
                          target, panel_size);
          continue;
        }
        std::memset(square, 0, sizeof(square));
        for (int64_t r = 0; r < rows; ++r) {
          std::memcpy(square[r], row<BFloat16>(to.source, first + r) + 2 * pair, numbers * sizeof(BFloat16));
        }
        alignas(64) float transposed[width][width];
        transpose_16x16(square, sizeof(square[0]), transposed[0], width);
        for (int64_t s = 0; s < std::min(width, pairs - pair); ++s) {
          std::memcpy(target + s * panel_size, transposed[s], sizeof(transposed[s]));
        }
      }
    }
  }
}

// As the one of panels.h.
void pack_tiles(ConstRows matrix, int64_t depth, int64_t rows, void* packed, void* sums) {
  constexpr int64_t width = Vec<float>::width;
  alignas(64) float line[block_rows + width];
  alignas(64) float block_sums[block_rows + width];
  const Tiles tiles(rows);
  const int64_t pairs = pair_count(depth);
  const Parts blocks(pairs, depth_block<float>);
  const int64_t padded = (rows + width - 1) / width * width;
  for (int64_t block = 0; block < blocks.count; ++block) {
    std::fill(block_sums, block_sums + padded, 0.0F);
    for (int64_t pair = blocks.begin(block); pair < blocks.end(block); ++pair) {
      for (int64_t k : {2 * pair + 16, 2 * pair + 17}) {
        const auto* const ahead = reinterpret_cast<const char*>(row<BFloat16>(matrix, std::min(k, depth - 1)));
        for (int64_t byte = 0; byte < rows * int64_t{sizeof(BFloat16)}; byte += 64) FASTOPS_PREFETCH(ahead + byte);
      }
      const BFloat16* const odd = 2 * pair + 1 < depth ? row<BFloat16>(matrix, 2 * pair + 1) : nullptr;
      interleave(row<BFloat16>(matrix, 2 * pair), odd, rows, line, padded);
      if (sums) {
        for (int64_t i = 0; i < padded; i += width) {
          const __m512i both = _mm512_load_si512(line + i);
          const Floats even(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
          const Floats odd(
              _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)))));
          (Floats::loadu(block_sums + i) + even + odd).store(block_sums + i);
        }
      }
      copy_to_tiles(line, tiles, pair, pairs, static_cast<float*>(packed));
    }
    for (int64_t i = 0; sums && i < rows; ++i) static_cast<float*>(sums)[i] += block_sums[i];
  }
}

}  // namespace

void add_bfloat16_products(KernelTable& table) {
  GemmKernels& gemm = table.gemm[static_cast<int>(Dtype::bfloat16)];
  gemm.operand = Dtype::bfloat16;
  gemm.reads_transpose = [](int64_t rows, int64_t depth) {
    return rows <= 8 ? depth >= 64 : rows <= 256 && depth >= 128;
  };
  gemm.reads_matrix = nullptr;
  gemm.at_once = Pairs::at_once;
  gemm.pack = pack;
  gemm.pack_transposed = pack_transposed;
  gemm.pack_tiles = pack_tiles;
  gemm.multiply = multiply<Pairs>;
  for (auto& entry : table.entries) {
    Kernels& kernels = entry[static_cast<int>(Dtype::bfloat16)];
    kernels.pack_activated = kernels.pack_gated = pack;
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY
