#include "backends/cpu/launchers/products.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace fastops::cpu {
namespace {

// f(thread) for each of `threads` threads.
template <class F>
void on_threads(Caller& caller, int64_t threads, const F& f) {
  share(caller, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) f(thread);
  });
}

// Units of work that cost the same.
struct Units {
  int64_t count;
  int64_t cost;
};

// f(thread, task, first, last): deals out the units of all tasks, in order, such that each thread has the same cost.
template <class UnitsOf, class F>
void share_units(Caller& caller, int64_t threads, size_t tasks, const UnitsOf& units_of, const F& f) {
  if (threads == 1) {
    for (size_t i = 0; i < tasks; ++i) {
      if (const int64_t count = units_of(i).count) f(0, i, 0, count);
    }
    return;
  }
  int64_t total = 0;
  for (size_t i = 0; i < tasks; ++i) {
    const Units task = units_of(i);
    total += task.count * task.cost;
  }
  on_threads(caller, threads, [&](int64_t thread) {
    const auto boundary = [&](int64_t t) { return total / threads * t + total % threads * t / threads; };
    int64_t before = 0;  // the cost of the tasks that came before
    for (size_t i = 0; i < tasks; ++i) {
      const auto [count, cost] = units_of(i);
      const auto unit_at = [&, count = count, cost = cost](int64_t place) {
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

// The bytes of an element for each step of the depth, in panels and tiles.
int64_t depth_bytes(Dtype dtype, int64_t depth) {
  const int64_t at_once = gemm_kernels(dtype).at_once;
  return (depth + at_once - 1) / at_once * at_once * element_size(operand(dtype));
}

// At least 32, whatever the depth.
int64_t rows_per_block(std::span<const Stage> stages, Dtype dtype) {
  int64_t depth = 1;
  for (const Stage& stage : stages) {
    for (int i = 0; i < stage.product_count; ++i) depth = std::max(depth, stage.products[i].depth);
  }
  const GemmKernels& gemm = gemm_kernels(dtype);
  const int64_t row_bytes = depth * element_size(gemm.operand);
  return std::clamp<int64_t>(gemm.left_bytes / row_bytes / 12 * 12, 32, gemm.most_rows);
}

void run_stage(const Stage& stage, Dtype dtype, int64_t row, int64_t rows, int64_t first_panel, int64_t last_panel) {
  const GemmKernels& gemm = gemm_kernels(dtype);
  if (stage.product_count > 0) {
    gemm.multiply(stage.products, stage.product_count, row, rows, stage.columns, first_panel, last_panel,
                  stage.epilogue);
  } else if (stage.epilogue.run) {
    const ConstRows source = from_row(stage.source, row, computed(dtype));
    stage.epilogue.run(stage.epilogue.arguments, {{source.data, nullptr}, source.stride, row, rows, 0, stage.columns});
  } else {
    const ConstRows source = from_row(stage.source, row, dtype);
    const Rows target = from_row(stage.target, row, stage.target_type);
    if (stage.target_type != dtype) return gemm.convert(source, rows, stage.columns, target);
    const int64_t size = element_size(dtype);
    for (int64_t r = 0; r < rows; ++r) {
      const auto* from = static_cast<const char*>(from_row(source, r, dtype).data);
      std::copy_n(from, stage.columns * size, static_cast<char*>(from_row(target, r, dtype).data));
    }
  }
}

}  // namespace

int64_t threads_for(Caller& caller, int64_t operations) {
  constexpr int64_t least_operations = 500'000;
  return operations < 2 * least_operations ? 1 : std::min(caller.threads(), operations / least_operations);
}

Rows take_rows(Caller& caller, Dtype type, int64_t rows, int64_t columns) {
  const int64_t size = element_size(type);
  int64_t stride = (columns + 31) / 32 * 32;
  // Rows a power of two apart would fall into the same few sets of the caches.
  if (stride * size % 2048 == 0) stride += 64 / size;
  return {caller.take(rows * stride * size), stride};
}

void* take_panels(Caller& caller, Dtype dtype, int64_t depth, int64_t columns) {
  return caller.take(panel_count(dtype, columns) * gemm_kernels(dtype).panel_columns * depth_bytes(dtype, depth));
}

void pack_all(Caller& caller, std::span<const Panels> matrices, Dtype dtype, int64_t threads) {
  profile(caller, "fastops::pack", [&] {
    const auto units_of = [&](size_t i) {
      const PackArguments& matrix = matrices[i].arguments;
      return Units{panel_count(dtype, matrix.columns), std::max<int64_t>(1, matrix.depth)};
    };
    share_units(caller, threads, matrices.size(), units_of, [&](int64_t, size_t i, int64_t first, int64_t last) {
      matrices[i].kernel(matrices[i].arguments, first, last);
    });
  });
}

void run_stages(Caller& caller, std::span<const Stage> stages, Dtype dtype, int64_t rows, int64_t rows_of_unit,
                int64_t threads) {
  profile(caller, "fastops::layers", [&] {
    int64_t largest = 0;
    for (const Stage& stage : stages) {
      for (int i = 0; i < stage.product_count; ++i) {
        largest = std::max(largest, stage.products[i].depth * stage.columns);
      }
    }
    const GemmKernels& gemm = gemm_kernels(dtype);
    const int64_t row_parts = std::clamp<int64_t>(rows / gemm.least_rows(largest), 1, threads);
    const int64_t column_parts = threads / row_parts;
    // Parts and blocks are of whole units of rows, but for the last one.
    const int64_t unit = rows_of_unit > 1 ? rows_of_unit : gemm.rows_at_once;
    const int64_t units = (rows + unit - 1) / unit;
    const int64_t most_units = std::max<int64_t>(1, rows_per_block(stages, dtype) / unit);
    const auto for_each_block = [&](int64_t part, auto f) {
      const int64_t first = units * part / row_parts;
      const Parts blocks(units * (part + 1) / row_parts - first, most_units);
      for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t begin = (first + blocks.begin(block)) * unit;
        f(begin, std::min(rows, (first + blocks.end(block)) * unit) - begin);
      }
    };
    if (column_parts == 1) {
      // Rows are independent: each thread takes its own through all stages.
      on_threads(caller, row_parts, [&](int64_t part) {
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
      const int64_t parts = stage.product_count == 0 ? 1 : std::min(column_parts, panels);
      on_threads(caller, row_parts * parts, [&](int64_t thread) {
        const int64_t part = thread % parts;
        for_each_block(thread / parts, [&](int64_t row, int64_t count) {
          run_stage(stage, dtype, row, count, panels * part / parts, panels * (part + 1) / parts);
        });
      });
    }
  });
}

// Units of work of a layer: one panel of columns of one block of rows of the weight's gradient, in the order of blocks.
// A thread packs the tiles of a block when it comes to it; the one that has its first panel adds up the bias gradient.
namespace {

int64_t panels_of(const ParameterGradients& layer, Dtype dtype) {
  return std::max<int64_t>(1, layer.weight ? panel_count(dtype, layer.input.arguments.columns) : 1);
}

// The blocks of rows of a weight's gradient, sums over so many rows of the input. Where those are few, there is little
// to do for each sum: it must not have left the L1 cache until it is stored. Measured.
Parts blocks_of(const ParameterGradients& layer, Dtype dtype, int64_t rows) {
  return {layer.out_features, depth_bytes(dtype, rows) <= 512 ? 32 : gemm_kernels(dtype).most_rows};
}

// Whether dz is read where it lies: for few panels, packing it takes longer than it saves. Measured. Rows that are a
// multiple of 4 KiB apart fall into the same sets of the caches.
bool takes_in_place(const ParameterGradients& layer, Dtype dtype) {
  const GemmKernels& gemm = gemm_kernels(dtype);
  return gemm.at_once == 1 && (layer.dz_is_operand || dtype == gemm.operand) && panels_of(layer, dtype) <= 4 &&
         layer.dz.stride * element_size(gemm.operand) % 4096 != 0;
}

Units units_of(const ParameterGradients& layer, Dtype dtype, int64_t rows) {
  const Parts blocks = blocks_of(layer, dtype, rows);
  if (blocks.count == 0) return {0, 1};
  return {blocks.count * panels_of(layer, dtype), blocks.n / blocks.count};
}

bool has_panels(const ParameterGradients& layer) { return layer.weight && !layer.input_in_place; }

// Whether a layer's panels are those of the layer before it, as a gate and its other half have the same input.
bool shares_panels(std::span<const ParameterGradients> layers, size_t i) {
  if (i == 0 || !has_panels(layers[i - 1]) || !has_panels(layers[i])) return false;
  const Panels& before = layers[i - 1].input;
  const Panels& own = layers[i].input;
  return own.arguments.source.data == before.arguments.source.data && own.arguments.columns == before.arguments.columns;
}

// Small gradients do not make work for all threads: there the threads share the rows, and the sums of the parts are
// added in order. The number of parts, and with it every bit of the result, does not depend on the threads.
int64_t parts_of(std::span<const ParameterGradients> layers, int64_t rows) {
  constexpr int64_t least_part = 256;
  constexpr int64_t most_elements = 16 * 1024;
  int64_t elements = 0;
  for (const ParameterGradients& layer : layers) elements += layer.out_features * layer.input.arguments.columns;
  return elements <= most_elements ? std::max<int64_t>(1, rows / least_part) : 1;
}

}  // namespace

GradientSums::GradientSums(Caller& caller, Dtype dtype, int64_t threads, std::span<const ParameterGradients> layers,
                           int64_t rows, bool whole)
    : caller_(caller),
      dtype_(dtype),
      threads_(threads),
      parts_(parts_of(layers, rows)),
      sums_converted_(dtype == computed(dtype) || !whole || parts_ > 1),
      sums_(caller, parts_ * layers.size()),
      panels_(caller, layers.size()),
      tiles_(caller, std::max(threads, parts_)),
      inputs_(caller, layers.size()) {
  if (layers.empty()) return;
  const int64_t size = accumulator_size(dtype);
  for (int64_t part = 0; part < parts_; ++part) {
    for (const ParameterGradients& layer : layers) {
      const int64_t columns = layer.input.arguments.columns;
      const bool in_place = part == 0 && dtype == computed(dtype);
      Sums& sums = sums_.push_back({{nullptr, columns}, nullptr});
      if (layer.weight) {
        sums.weight.data =
            in_place || !sums_converted_ ? layer.weight : caller.take(layer.out_features * columns * size);
      }
      if (layer.bias) sums.bias = in_place ? layer.bias : caller.take(layer.out_features * size);
    }
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    panels_.push_back(shares_panels(layers, i) ? panels_[i - 1]
                      : has_panels(layers[i])  ? take_panels(caller, dtype, rows, layers[i].input.arguments.columns)
                                               : nullptr);
  }
  const bool packs = std::any_of(layers.begin(), layers.end(), [&](const ParameterGradients& layer) {
    return layer.weight && !takes_in_place(layer, dtype);
  });
  for (int64_t i = 0; i < std::max(threads, parts_); ++i) {
    tiles_.push_back(packs ? caller.take(gemm_kernels(dtype).most_rows * depth_bytes(dtype, rows)) : nullptr);
  }
}

void GradientSums::multiply(const ParameterGradients& layer, const Sums& sums, const void* panels, int64_t rows,
                            int64_t thread, int64_t first_unit, int64_t last_unit, bool add) const {
  const Dtype dz_type = layer.dz_is_operand ? operand(dtype_) : dtype_;
  const Parts blocks = blocks_of(layer, dtype_, rows);
  const int64_t per_block = panels_of(layer, dtype_);
  const StoreArguments store{sums.weight, add};
  for (int64_t unit = first_unit; unit < last_unit;) {
    const int64_t block = unit / per_block;
    const int64_t first_panel = unit % per_block;
    const int64_t last_panel = std::min(per_block, first_panel + last_unit - unit);
    const int64_t row = blocks.begin(block);
    const ConstRows dz{static_cast<const char*>(layer.dz.data) + row * element_size(dz_type), layer.dz.stride};
    void* const bias =
        sums.bias && first_panel == 0 ? static_cast<char*>(sums.bias) + row * accumulator_size(dtype_) : nullptr;
    const int64_t step = layer.bias_step;
    const auto pack_tiles = gemm_kernels(dz_type).pack_tiles;
    const bool in_place = takes_in_place(layer, dtype_);
    void* const tiles = in_place || !layer.weight ? nullptr : tiles_[thread];
    if (bias && step > 1) {  // the sums alone, where they come without tiles
      pack_tiles({dz.data, dz.stride * step}, rows / step, blocks.size(block), nullptr, bias);
    }
    if (tiles || (bias && step == 1)) {
      pack_tiles(dz, rows, blocks.size(block), tiles, step > 1 ? nullptr : bias);
    }
    if (layer.weight) {
      Product product{.a = in_place ? dz : ConstRows{tiles, 0},
                      .panels = panels,
                      .transpose = {},
                      .depth = rows,
                      .packed = !in_place,
                      .transposed = in_place};
      if (layer.input_in_place) product.matrix = layer.input.arguments.source;
      gemm_kernels(dtype_).multiply(&product, 1, row, blocks.size(block), layer.input.arguments.columns, first_panel,
                                    last_panel, storing(sums_converted_ ? computed(dtype_) : dtype_, store));
    }
    unit += last_panel - first_panel;
  }
}

void GradientSums::add(std::span<const ParameterGradients> layers, int64_t rows, bool first) {
  if (layers.empty()) return;
  profile(caller_, "fastops::parameter_gradients", [&] {
    for (size_t i = 0; first && i < sums_.size(); ++i) {
      const int64_t features = layers[i % layers.size()].out_features;
      if (sums_[i].bias) std::memset(sums_[i].bias, 0, features * accumulator_size(dtype_));
    }
    if (parts_ == 1) return add_whole(layers, rows, first);
    share(caller_, parts_, (parts_ + threads_ - 1) / threads_, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) add_part(layers, part, rows, first);
    });
  });
}

void GradientSums::add_whole(std::span<const ParameterGradients> layers, int64_t rows, bool first) {
  inputs_.clear();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!has_panels(layers[i]) || shares_panels(layers, i)) continue;
    Panels& input = inputs_.push_back(layers[i].input);
    input.arguments.depth = rows;
    input.arguments.panels = panels_[i];
  }
  pack_all(caller_, inputs_, dtype_, threads_);
  share_units(
      caller_, threads_, layers.size(), [&](size_t i) { return units_of(layers[i], dtype_, rows); },
      [&](int64_t thread, size_t i, int64_t begin, int64_t end) {
        multiply(layers[i], sums_[i], panels_[i], rows, thread, begin, end, !first);
      });
}

// The whole work for the rows of one part, on the calling thread.
void GradientSums::add_part(std::span<const ParameterGradients> layers, int64_t part, int64_t rows, bool first) {
  int64_t unit = gemm_kernels(dtype_).at_once;
  for (const ParameterGradients& layer : layers) unit = std::lcm(unit, layer.bias_step);
  const auto boundary = [&](int64_t p) { return p == parts_ ? rows : rows * p / parts_ / unit * unit; };
  const int64_t begin = boundary(part);
  const int64_t count = boundary(part + 1) - begin;
  for (size_t i = 0; i < layers.size(); ++i) {
    ParameterGradients layer = layers[i];
    layer.dz = from_row(layer.dz, begin, layer.dz_is_operand ? operand(dtype_) : dtype_);
    PackArguments& input = layer.input.arguments;
    input.source = from_row(input.source, begin, dtype_);
    input.depth = count;
    const int64_t width = panel_count(dtype_, input.columns) * gemm_kernels(dtype_).panel_columns;
    if (panels_[i]) input.panels = static_cast<char*>(panels_[i]) + width * depth_bytes(dtype_, begin);
    if (has_panels(layer) && !shares_panels(layers, i))
      layer.input.kernel(input, 0, panel_count(dtype_, input.columns));
    multiply(layer, sums_[part * layers.size() + i], input.panels, count, part, 0, units_of(layer, dtype_, count).count,
             !first);
  }
}

void GradientSums::finish(std::span<const ParameterGradients> layers) {
  const Dtype same = computed(dtype_);
  const bool convert = dtype_ != same;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t rows = layers[i].out_features;
    const int64_t columns = layers[i].input.arguments.columns;
    const Sums& total = sums_[i];
    for (int64_t part = 1; part < parts_; ++part) {
      const Sums& sums = sums_[part * layers.size() + i];
      if (sums.weight.data) store_sums(same, constant(sums.weight), total.weight, rows, columns, /*add=*/true);
      if (sums.bias) store_sums(same, {sums.bias, rows}, {total.bias, rows}, 1, rows, /*add=*/true);
    }
    if (!convert) continue;
    if (total.bias) store_sums(dtype_, {total.bias, rows}, {layers[i].bias, rows}, 1, rows);
    if (total.weight.data && sums_converted_) {
      const Rows target{layers[i].weight, columns};
      share_rows(caller_, rows, columns, [&](int64_t begin, int64_t end) {
        store_sums(dtype_, constant(from_row(total.weight, begin, same)), from_row(target, begin, dtype_), end - begin,
                   columns);
      });
    }
  }
}

}  // namespace fastops::cpu
