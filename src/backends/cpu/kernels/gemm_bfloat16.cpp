// Matrix products of bfloat16 by the instruction that multiplies pairs of them and adds up in float32 (AVX512-BF16:
// Intel's manual, volume 2, VDPBF16PS). Rows of a left-hand matrix are read in place.
#define CPU_CAPABILITY_AVX512  // of which this is a part

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/pair_panels.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// As the one of panels.h.
void pack_tiles(ConstRows matrix, int64_t depth, int64_t rows, void* packed, void* sums) {
  constexpr int64_t width = Vec<float>::width;
  if (!packed) return add_column_sums<float, BFloat16>(matrix, depth, rows, static_cast<float*>(sums));
  alignas(64) float line[block_rows + width];
  alignas(64) float block_sums[block_rows + width];
  const Tiles tiles(rows);
  const int64_t pairs = pair_count<Pairs::at_once>(depth);
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
      for (int64_t i = 0; sums && i < padded; i += width) add_pairs(line + i, block_sums + i);
      copy_to_tiles(line, tiles, pair, pairs, static_cast<float*>(packed));
    }
    for (int64_t i = 0; sums && i < rows; ++i) static_cast<float*>(sums)[i] += block_sums[i];
  }
}

}  // namespace

void add_bfloat16_products(KernelTable& table) {
  GemmKernels& gemm = table.gemm[static_cast<int>(Dtype::bfloat16)];
  gemm.operand = Dtype::bfloat16;
  gemm.reads_transpose = [](int64_t rows, int64_t depth, int64_t columns) {
    return rows <= 8 || columns <= few_columns ? depth >= 64 : rows <= 24 && depth >= 128;
  };
  gemm.reads_matrix = nullptr;
  gemm.packs_on_the_way = table.gemm[static_cast<int>(Dtype::float32)].packs_on_the_way;
  gemm.at_once = Pairs::at_once;
  gemm.panel_columns = panel_columns<float>;
  gemm.pack = pack_pairs<Pairs::at_once>;
  gemm.pack_transposed = pack_transposed_pairs<Pairs::at_once>;
  gemm.pack_tiles = pack_tiles;
  gemm.multiply = multiply<Pairs>;
  UnpackedKernels& unpacked = table.unpacked[static_cast<int>(Dtype::bfloat16)];
  unpacked.stored = {.number_size = sizeof(BFloat16),
                     .tile_rows = plain::tile_vectors * Vec<float>::width,
                     .most_tiles = plain::most_tiles,
                     .most_bytes = plain::panel_bytes / 2,  // beside the sums
                     .most_shared_tiles = 1,
                     .read = read_pairs,
                     .product = through_product_of_pairs,
                     .steps = nullptr,
                     .write = write_pairs};
  unpacked.at_once = Pairs::at_once;
  unpacked.prepare = interleave_rows;
  unpacked.multiply = plain::multiply<Pairs>;
}

}  // namespace fastops::cpu::CPU_CAPABILITY
