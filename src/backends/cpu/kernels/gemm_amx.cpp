// Matrix products of bfloat16 in the tiles of AMX: registers of 16 rows of 64 bytes, and an instruction that adds the
// product of two of them, 16 pairs deep, to a third one in float32 (Intel's manual, volume 2, TDPBF16PS).
//
// Two tiles of the left-hand matrix and two of a panel make four tiles of sums. Rows of a left-hand matrix are read in
// place, packed ones are tiles of 16 rows and 32 steps of the depth. Panels are those of pairs.h, whose depth is a
// multiple of 32; or those of pair_panels.h, of few rows, and the left-hand matrix are the weights where they lie.
#define CPU_CAPABILITY_AVX512  // of which this is a part

#include <atomic>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/pair_panels.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

constexpr int64_t side = 16;       // rows of a tile
constexpr int64_t at_once = 32;    // steps of the depth
constexpr int64_t row_bytes = 64;  // of a tile
constexpr int64_t tile_bytes = side * row_bytes;
// A panel's part for one block of the depth is 16 KiB: beside the rows that pass by it stays in the L1 cache.
constexpr int64_t block_steps = 8;
constexpr int64_t most_rows = 256;  // whose sums for a panel are 32 KiB

// The compiler does not know what the instructions for tiles read and write.
void order_memory() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// The rows of the tiles: 0 and 1 are sums beside each other, 2 and 3 those below, 4 and 5 have the rows of the
// left-hand matrix for the former and for the latter, 6 and 7 are of a panel.
class Shape {
 public:
  void set(int64_t upper, int64_t lower) {
    if (upper == upper_ && lower == lower_) return;
    upper_ = upper;
    lower_ = lower;
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start = 0;
      uint8_t reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;
    const int64_t rows[] = {upper, upper, lower, lower, upper, lower, side, side};
    for (int tile = 0; tile < 8; ++tile) {
      configuration.bytes[tile] = rows[tile] ? row_bytes : 0;
      configuration.rows[tile] = static_cast<uint8_t>(rows[tile]);
    }
    order_memory();
    _tile_loadconfig(&configuration);
    order_memory();
  }

 private:
  int64_t upper_ = 0, lower_ = 0;
};

// One or two tiles of a matrix: a tile's rows are `stride` bytes apart, the second tile is `second` bytes behind the
// first one, and the next 32 steps of the depth are `step` bytes behind the ones before.
struct TilesOf {
  const char* data;
  int64_t stride;
  int64_t second;
  int64_t step;
};

// sums += left * right for 32 steps of the depth.
template <int down, int across>
FASTOPS_ALWAYS_INLINE void multiply_step(const TilesOf& left, const TilesOf& right) {
  _tile_loadd(6, right.data, right.stride);
  _tile_loadd(4, left.data, left.stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (across == 2) {
    _tile_loadd(7, right.data + right.second, right.stride);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (down == 2) {
    _tile_loadd(5, left.data + left.second, left.stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (across == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

// Cache lines that are fetched ahead, some with each 32 steps of the depth.
struct Ahead {
  const char* data;
  int64_t lines;
};

// sums (+)= left * right for one or two tiles of rows and of columns: `steps` times 32 steps of the depth, and then
// those of the left-hand matrix that are at `last` alone, if there are any. Rows of sums are `sums_stride` apart.
template <int down, int across>
void multiply_tiles(TilesOf left, int64_t steps, const char* last, TilesOf right, Ahead ahead, float* sums,
                    int64_t sums_stride, bool add) {
  const int64_t stride = sums_stride * int64_t{sizeof(float)};
  float* const lower = sums + side * sums_stride;
  if (add) {
    _tile_loadd(0, sums, stride);
    if constexpr (across == 2) _tile_loadd(1, sums + side, stride);
    if constexpr (down == 2) _tile_loadd(2, lower, stride);
    if constexpr (down == 2 && across == 2) _tile_loadd(3, lower + side, stride);
  } else {
    _tile_zero(0);
    if constexpr (across == 2) _tile_zero(1);
    if constexpr (down == 2) _tile_zero(2);
    if constexpr (down == 2 && across == 2) _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; ++k) {
    for (int64_t line = 0; line < ahead.lines; ++line, ahead.data += row_bytes) FASTOPS_PREFETCH(ahead.data);
    multiply_step<down, across>(left, right);
    left.data += left.step;
    right.data += right.step;
  }
  if (last) multiply_step<down, across>({last, row_bytes, tile_bytes, 0}, right);
  _tile_stored(0, sums, stride);
  if constexpr (across == 2) _tile_stored(1, sums + side, stride);
  if constexpr (down == 2) _tile_stored(2, lower, stride);
  if constexpr (down == 2 && across == 2) _tile_stored(3, lower + side, stride);
}
constexpr decltype(&multiply_tiles<1, 1>) tiles_of[2][2] = {{multiply_tiles<1, 1>, multiply_tiles<1, 2>},
                                                            {multiply_tiles<2, 1>, multiply_tiles<2, 2>}};

// The steps of rows beyond the last 32 of the depth, with zeros: they are read from here.
class Remainders {
 public:
  Remainders(ConstRows matrix, int64_t depth, int64_t row, int64_t rows) : count_(depth % at_once) {
    if (count_ == 0) return;
    const int64_t k = depth - count_;
    const auto mask = static_cast<__mmask32>((uint64_t{1} << count_) - 1);
    for (int64_t r = 0; r < rows; ++r) {
      const __m512i steps = _mm512_maskz_loadu_epi16(mask, CPU_CAPABILITY::row<BFloat16>(matrix, row + r) + k);
      _mm512_store_si512(data_ + r * row_bytes, steps);
    }
  }
  const char* from_row(int64_t row) const { return count_ ? data_ + row * row_bytes : nullptr; }

 private:
  int64_t count_;
  alignas(64) char data_[most_rows * row_bytes];
};

// The part of a product for some rows and one panel.
void multiply_panel(const Product& product, const Remainders& remainders, int64_t row, int64_t rows, int64_t panel,
                    int64_t columns, float* strip, bool add, Shape& shape) {
  const int64_t across = panel_width<float>(panel, columns) / side;
  const int64_t padded = (product.depth + at_once - 1) / at_once * at_once;
  alignas(64) BFloat16 part[block_steps * at_once * panel_columns<float>];
  const Parts blocks(padded / at_once, block_steps);
  if (product.depth == 0 && !add) std::fill(strip, strip + rows * panel_columns<float>, 0.0F);
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t k = blocks.begin(block) * at_once;
    const int64_t depth = std::min(product.depth, blocks.end(block) * at_once) - k;
    const BFloat16* b = part;
    if (product.pack) {
      pack_part<BFloat16, float>(product, k, depth, panel, columns, part);
    } else {
      b = static_cast<const BFloat16*>(product.panels) + panel * panel_columns<float> * padded + k * across * side;
    }
    order_memory();
    const bool is_last = block + 1 == blocks.count;
    // What the panel has next, where there are enough products to fetch it beside.
    const int64_t lines = product.pack || rows <= 64 ? 0 : (2 * side * across * side - 1) / rows + 1;
    const char* ahead = reinterpret_cast<const char*>(b + depth * across * side);
    for (int64_t r = 0; r < rows; r += 2 * side) {
      const int64_t upper = std::min(side, rows - r);
      const int64_t lower = std::min(side, rows - r - upper);
      shape.set(upper, lower);
      TilesOf left{};
      if (product.packed) {
        const auto* const tiles = static_cast<const BFloat16*>(product.a.data) + r * padded + k * side;
        left = {reinterpret_cast<const char*>(tiles), row_bytes, padded * row_bytes / 2, tile_bytes};
      } else {
        const int64_t stride = product.a.stride * int64_t{sizeof(BFloat16)};
        const auto* const data = CPU_CAPABILITY::row<BFloat16>(product.a, row + r) + k;
        left = {reinterpret_cast<const char*>(data), stride, side * stride, row_bytes};
      }
      const char* const last = is_last ? remainders.from_row(r) : nullptr;
      const int64_t steps = last ? depth / at_once : (depth + at_once - 1) / at_once;
      const TilesOf right{reinterpret_cast<const char*>(b), across * row_bytes, row_bytes, across * tile_bytes};
      tiles_of[lower > 0][across - 1](left, steps, last, right, {ahead, lines}, strip + r * panel_columns<float>,
                                      panel_columns<float>, add || block > 0);
      ahead += steps * lines * row_bytes;
    }
    order_memory();
  }
}

void multiply(const Product* products, int count, int64_t row, int64_t rows, int64_t columns, int64_t first_panel,
              int64_t last_panel, const Epilogue& epilogue) {
  if (reads_rows(products[0])) {
    for_each_strip<float>(products, count, row, rows, columns, first_panel, last_panel, epilogue,
                          [&](const Product& product, int64_t panel, float* strip, bool add) {
                            multiply_rows<Pairs>(product, row, rows, panel, columns, strip, add);
                          });
    return;
  }
  const auto remainders_of = [&](const Product& product) {
    return Remainders(product.a, product.packed ? 0 : product.depth, row, rows);
  };
  const Remainders remainders[2] = {remainders_of(products[0]), remainders_of(products[count - 1])};
  Shape shape;
  for_each_strip<float, most_rows>(products, count, row, rows, columns, first_panel, last_panel, epilogue,
                                   [&](const Product& product, int64_t panel, float* strip, bool add) {
                                     multiply_panel(product, remainders[&product - products], row, rows, panel, columns,
                                                    strip, add, shape);
                                   });
  _tile_release();
}

// Tiles of the transpose of a matrix [depth, rows], with the sums over the depth on the way: those of each block of the
// depth are added to the total in order.
void pack_tiles(ConstRows matrix, int64_t depth, int64_t rows, void* packed, void* sums) {
  if (!packed) return add_column_sums<float, BFloat16>(matrix, depth, rows, static_cast<float*>(sums));
  alignas(64) float lines[side][most_rows];
  alignas(64) float block_sums[most_rows];
  const int64_t padded_rows = (rows + side - 1) / side * side;
  const int64_t padded = (depth + at_once - 1) / at_once * at_once;
  const Parts blocks(padded / at_once, block_steps);
  for (int64_t block = 0; block < blocks.count; ++block) {
    std::fill(block_sums, block_sums + padded_rows, 0.0F);
    for (int64_t step = blocks.begin(block); step < blocks.end(block); ++step) {
      for (int64_t pair = 0; pair < side; ++pair) {
        const int64_t k = step * at_once + 2 * pair;
        const auto line = [&](int64_t k) { return k < depth ? row<BFloat16>(matrix, k) : nullptr; };
        interleave(line(k), line(k + 1), rows, lines[pair], padded_rows);
        for (int64_t i = 0; sums && i < padded_rows; i += side) add_pairs(lines[pair] + i, block_sums + i);
      }
      for (int64_t r = 0; r < padded_rows; r += side) {
        float* const tile = static_cast<float*>(packed) + r * padded / 2 + step * side * side;
        transpose_16x16(lines[0] + r, sizeof(lines[0]), tile, side);
      }
    }
    for (int64_t i = 0; sums && i < rows; ++i) static_cast<float*>(sums)[i] += block_sums[i];
  }
}

// ---- networks without packing ----

// Zeros behind the features of a panel, up to a multiple of 32.
void clear_behind(void* panel, int64_t features, int64_t stride) {
  const int64_t pairs = (features + 1) / 2;
  std::fill(static_cast<float*>(panel) + pairs * stride,
            static_cast<float*>(panel) + pair_count<at_once>(features) * stride, 0.0F);
}

void read_panel_of_tiles(ConstRows matrix, const PanelRows& rows, int64_t first, int64_t end, void* panel) {
  read_pairs(matrix, rows, first, end, panel);
  clear_behind(panel, end, rows.stride);
}

void through_product_in_tiles(const UnpackedLayer& layer, const PanelRows& rows, int64_t first, int64_t end,
                              const void* x, void* y) {
  const int64_t stride = rows.stride;
  const int64_t line = stride * int64_t{sizeof(float)};  // the bytes of a pair of features
  const int64_t weight_line = layer.weight.stride * int64_t{sizeof(BFloat16)};
  const auto* const bias = static_cast<const float*>(layer.bias);
  const Parts blocks((layer.in_features + at_once - 1) / at_once, block_steps);
  Shape shape;
  const auto multiply = [&](int64_t c, int64_t features, float* sums) {
    for (int64_t i = 0; i < features; ++i) std::fill_n(sums + i * stride, stride, bias ? bias[c + i] : 0.0F);
    const Remainders remainders(layer.weight, layer.in_features, c, features);
    shape.set(std::min(side, features), std::max<int64_t>(0, features - side));
    const auto* const weight = reinterpret_cast<const char*>(row<BFloat16>(layer.weight, c));
    for (int64_t block = 0; block < blocks.count; ++block) {
      const int64_t step = blocks.begin(block);
      const char* const last = block + 1 == blocks.count ? remainders.from_row(0) : nullptr;
      const int64_t steps = blocks.size(block) - (last ? 1 : 0);
      order_memory();
      for (int64_t r = 0; r < stride; r += 2 * side) {
        const TilesOf left{weight + step * row_bytes, weight_line, side * weight_line, row_bytes};
        const TilesOf right{static_cast<const char*>(x) + step * side * line + r * int64_t{sizeof(float)}, line,
                            row_bytes, side * line};
        tiles_of[features > side][stride - r > side](left, steps, last, right, {nullptr, 0}, sums + r, stride,
                                                     /*add=*/true);
      }
      order_memory();
    }
  };
  through_product_of_pairs(layer, rows, first, end, y, [&](int64_t c, int64_t next, float* sums) {
    for (; c < next; c += 2 * side, sums += 2 * side * stride) multiply(c, std::min(2 * side, next - c), sums);
  });
  clear_behind(y, end, stride);
  _tile_release();
}

// Measured.
bool reads_transpose(int64_t rows, int64_t depth, int64_t) { return rows <= (depth >= 2048 ? 4 : 2) && depth >= 64; }

// Measured. Panels of larger weights do not stay in the L2 cache: where they are read once, they need not be written,
// and threads share them rather than the rows.
constexpr int64_t large_weight = 512 * 1024;
bool packs_on_the_way(int64_t rows, int64_t elements) { return rows <= (elements >= large_weight ? most_rows : 64); }
int64_t least_rows(int64_t elements) { return elements >= large_weight ? 128 : 24; }

}  // namespace

void add_tile_products(KernelTable& table) {
  GemmKernels& gemm = table.gemm[static_cast<int>(Dtype::bfloat16)];
  gemm.reads_transpose = reads_transpose;
  gemm.packs_on_the_way = packs_on_the_way;
  gemm.most_rows = most_rows;
  gemm.rows_at_once = 2 * side;
  gemm.least_rows = least_rows;
  gemm.left_bytes = 1536 * 1024;
  gemm.at_once = at_once;
  gemm.panel_columns = panel_columns<float>;
  gemm.pack = pack_pairs<at_once>;
  gemm.pack_transposed = pack_transposed_pairs<at_once>;
  gemm.pack_tiles = pack_tiles;
  gemm.multiply = multiply;
  table.unpacked[static_cast<int>(Dtype::bfloat16)].stored = {.number_size = sizeof(BFloat16),
                                                              .tile_rows = 2 * side,
                                                              .most_tiles = most_panel_rows / (2 * side),
                                                              .most_bytes = 768 * 1024,  // in the L2 cache
                                                              .most_shared_tiles = most_panel_rows / (2 * side),
                                                              .read = read_panel_of_tiles,
                                                              .product = through_product_in_tiles,
                                                              .steps = nullptr,
                                                              .write = write_pairs};
}

}  // namespace fastops::cpu::CPU_CAPABILITY
