#include "backends/metal/linear_act.h"

#include "backends/metal/rows.h"
#include "ops/environment.h"

namespace fastops::mps {
namespace {

constexpr int64_t most_features = 256;

bool is_wanted() {
  static const bool wanted = environment_choice("FASTOPS_METAL_LINEAR", {"0", "1"}) == "1";
  return wanted;
}
const ReadAtImport wanted_at_import([] { is_wanted(); });

}  // namespace

bool use_linear_act(const Tensor& weight) {
  // An empty tensor has no buffer.
  return is_wanted() && weight.numel() > 0 && weight.size(0) <= most_features && weight.size(1) <= most_features;
}

void linear_and_activate(const ActivationSpec& spec, const Tensor& input, const Tensor& weight, const Tensor& bias,
                         const Tensor& pre, const Tensor& result) {
  if (result.numel() == 0) return;
  const Tensor input_rows = rows_of(input);
  const Tensor weight_rows = rows_of(weight);
  const Tensor bias_row = bias.defined() ? bias.contiguous() : bias;
  RowArguments to = row_arguments(spec, flag_if(has_bias, bias_row) | flag_if(has_pre, pre),
                                  {input_rows, weight_rows, {}, pre, result});
  to.columns = static_cast<uint32_t>(result.size(1));
  to.depth = static_cast<uint32_t>(input.size(1));
  const auto tiles = [](uint32_t size) { return (uint64_t{size} + product_tile - 1) / product_tile; };
  launch({KernelKind::linear_act, spec.id, input},
         {{tiles(to.columns) * product_threads, tiles(to.rows)}, {product_threads, 1}},
         {input_rows, weight_rows, bias_row, pre, result}, to);
}

}  // namespace fastops::mps
