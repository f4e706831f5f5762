#include "backends/cpu/gemm.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ops/environment.h"
#include "ops/matrix.h"

namespace fastops::cpu {
namespace {

// f(thread) for each of `threads` threads.
template <class F>
void on_threads(int64_t threads, F f) {
  share(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) f(thread);
  });
}

// Units of work that cost the same.
struct Units {
  int64_t count;
  int64_t cost;
};

// f(thread, task, first, last): deals out the units of all tasks, in order, such that each thread has the same cost.
template <class F>
void share_units(int64_t threads, c10::ArrayRef<Units> tasks, F f) {
  int64_t total = 0;
  for (const Units& task : tasks) total += task.count * task.cost;
  on_threads(threads, [&](int64_t thread) {
    const auto boundary = [&](int64_t t) { return total / threads * t + total % threads * t / threads; };
    int64_t before = 0;  // the cost of the tasks that came before
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto [count, cost] = tasks[i];
      const auto unit_at = [&](int64_t place) {
        return std::clamp<int64_t>((place - before + cost - 1) / cost, 0, count);
      };
      const int64_t first = unit_at(boundary(thread));
      const int64_t last = thread + 1 == threads ? count : unit_at(boundary(thread + 1));
      if (first < last) f(thread, i, first, last);
      before += count * cost;
    }
  });
}

int64_t panel_count(Dtype dtype, int64_t columns) {
  const int64_t width = gemm_kernels(dtype).panel_columns;
  return (columns + width - 1) / width;
}

// The rows that one thread takes at least: below that, more of its time goes into reading the panels.
constexpr int64_t least_rows = 24;

// The left-hand matrices of a block stay in the L2 cache while the panels pass by.
constexpr int64_t left_bytes = 512 * 1024;

int64_t rows_per_block(c10::ArrayRef<Stage> stages, Dtype dtype) {
  int64_t depth = 1;
  for (const Stage& stage : stages) {
    for (const Product& product : stage.products) depth = std::max(depth, product.depth);
  }
  return std::clamp<int64_t>(left_bytes / (depth * accumulator_size(dtype)) / 12 * 12, least_rows, block_rows);
}

void run_stage(const Stage& stage, Dtype dtype, int64_t row, int64_t rows, int64_t first_panel, int64_t last_panel) {
  const GemmKernels& gemm = gemm_kernels(dtype);
  if (!stage.products.empty()) {
    gemm.multiply(stage.products.data(), static_cast<int>(stage.products.size()), row, rows, stage.columns, first_panel,
                  last_panel, stage.epilogue);
  } else if (stage.epilogue.run) {
    const ConstRows source = from_row(stage.source, row, computed(dtype));
    stage.epilogue.run(stage.epilogue.arguments, {{source.data, nullptr}, source.stride, row, rows, 0, stage.columns});
  } else {
    gemm.convert(from_row(stage.source, row, dtype), rows, stage.columns, from_row(stage.target, row, computed(dtype)));
  }
}

struct CpuTraits {
  bool is_intel = false;
  bool has_bfloat16 = false;  // instructions that multiply 16-bit numbers
  bool has_float16 = false;
};

CpuTraits cpu_traits() {
#if defined(__GNUC__) && defined(__x86_64__)
  static const CpuTraits traits{__builtin_cpu_is("intel") != 0, __builtin_cpu_supports("avx512bf16") != 0,
                                __builtin_cpu_supports("avx512fp16") != 0};
  return traits;
#else
  return {};
#endif
}

enum class Products { fastest, own, torch };

// FASTOPS_CPU_PRODUCTS: whose matrix products to use. By default the faster ones.
Products wanted_products() {
  static const Products wanted = [] {
    std::vector<std::string> choices = {"torch"};
    if (gemm_kernels(Dtype::float32).multiply) choices.insert(choices.begin(), "own");
    const std::string choice = environment_choice("FASTOPS_CPU_PRODUCTS", choices);
    return choice == "own" ? Products::own : choice == "torch" ? Products::torch : Products::fastest;
  }();
  return wanted;
}
const ReadAtImport products_at_import([] { wanted_products(); });

// The elements of the weights with as many rows and columns as vectors of 16 numbers make of them.
int64_t padded_count(at::TensorList weights) {
  const auto padded = [](int64_t features) { return (features + 15) / 16 * 16; };
  int64_t elements = 0;
  for (const at::Tensor& weight : weights) elements += padded(weight.size(0)) * padded(weight.size(1));
  return elements;
}

}  // namespace

int64_t element_count(at::TensorList tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

bool use_gemm(const at::Tensor& input, at::TensorList weights, Pass pass) {
  const Products wanted = wanted_products();
  if (wanted != Products::fastest) return wanted == Products::own;
  const Dtype dtype = dtype_of(input);
  if (!gemm_kernels(dtype).multiply) return false;
  const CpuTraits cpu = cpu_traits();
  // PyTorch's oneDNN uses the instructions for 16-bit numbers.
  if (dtype == Dtype::bfloat16) return !cpu.has_bfloat16;
  if (dtype == Dtype::float16) return !cpu.has_float16;
  const int64_t rows = row_count(input);
  const int64_t elements = element_count(weights);
  // Layers from or to very few features leave most of each vector unused; PyTorch's product with a vector does not.
  if (rows >= 4096 && 12 * elements < padded_count(weights)) return false;
  // On its own CPUs, Intel's MKL takes the weights of few rows without packing them, and reaches 90% of the peak with
  // large ones and in the backward pass, which packs everything twice here; elsewhere it does not.
  constexpr int64_t small_weights = 32 * 1024;
  constexpr int64_t large_weights = 1024 * 1024;
  if (elements <= small_weights) return true;
  if (cpu.is_intel) return pass == Pass::forward && rows >= 256 && elements <= large_weights;
  return rows >= 32;  // what packing costs is spread over the rows
}

int64_t threads_for(int64_t operations) {
  constexpr int64_t least_operations = 500'000;
  if (operations < 2 * least_operations || at::in_parallel_region()) return 1;
  return std::min<int64_t>(at::get_num_threads(), operations / least_operations);
}

Rows take_rows(Workspace& workspace, Dtype dtype, int64_t rows, int64_t columns) {
  const int64_t size = accumulator_size(dtype);
  int64_t stride = (columns + 31) / 32 * 32;
  // Rows a power of two apart would fall into the same few sets of the caches.
  if (stride * size % 2048 == 0) stride += 16;
  return {workspace.take(rows * stride * size), stride};
}

void* take_panels(Workspace& workspace, Dtype dtype, int64_t depth, int64_t columns) {
  return workspace.take(panel_count(dtype, columns) * gemm_kernels(dtype).panel_columns * depth *
                        accumulator_size(dtype));
}

void pack_all(c10::ArrayRef<Panels> matrices, Dtype dtype, int64_t threads) {
  RECORD_FUNCTION("fastops::pack", c10::ArrayRef<const c10::IValue>());
  c10::SmallVector<Units, 8> tasks;
  for (const Panels& matrix : matrices) {
    tasks.push_back({panel_count(dtype, matrix.arguments.columns), std::max<int64_t>(1, matrix.arguments.depth)});
  }
  share_units(threads, tasks, [&](int64_t, size_t task, int64_t first, int64_t last) {
    matrices[task].kernel(matrices[task].arguments, first, last);
  });
}

void run_stages(c10::ArrayRef<Stage> stages, Dtype dtype, int64_t rows, int64_t threads) {
  RECORD_FUNCTION("fastops::layers", c10::ArrayRef<const c10::IValue>());
  const int64_t row_parts = std::clamp<int64_t>(rows / least_rows, 1, threads);
  const int64_t column_parts = threads / row_parts;
  const int64_t most = rows_per_block(stages, dtype);
  const auto for_each_block = [&](int64_t part, auto f) {
    const int64_t begin = rows * part / row_parts;
    const int64_t end = rows * (part + 1) / row_parts;
    const Parts blocks(end - begin, most);
    for (int64_t block = 0; block < blocks.count; ++block) f(begin + blocks.begin(block), blocks.size(block));
  };
  if (column_parts == 1) {
    // Rows are independent: each thread takes its own through all stages.
    on_threads(row_parts, [&](int64_t part) {
      for_each_block(part, [&](int64_t row, int64_t count) {
        for (const Stage& stage : stages) {
          run_stage(stage, dtype, row, count, 0, panel_count(dtype, stage.columns));
        }
      });
    });
    return;
  }
  for (const Stage& stage : stages) {
    const int64_t panels = panel_count(dtype, stage.columns);
    const int64_t parts = stage.products.empty() ? 1 : std::min(column_parts, panels);
    on_threads(row_parts * parts, [&](int64_t thread) {
      const int64_t part = thread % parts;
      for_each_block(thread / parts, [&](int64_t row, int64_t count) {
        run_stage(stage, dtype, row, count, panels * part / parts, panels * (part + 1) / parts);
      });
    });
  }
}

// Units of work of a layer: one panel of columns of one block of rows of the weight's gradient, in the order of blocks.
// A thread packs the tiles of a block when it comes to it; the one that has its first panel adds up the bias gradient.
namespace {

int64_t panels_of(const ParameterGradients& layer, Dtype dtype) {
  return std::max<int64_t>(1, layer.weight.defined() ? panel_count(dtype, layer.input.arguments.columns) : 1);
}

Units units_of(const ParameterGradients& layer, Dtype dtype) {
  return {Parts(layer.out_features, block_rows).count * panels_of(layer, dtype),
          std::max<int64_t>(1, layer.out_features)};
}

}  // namespace

void GradientSums::prepare(c10::ArrayRef<ParameterGradients> layers, int64_t rows, bool whole) {
  if (layers.empty()) return;
  int64_t elements = 0;
  for (const ParameterGradients& layer : layers) elements += layer.out_features * layer.input.arguments.columns;
  // Small gradients do not make work for all threads: there the threads share the rows, and the sums of the parts are
  // added in order. The number of parts, and with it every bit of the result, does not depend on the threads.
  constexpr int64_t least_part = 256;
  constexpr int64_t most_elements = 16 * 1024;
  if (elements <= most_elements) parts_ = std::max<int64_t>(1, rows / least_part);

  sums_converted_ = dtype_ == computed(dtype_) || !whole || parts_ > 1;
  const int64_t size = accumulator_size(dtype_);
  for (int64_t part = 0; part < parts_; ++part) {
    for (const ParameterGradients& layer : layers) {
      const int64_t columns = layer.input.arguments.columns;
      const bool in_place = part == 0 && dtype_ == computed(dtype_);
      Sums sums{{nullptr, columns}, nullptr};
      if (layer.weight.defined()) {
        sums.weight.data = in_place || !sums_converted_ ? layer.weight.mutable_data_ptr()
                                                        : workspace_.take(layer.out_features * columns * size);
      }
      if (layer.bias.defined()) {
        sums.bias = in_place ? layer.bias.mutable_data_ptr() : workspace_.take(layer.out_features * size);
      }
      sums_.push_back(sums);
    }
  }
  for (const ParameterGradients& layer : layers) {
    panels_.push_back(layer.weight.defined() ? take_panels(workspace_, dtype_, rows, layer.input.arguments.columns)
                                             : nullptr);
  }
  for (int64_t i = 0; i < std::max(threads_, parts_); ++i) tiles_.push_back(workspace_.take(block_rows * rows * size));
}

void GradientSums::multiply(const ParameterGradients& layer, const Sums& sums, const void* panels, int64_t rows,
                            int64_t thread, int64_t first_unit, int64_t last_unit, bool add) const {
  const GemmKernels& source = gemm_kernels(layer.dz_converted ? computed(dtype_) : dtype_);
  const GemmKernels& target = gemm_kernels(sums_converted_ ? computed(dtype_) : dtype_);
  const int64_t dz_size = element_size(layer.dz_converted ? computed(dtype_) : dtype_);
  const Parts blocks(layer.out_features, block_rows);
  const int64_t per_block = panels_of(layer, dtype_);
  const StoreArguments store{sums.weight, add};
  for (int64_t unit = first_unit; unit < last_unit;) {
    const int64_t block = unit / per_block;
    const int64_t first_panel = unit % per_block;
    const int64_t last_panel = std::min(per_block, first_panel + last_unit - unit);
    const int64_t row = blocks.begin(block);
    const ConstRows dz{static_cast<const char*>(layer.dz.data) + row * dz_size, layer.dz.stride};
    void* const bias =
        sums.bias && first_panel == 0 ? static_cast<char*>(sums.bias) + row * accumulator_size(dtype_) : nullptr;
    source.pack_tiles(dz, rows, blocks.size(block), tiles_[thread], bias);
    if (layer.weight.defined() && layer.input.arguments.columns > 0) {
      const Product product{{tiles_[thread], 0}, panels, rows, /*packed=*/true};
      gemm_kernels(dtype_).multiply(&product, 1, row, blocks.size(block), layer.input.arguments.columns, first_panel,
                                    last_panel, {target.store, &store});
    }
    unit += last_panel - first_panel;
  }
}

void GradientSums::add(c10::ArrayRef<ParameterGradients> layers, int64_t rows, bool first) {
  if (layers.empty()) return;
  RECORD_FUNCTION("fastops::parameter_gradients", c10::ArrayRef<const c10::IValue>());
  if (first) {
    for (size_t i = 0; i < sums_.size(); ++i) {
      const int64_t features = layers[i % layers.size()].out_features;
      if (sums_[i].bias) std::memset(sums_[i].bias, 0, features * accumulator_size(dtype_));
    }
  }
  if (parts_ > 1) {
    share(parts_, (parts_ + threads_ - 1) / threads_, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) add_part(layers, part, rows, first);
    });
    return;
  }
  c10::SmallVector<Panels, 8> inputs;
  c10::SmallVector<Units, 8> tasks;
  for (size_t i = 0; i < layers.size(); ++i) {
    tasks.push_back(units_of(layers[i], dtype_));
    if (!layers[i].weight.defined()) continue;
    inputs.push_back(layers[i].input);
    inputs.back().arguments.depth = rows;
    inputs.back().arguments.panels = panels_[i];
  }
  pack_all(inputs, dtype_, threads_);
  share_units(threads_, tasks, [&](int64_t thread, size_t i, int64_t begin, int64_t end) {
    multiply(layers[i], sums_[i], panels_[i], rows, thread, begin, end, !first);
  });
}

// The whole work for the rows of one part, on the calling thread.
void GradientSums::add_part(c10::ArrayRef<ParameterGradients> layers, int64_t part, int64_t rows, bool first) {
  const int64_t begin = rows * part / parts_;
  const int64_t count = rows * (part + 1) / parts_ - begin;
  for (size_t i = 0; i < layers.size(); ++i) {
    ParameterGradients layer = layers[i];
    layer.dz = from_row(layer.dz, begin, layer.dz_converted ? computed(dtype_) : dtype_);
    PackArguments& input = layer.input.arguments;
    input.source = from_row(input.source, begin, dtype_);
    input.second = from_row(input.second, begin, dtype_);
    input.depth = count;
    const int64_t width = panel_count(dtype_, input.columns) * gemm_kernels(dtype_).panel_columns;
    input.panels = static_cast<char*>(panels_[i]) + begin * width * accumulator_size(dtype_);
    if (layer.weight.defined()) layer.input.kernel(input, 0, panel_count(dtype_, input.columns));
    multiply(layer, sums_[part * layers.size() + i], input.panels, count, part, 0, units_of(layer, dtype_).count,
             !first);
  }
}

void GradientSums::finish(c10::ArrayRef<ParameterGradients> layers) {
  const GemmKernels& same = gemm_kernels(computed(dtype_));
  const GemmKernels& gemm = gemm_kernels(dtype_);
  const bool convert = dtype_ != computed(dtype_);
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t rows = layers[i].out_features;
    const int64_t columns = layers[i].input.arguments.columns;
    // target[rows, columns] (+)= source
    const auto store = [](const GemmKernels& kernels, const void* source, void* target, int64_t rows, int64_t columns,
                          bool add) {
      const StoreArguments arguments{{target, columns}, add};
      kernels.store(&arguments, {{source, nullptr}, columns, 0, rows, 0, columns});
    };
    for (int64_t part = 1; part < parts_; ++part) {
      const Sums& sums = sums_[part * layers.size() + i];
      if (sums.weight.data) store(same, sums.weight.data, sums_[i].weight.data, rows, columns, true);
      if (sums.bias) store(same, sums.bias, sums_[i].bias, 1, rows, true);
    }
    if (!convert) continue;
    if (sums_[i].bias) store(gemm, sums_[i].bias, layers[i].bias.mutable_data_ptr(), 1, rows, false);
    if (sums_[i].weight.data && sums_converted_) {
      const auto data = static_cast<const char*>(sums_[i].weight.data);
      char* const target = byte_data(layers[i].weight);
      share_rows(rows, columns, [&](int64_t begin, int64_t end) {
        store(gemm, data + begin * columns * accumulator_size(dtype_), target + begin * columns * element_size(dtype_),
              end - begin, columns, false);
      });
    }
  }
}

}  // namespace fastops::cpu
