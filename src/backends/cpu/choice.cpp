#include "backends/cpu/choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_traits.h"
#include "backends/cpu/launchers.h"
#include "ops/dtype_of.h"
#include "ops/environment.h"
#include "ops/matrix.h"
#include "ops/mlp.h"
#include "ops/mlp_jet.h"

namespace fastops::cpu {
namespace {

// ---- what was measured ----

// Those whose products PyTorch has: MKL is near the limit on Intel's CPUs for many rows, and on others in AVX2, which
// is what it has for them. oneDNN multiplies 16-bit numbers where there are instructions for it, in tiles (AMX) or
// vectors; in Zen 4's, of half the width of Zen 5's, the products here gain nothing on it for many rows, and of Intel's
// cores from Golden Cove on (Sapphire Rapids was measured with tiles, Emerald Rapids without) those in vectors are
// slow. Of the other ones Zen 5 was measured, and in AVX2 Zen 3 and Zen 4.
enum class Cpu { intel, golden_cove, zen4, other, other_in_avx2 };

// What the products here multiply: numbers, or 16-bit numbers in pairs or in tiles.
enum class Operands { float64, float32, pairs, tiles };

constexpr int64_t any = std::numeric_limits<int64_t>::max();

// Rows of the input, and elements of all weights together, for which the products here are the faster ones.
struct Faster {
  Cpu cpu;
  Operands operands;
  Pass pass;
  int64_t least_rows;
  int64_t most_rows;
  int64_t most_elements;
};

// From `python -m fastops.bench products`; what is not here is for PyTorch's. Few rows leave the weights where they
// are, or pack them on the way.
constexpr int64_t few_rows = 128;
constexpr int64_t many_rows = 256;
constexpr int64_t large_weights = 1024 * 1024;
constexpr Faster table[] = {
    {Cpu::intel, Operands::float64, Pass::forward, many_rows, any, large_weights},
    {Cpu::intel, Operands::float32, Pass::forward, 1, few_rows, any},
    {Cpu::intel, Operands::float32, Pass::forward, many_rows, any, large_weights},
    {Cpu::intel, Operands::pairs, Pass::forward, 1, few_rows, any},
    {Cpu::golden_cove, Operands::float32, Pass::forward, 1, 64, any},
    {Cpu::golden_cove, Operands::float32, Pass::backward, 2, many_rows, large_weights},
    {Cpu::golden_cove, Operands::float32, Pass::backward, 64, few_rows, 6 * large_weights},
    {Cpu::golden_cove, Operands::pairs, Pass::forward, 1, 64, any},
    {Cpu::golden_cove, Operands::tiles, Pass::forward, 1, any, any},
    {Cpu::golden_cove, Operands::tiles, Pass::backward, 1, many_rows, any},
    {Cpu::golden_cove, Operands::tiles, Pass::backward, 1, any, large_weights},
    {Cpu::golden_cove, Operands::tiles, Pass::backward, 1024, any, 6 * large_weights},
    {Cpu::zen4, Operands::float64, Pass::forward, 32, any, any},
    {Cpu::zen4, Operands::float64, Pass::backward, 32, any, any},
    {Cpu::zen4, Operands::float32, Pass::forward, 1, 64, any},
    {Cpu::zen4, Operands::float32, Pass::forward, 1, any, large_weights},
    {Cpu::zen4, Operands::float32, Pass::backward, 2, 64, any},
    {Cpu::zen4, Operands::float32, Pass::backward, 2, any, large_weights},
    {Cpu::zen4, Operands::pairs, Pass::forward, 1, 32, any},
    {Cpu::zen4, Operands::pairs, Pass::forward, 1, any, large_weights},
    {Cpu::zen4, Operands::pairs, Pass::backward, 1, many_rows, 3 * large_weights / 8},
    {Cpu::other, Operands::float64, Pass::forward, 32, any, any},
    {Cpu::other, Operands::float64, Pass::backward, 32, any, any},
    {Cpu::other, Operands::float32, Pass::forward, 1, any, any},
    {Cpu::other, Operands::float32, Pass::backward, 2, any, any},
    {Cpu::other, Operands::pairs, Pass::forward, 1, any, any},
    {Cpu::other, Operands::pairs, Pass::backward, 1, any, large_weights},
    {Cpu::other, Operands::pairs, Pass::backward, 2048, any, any},
    {Cpu::other_in_avx2, Operands::float64, Pass::forward, 512, any, large_weights},
    {Cpu::other_in_avx2, Operands::float64, Pass::backward, 512, any, large_weights},
    {Cpu::other_in_avx2, Operands::float32, Pass::forward, 1, few_rows, any},
    {Cpu::other_in_avx2, Operands::float32, Pass::backward, 2, many_rows, large_weights},
};

// Weights that are so small are packed in no time, and calls take most of it, whatever the CPU, unless there are many
// rows and the products are half as wide, or one row of float64 in AVX2, which PyTorch multiplies by the weights where
// they are.
constexpr int64_t small_weights = 32 * 1024;

bool are_small(Cpu kind, Dtype dtype, int64_t rows, int64_t elements) {
  if (elements > small_weights) return false;
  if (kind != Cpu::other_in_avx2) return true;
  return rows <= many_rows && !(rows == 1 && dtype == Dtype::float64);
}

// Of a network, or each member of an ensemble: the rows, and the elements of all weights together.
struct Shape {
  int64_t rows, elements;
};
Shape shape_of(const at::Tensor& input, at::TensorList weights) {
  const int64_t members = is_ensemble(weights) ? std::max<int64_t>(1, input.size(0)) : 1;
  int64_t elements = 0;
  for (const at::Tensor& weight : weights) elements += weight.numel() / members;
  return {row_count(input) / members, elements};
}

// The elements where features fill whole vectors.
int64_t padded_elements(at::TensorList weights) {
  const auto padded = [](int64_t features) { return (features + 15) / 16 * 16; };
  int64_t elements = 0;
  for (const at::Tensor& weight : weights) elements += padded(weight.size(-2)) * padded(weight.size(-1));
  return elements;
}

// Layers from or to very few features leave most of each vector unused; PyTorch's product with a vector does not.
bool is_thin(int64_t rows, at::TensorList weights, int64_t elements) {
  return rows >= 4096 && 12 * elements < padded_elements(weights);
}

// ---- the choice ----

enum class Products { fastest, own, unpacked, torch };

Products wanted_products() {
  static const Products wanted = [] {
    std::vector<std::string> choices = {"torch"};
    if (gemm_kernels(Dtype::float32).multiply) choices.insert(choices.begin(), {"own", "unpacked"});
    const std::string choice = environment_choice("FASTOPS_CPU_PRODUCTS", choices);
    return choice == "own"        ? Products::own
           : choice == "unpacked" ? Products::unpacked
           : choice == "torch"    ? Products::torch
                                  : Products::fastest;
  }();
  return wanted;
}
const ReadAtImport products_at_import([] { wanted_products(); });

Cpu this_cpu() {
  static const Cpu kind = [] {
    const CpuTraits cpu = cpu_traits();
    if (cpu.is_intel) return cpu.has_tiles || cpu.has_slow_bfloat16 ? Cpu::golden_cove : Cpu::intel;
    if (std::string_view(capability()) == "avx2") return Cpu::other_in_avx2;
    return cpu.is_zen4 ? Cpu::zen4 : Cpu::other;
  }();
  return kind;
}

// Products here that take half of the time of PyTorch's, whatever the size, outweigh that mlp_jet computes the layers
// again; elsewhere the other work has to.
const RegisterMostWeightsByJet most_by_jet([] {
  const bool takes_half = this_cpu() == Cpu::other && gemm_kernels(Dtype::float32).multiply;
  return takes_half && wanted_products() != Products::torch ? any : int64_t{64 * 1024};
});

}  // namespace

bool has_own_products(const at::Tensor& input) {
  return wanted_products() != Products::torch && gemm_kernels(dtype_of(input)).multiply;
}

namespace {

constexpr int64_t most_narrow_features = 128;

// Of more weights than these, MKL multiplies more than 256 rows as fast on Golden Cove; so it does with a single layer.
constexpr int64_t golden_cove_wide_weights = 3 * large_weights / 8;

int64_t most_features(const at::Tensor& input, at::TensorList weights) {
  int64_t most = input.size(-1);
  for (const at::Tensor& weight : weights) most = std::max(most, weight.size(-2));
  return most;
}

// Whether weights are multiplied where they lie.
bool takes_as_stored(const at::Tensor& input) {
  return input.element_size() > 2 || unpacked_kernels(dtype_of(input)).stored.product;
}

// Whether pairs of 16-bit numbers are multiplied that way, and the CPU has something better.
bool go_in_slow_pairs(const at::Tensor& input) {
  return this_cpu() == Cpu::golden_cove && unpacked_kernels(dtype_of(input)).at_once > 1;
}

// Whether they are multiplied in tiles.
bool go_in_tiles(const at::Tensor& input) { return gemm_kernels(dtype_of(input)).at_once > 2; }

// Whether some weights lie as [in_features, out_features], which the kernels of packed products take, and no others.
bool are_transposed(at::TensorList weights) { return std::any_of(weights.begin(), weights.end(), has_transposed_rows); }

// Whether a network's rows can go through all layers in vectors.
bool can_go_in_vectors(const at::Tensor& input, at::TensorList weights) {
  if (!has_own_products(input) || are_transposed(weights)) return false;
  const UnpackedKernels& kernels = unpacked_kernels(dtype_of(input));
  const auto [rows, elements] = shape_of(input, weights);
  // A layer by itself is turned around for nothing but its own product. Measured.
  const int64_t most_packed = go_in_tiles(input)               ? (rows <= few_rows ? small_weights : any)
                              : this_cpu() == Cpu::golden_cove ? (rows <= many_rows ? 0 : golden_cove_wide_weights)
                              : input.element_size() > 2       ? large_weights / 4
                              : this_cpu() == Cpu::zen4        ? large_weights / 8
                                                               : large_weights;
  // Rows that are converted anyway are turned around on the way, where a tile of packed products is mostly empty.
  constexpr int64_t tile_mostly_empty = 8;
  const bool is_narrow = weights.size() == 1 && !takes_as_stored(input) && weights[0].size(-2) <= tile_mostly_empty;
  // Of vectors of four numbers a part is enough; an ensemble's products with one row are PyTorch's. Measured on Zen 3.
  const bool in_short_vectors = this_cpu() == Cpu::other_in_avx2 && kernels.vector <= 4;
  const bool few_for_packing = in_short_vectors && rows <= few_rows / 2;
  const bool always = weights.size() > 1 || is_narrow || few_for_packing || wanted_products() == Products::unpacked;
  const int64_t least_rows = !in_short_vectors ? kernels.vector : is_ensemble(weights) ? 2 : 1;
  return kernels.numbers.product && rows >= least_rows && elements > (always ? 0 : most_packed);
}

// Whether networks of more features do so in the forward pass. Weights that would have to be converted before do not.
bool goes_wide(const at::Tensor& input, int64_t rows, int64_t elements) {
  if (!takes_as_stored(input)) return false;
  if (wanted_products() == Products::unpacked || this_cpu() == Cpu::zen4) return true;
  if (this_cpu() == Cpu::other) return rows <= few_rows / 4 || elements <= 2 * large_weights;
  // Few rows of any weights, which are read once, and more of such as stay in the L2 cache.
  if (go_in_tiles(input)) return rows <= few_rows || (rows <= 2 * many_rows && elements <= large_weights / 2);
  if (this_cpu() == Cpu::golden_cove) {
    if (go_in_slow_pairs(input)) return false;
    if (input.element_size() == 8) return rows >= 8 && rows <= few_rows;
    return rows >= few_rows / 4 && (rows <= many_rows || elements <= golden_cove_wide_weights);
  }
  return this_cpu() == Cpu::other_in_avx2 && rows <= 2 * many_rows && elements <= large_weights;
}

// Whether this CPU's backward passes leave matrices where they lie, row by row.
bool has_plain_layers(const at::Tensor& input) {
  if (!has_own_products(input)) return false;
  if (wanted_products() != Products::fastest) return wanted_products() == Products::unpacked;
  return this_cpu() != Cpu::intel && !go_in_slow_pairs(input);
}

// The weights, of all layers together, up to which backward passes do so on this CPU: packed products, of values alone,
// and MKL's are faster from a layer of 256 by 256 features on. Of derivatives, on Golden Cove, from a third such layer
// on, in float64 from a second one. Measured.
constexpr int64_t most_plain_weights = large_weights / 4;  // on any CPU
int64_t most_plain_elements(const at::Tensor& input, bool with_derivatives) {
  constexpr int64_t less_than_256_squared = large_weights / 20;
  if (this_cpu() == Cpu::golden_cove) {
    if (!with_derivatives) return less_than_256_squared;
    return large_weights / (input.element_size() == 8 ? 12 : 6);
  }
  return this_cpu() == Cpu::other_in_avx2 && !with_derivatives ? less_than_256_squared : most_plain_weights;
}

// Whether rows fill three quarters of the vectors that they take, or half of those of four numbers.
bool fill_vectors(int64_t rows, int64_t vector) {
  const int64_t computed = (rows + vector - 1) / vector * vector;
  return 4 * rows >= (vector > 4 ? 3 : 2) * computed;
}

}  // namespace

bool goes_unpacked(const at::Tensor& input, at::TensorList weights, Pass pass) {
  if (!can_go_in_vectors(input, weights)) return false;
  const Dtype dtype = dtype_of(input);
  const int64_t vector = unpacked_kernels(dtype).vector;
  const auto [rows, elements] = shape_of(input, weights);
  const int64_t features = most_features(input, weights);
  if (features > most_narrow_features) {
    return pass == Pass::forward && goes_wide(input, rows, elements) && fill_vectors(rows, vector);
  }
  constexpr int64_t tiny = 16;
  if (pass == Pass::backward && has_plain_layers(input)) return features < tiny;
  // What they save are calls, and vectors that features leave unused. Measured on Zen 3 in AVX2, on Zen 4 in AVX-512.
  const int64_t padded = padded_elements(weights);
  const bool fills_vectors = 20 * elements >= 17 * padded;
  const bool many = rows > 2 * many_rows;
  if (vector * accumulator_size(dtype) == 64) {  // AVX-512
    const bool in_pairs = gemm_kernels(dtype).operand == Dtype::bfloat16;
    if (5 * elements < 3 * padded) return true;
    if (pass == Pass::backward || !fill_vectors(rows, vector)) return false;
    return in_pairs ? goes_wide(input, rows, elements) : !(many && fills_vectors);
  }
  if (pass == Pass::forward) return !(many && fills_vectors);
  const bool in_16_bits = input.element_size() == 2;
  return features <= 16 || (many && !in_16_bits && features <= (fills_vectors ? 64 : most_narrow_features));
}

bool goes_plain(const at::Tensor& input, at::TensorList weights, bool with_derivatives) {
  if (!has_plain_layers(input)) return false;
  const auto [rows, elements] = shape_of(input, weights);
  if (elements > most_plain_weights || are_transposed(weights)) return false;
  if (wanted_products() == Products::unpacked) return true;
  if (elements > most_plain_elements(input, with_derivatives)) return false;
  const bool in_pairs = unpacked_kernels(dtype_of(input)).at_once > 1;
  // On Zen 4 pairs of 16-bit numbers gain on PyTorch's products, too, and for few rows on one thread.
  if (in_pairs && this_cpu() == Cpu::zen4) return true;
  // Threads take parts of the rows: there must be some, or no work for a second one, but more than a few rows.
  const int64_t least_parts = in_pairs ? 8 : 4;
  constexpr int64_t least_rows = 8;
  constexpr int64_t work_of_two_threads = 500'000;
  return (rows >= least_parts * least_part_rows(elements) && !(in_pairs && elements > large_weights / 8)) ||
         (rows >= least_rows && rows * elements < work_of_two_threads);
}

bool goes_unpacked_with_steps(const at::Tensor& input, at::TensorList weights, Pass pass) {
  if (!can_go_in_vectors(input, weights)) return false;
  const Dtype dtype = dtype_of(input);
  const auto [rows, elements] = shape_of(input, weights);
  const bool fills_rows = fill_vectors(rows, unpacked_kernels(dtype).vector);
  if (most_features(input, weights) > most_narrow_features) {
    return pass == Pass::forward && input.element_size() > 2 && goes_wide(input, rows, elements) && fills_rows;
  }
  if (5 * elements < 4 * padded_elements(weights)) return true;
  return gemm_kernels(dtype).operand != Dtype::bfloat16 && fills_rows;
}

bool goes_unpacked_by_layers(const at::Tensor& input, const at::Tensor& gate_weight) {
  // Where reading the weights is most of the work, and turning rows around little of it.
  return gate_weight.numel() > large_weights && !go_in_tiles(input) && goes_unpacked(input, gate_weight, Pass::forward);
}

bool goes_unpacked(const at::Tensor& a, const at::Tensor& b) {
  if (a.element_size() == 2 || !has_own_products(a)) return false;
  const int64_t columns = b.size(1);
  if (a.numel() == 0 || b.numel() == 0 || (columns > 1 && b.stride(1) != 1)) return false;
  if (a.size(1) == 1) return false;  // nothing to be added up: PyTorch's writes whole rows
  if (!fill_vectors(columns, unpacked_kernels(dtype_of(a)).vector)) return false;
  return this_cpu() == Cpu::zen4 || this_cpu() == Cpu::other || wanted_products() == Products::unpacked;
}

bool reads_past_rows(const at::Tensor& input, int64_t depth) {
  static const bool has_tiles = cpu_traits().has_tiles && may_use_tiles();
  constexpr int64_t step = 32;
  return has_tiles && input.scalar_type() == at::kBFloat16 && depth > 2 && depth % step != 0;
}

bool has_faster_products(const at::Tensor& input, at::TensorList weights, Pass pass) {
  const Dtype dtype = dtype_of(input);
  const GemmKernels& gemm = gemm_kernels(dtype);
  const Products wanted = wanted_products();
  if (wanted == Products::unpacked) return input.element_size() == 2 && gemm.multiply;
  if (wanted != Products::fastest) return wanted == Products::own;
  if (!gemm.multiply) return false;
  const bool ensemble = is_ensemble(weights);
  const auto [rows, elements] = shape_of(input, weights);
  if (elements == 0) return true;  // there is nothing to be multiplied, and hidden features need no memory
  const auto past_rows = [&](const at::Tensor& weight) {
    return reads_past_rows(input, weight.size(pass == Pass::forward ? -1 : -2));
  };
  if (std::any_of(weights.begin(), weights.end(), past_rows)) return true;
  const bool in_16_bits = gemm.operand == Dtype::bfloat16;
  if (!in_16_bits && (dtype == Dtype::bfloat16 || dtype == Dtype::float16)) {
    // They are converted, and computed with in float32: PyTorch's oneDNN is slower without instructions for them, and
    // with those of bfloat16 that are slow. It converts float16 itself where there are no tiles.
    static const CpuTraits cpu = cpu_traits();
    // But for one output of many numbers: it multiplies those where they lie.
    if (!ensemble && weights.size() == 1 && elements > most_narrow_features && elements == input.size(-1)) return false;
    if (elements <= small_weights) return true;
    if (dtype == Dtype::bfloat16) return !cpu.has_bfloat16 || cpu.has_slow_bfloat16;
    return !cpu.has_tiles && (!cpu.has_float16 || elements <= large_weights);
  }
  const bool in_tiles = go_in_tiles(input);
  if (is_thin(rows, weights, elements)) return false;
  const Cpu kind = this_cpu();
  // Packing goes across the rows of transposed weights, which MKL takes as they are. Measured on Zen 3.
  if (!in_16_bits && are_transposed(weights)) {
    const bool few_calls = pass == Pass::forward && elements <= small_weights && rows < many_rows;
    if (!few_calls && (kind == Cpu::other_in_avx2 || rows < many_rows)) return false;
  }
  // MKL's batched products leave the matrices where they are, too.
  constexpr int64_t tiny_weights = 1024;
  if (ensemble && kind == Cpu::other_in_avx2 && elements <= tiny_weights) return false;
  if (are_small(kind, dtype, rows, elements)) return true;
  const Operands operands = in_tiles                  ? Operands::tiles
                            : in_16_bits              ? Operands::pairs
                            : dtype == Dtype::float64 ? Operands::float64
                                                      : Operands::float32;
  const bool is_by_intel = kind == Cpu::intel || kind == Cpu::golden_cove;
  if (ensemble && is_by_intel && operands != Operands::tiles && rows < many_rows) return false;
  // Unpacked products, one after another, are faster still.
  const bool is_wide = elements > large_weights / 16 && input.element_size() > 2;
  if (!ensemble && pass == Pass::backward && is_wide) {
    if (kind == Cpu::zen4 && dtype == Dtype::float32) return false;
    const bool fits = rows <= few_rows || (rows <= 4 * many_rows && elements <= 2 * large_weights);
    if (kind == Cpu::other && fits) return false;
  }
  for (const Faster& range : table) {
    if (range.cpu == kind && range.operands == operands && range.pass == pass && range.least_rows <= rows &&
        rows <= range.most_rows && elements <= range.most_elements) {
      return true;
    }
  }
  return false;
}

}  // namespace fastops::cpu
