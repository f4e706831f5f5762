// The matrix products of every dtype: 16-bit types are converted while they are packed, or where they are read.
#include "backends/cpu/kernels/gemm.h"

#include "backends/cpu/kernels/sums.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class Storage>
void store(const void* arguments, const Block& block) {
  const auto to = *static_cast<const StoreArguments*>(arguments);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto) FASTOPS_INLINE_LAMBDA {
    const auto value = sum(0);
    store(to.add ? apply([](auto a, auto b) { return a + b; }, load(constant(to.result)), value) : value, to.result);
  });
}

// ---- measured ----

// Whole vectors of columns alone. Rows that are far apart, or a multiple of 4 KiB, fall into few sets of the caches.
template <class S>
bool reads_matrix(int64_t rows, int64_t columns) {
  if (columns % Vec<S>::width != 0) return false;
#if defined(CPU_CAPABILITY_AVX512)
  if (columns * int64_t{sizeof(S)} % 4096 == 0) return rows <= 64;
  return rows <= 256 || columns < 2048;
#else
  return rows <= 256 && columns * int64_t{sizeof(S)} <= 1024;
#endif
}

// At the end of each sum its vector has to be added up.
bool reads_transpose(int64_t rows, int64_t depth, int64_t columns) {
  if (rows <= 4 || columns <= few_columns) return depth >= 64;
#if defined(CPU_CAPABILITY_AVX512)
  return rows <= 24 && depth >= 256;
#else
  return false;
#endif
}

// Packing converts them, too, and writes them with twice as many bytes.
bool reads_converted_transpose(int64_t rows, int64_t depth, int64_t) { return rows <= 16 && depth >= 64; }

// Larger weights are shared by their columns, so that each thread reads a part of them once; and where a thread's rows
// are one block, it packs that part on its way from memory to the L1 cache.
constexpr int64_t large_weight = 64 * 1024;
int64_t least_rows(int64_t elements) { return elements >= large_weight ? 128 : 24; }
bool packs_on_the_way(int64_t rows, int64_t elements) { return rows <= block_rows && elements >= large_weight; }

template <class Storage>
void add(GemmKernels& entry) {
  using S = Compute<Storage>;
  constexpr bool is_plain = std::is_same_v<S, Storage>;
  using M = std::conditional_t<is_plain, Arithmetic<S>, Converting<Storage>>;
  entry = {.operand = std::is_same_v<S, double> ? Dtype::float64 : Dtype::float32,
           .reads_matrix = is_plain ? reads_matrix<S> : nullptr,
           .reads_transpose = !is_plain            ? reads_converted_transpose
                              : M::takes_transpose ? reads_transpose
                                                   : nullptr,
           .packs_on_the_way = packs_on_the_way,
           .least_rows = least_rows,
           .most_rows = block_rows,
           .left_bytes = 3 * 1024 * 1024,
           .rows_at_once = 1,
           .at_once = M::at_once,
           .panel_columns = panel_columns<S>,
           .pack = pack<S, Storage>,
           .pack_transposed = pack_transposed<S, Storage>,
           .pack_tiles = pack_tiles<S, Storage>,
           .convert = convert<Storage>,
           .multiply = multiply<M>,
           .store = store<Storage>};
}

}  // namespace

void add_gemm_kernels(KernelTable& table) {
  add<float>(table.gemm[static_cast<int>(Dtype::float32)]);
  add<double>(table.gemm[static_cast<int>(Dtype::float64)]);
  add<c10::BFloat16>(table.gemm[static_cast<int>(Dtype::bfloat16)]);
  add<c10::Half>(table.gemm[static_cast<int>(Dtype::float16)]);
}

}  // namespace fastops::cpu::CPU_CAPABILITY
