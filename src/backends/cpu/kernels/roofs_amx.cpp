// A loop that does nothing but multiply tiles of AMX: what products of bfloat16 are measured against.
#include <immintrin.h>

#include "backends/cpu/roofs.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

// Four sums, as many as a product has (gemm_amx.cpp). Tiles are of 16 rows of 64 bytes: 16 x 16 sums, 32 steps deep.
float multiply_tiles(int64_t iterations) {
  alignas(64) const struct {
    uint8_t palette = 1;
    uint8_t start = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t k = 0; k < iterations; ++k) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[16][16];
  _tile_stored(0, sums, sizeof(sums[0]));
  _tile_release();
  return sums[0][0];
}

}  // namespace

MultiplyAdd tile_products() { return {multiply_tiles, int64_t{2} * 4 * 16 * 16 * 32}; }

}  // namespace fastops::cpu::CPU_CAPABILITY
