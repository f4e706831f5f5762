#include "backends/hip/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backends/hip/launch.h"
#include "backends/hip/product_time.h"
#include "ops/bias_act.h"
#include "ops/matrix.h"
#include "torch_internal/products.h"

namespace fastops::hip {
namespace {

constexpr ActivationSpec identity{Activation::identity, {}};

bool has_rows(const Tensor& matrix) { return matrix.size(1) <= 1 || matrix.stride(1) == 1; }
Tensor with_rows(const Tensor& matrix) { return has_rows(matrix) ? matrix : matrix.contiguous(); }

Tensor empty_matrix(int64_t rows, int64_t columns, const Tensor& like) {
  return at::empty({rows, columns}, like.options());
}

// Its sizes alone.
Product product_of(int64_t rows, int64_t columns, int64_t depth, const Tensor& like) {
  return {.rows = rows,
          .columns = columns,
          .depth = depth,
          .dtype = dtype_of(like),
          .multiprocessors = multiprocessors_of(like)};
}
// Of left [rows, depth] and right [columns, depth].
Product product_of(const Tensor& left, const Tensor& right) {
  Product product = product_of(left.size(0), right.size(0), left.size(1), left);
  product.left = matrix_of(left);
  product.right = matrix_of(right);
  product.stream = stream_of(left);
  return product;
}

bool fits(const Product& product) {
  constexpr int64_t most_depth = int64_t{1} << 30;
  return std::min({product.rows, product.columns, product.depth}) > 0 && product.rows <= most_product_rows &&
         product.columns <= most_product_columns && product.depth <= most_depth;
}

// Of times that add(ProductTimes&) puts together. The emulator is there to run the kernels.
template <class F>
bool are_faster(const Tensor& like, F add) {
  return like.is_cpu() || choose_own(like, [&](bool in_graph) {
           ProductTimes times = times_of_choice(dtype_of(like), in_graph);
           add(times);
           return times.own_are_faster();
         });
}

bool is_faster(const Product& product, const Tensor& like, ProductKind kind, int64_t steps) {
  return fits(product) && are_faster(like, [&](ProductTimes& times) { times.add(product, kind, steps); });
}

void multiply(const Tensor& left, const Tensor& right, const Tensor& bias, const ActivationSpec& f, const Tensor& z,
              const Tensor& y) {
  RECORD_FUNCTION("fastops::product", c10::ArrayRef<const c10::IValue>());
  check(product_forward(product_of(left, right), f.id, f.params(), bias.defined() ? data_of(bias) : nullptr,
                        bias.defined() ? bias.stride(0) : 0, result_data(z), result_data(y)));
}

// The gradient of what a layer above had from f, dz @ weight times f' at `saved`; fills `value` with f's where given.
Tensor gradient_below(const Tensor& dz, const Tensor& weight, const ActivationSpec& f, bool from_output,
                      const Tensor& saved, Tensor* value) {
  RECORD_FUNCTION("fastops::product", c10::ArrayRef<const c10::IValue>());
  Tensor result = empty_matrix(dz.size(0), weight.size(1), dz);
  if (value) *value = empty_matrix(dz.size(0), weight.size(1), dz);
  check(product_backward(product_of(dz, weight.t()), f.id, f.params(), from_output,
                         saved.defined() ? matrix_of(saved) : Matrix{}, result_data(result),
                         value ? result_data(*value) : nullptr));
  return result;
}

// dz.T @ x, and the sum of dz's rows where `bias_grad` is given.
Tensor weight_gradient(const Tensor& dz, const Tensor& x, Tensor* bias_grad) {
  RECORD_FUNCTION("fastops::product", c10::ArrayRef<const c10::IValue>());
  Tensor result = empty_matrix(dz.size(1), x.size(1), dz);
  if (bias_grad) *bias_grad = at::empty({dz.size(1)}, dz.options());
  check(product_weights(product_of(dz.t(), x.t()), result_data(result), bias_grad ? result_data(*bias_grad) : nullptr));
  return result;
}

// Whether the whole backward pass is, with all gradients: so that each has the same bits whichever others are wanted.
bool are_gradients_faster(const MlpArguments& mlp) {
  const Tensor& like = mlp.input;
  const int64_t rows = row_count(like);
  // f(product, kind, steps)
  const auto for_each_product = [&](auto f) {
    for (size_t i = 0; i < mlp.layers(); ++i) {
      const int64_t out = mlp.weights[i].size(0), in = mlp.weights[i].size(1);
      // The sum for the bias is a kernel besides the library's product, the derivative another.
      f(product_of(out, in, rows, like), ProductKind::weights, mlp.biases[i].defined());
      f(product_of(rows, in, out, like), ProductKind::backward, i > 0);
    }
  };
  bool fit = true;
  for_each_product([&](const Product& product, ProductKind, bool) { fit = fit && fits(product); });
  return fit && are_faster(like, [&](ProductTimes& times) {
           for_each_product(
               [&](const Product& product, ProductKind kind, bool has_step) { times.add(product, kind, has_step); });
         });
}

}  // namespace

bool may_be_own_products(const Tensor& input, at::TensorList weights) {
  const bool is_float32 = input.scalar_type() == at::kFloat;
  const bool is_multiplied = is_float32 ? !is_rounded_to_tf32() : input.scalar_type() != at::kDouble;
  return is_multiplied && std::all_of(weights.begin(), weights.end(), has_rows);
}

void prepare_library(const Tensor& like) {
  static thread_local std::array<bool, 64> is_prepared{};
  const size_t device = std::max<int>(like.device().index(), 0);
  if (device >= is_prepared.size() || std::exchange(is_prepared[device], true)) return;
  const Tensor one = at::zeros({1, 1}, like.options());
  at::mm(one, one);
}

std::optional<LayerSteps::Forward> try_product_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                     const ActivationSpec& f, bool keeps_z) {
  if (!may_be_own_products(x, weight)) return std::nullopt;
  const Product sizes = product_of(x.size(0), weight.size(0), weight.size(1), x);
  if (!is_faster(sizes, x, ProductKind::forward, f.id != Activation::identity)) return std::nullopt;
  LayerSteps::Forward layer;
  layer.y = empty_matrix(x.size(0), weight.size(0), x);
  if (keeps_z) layer.z = empty_matrix(x.size(0), weight.size(0), x);
  multiply(with_rows(x), weight, bias, f, layer.z, layer.y);
  return layer;
}

std::optional<Tensor> try_product(const Tensor& a, const Tensor& b) {
  if (!may_be_own_products(a, {})) return std::nullopt;
  const Product sizes = product_of(a.size(0), b.size(1), a.size(1), a);
  const auto kind = !has_rows(a)      ? ProductKind::weights
                    : has_rows(b.t()) ? ProductKind::forward
                                      : ProductKind::backward;
  if (!is_faster(sizes, a, kind, /*steps=*/0)) return std::nullopt;
  if (kind == ProductKind::forward) {
    Tensor result = empty_matrix(a.size(0), b.size(1), a);
    multiply(a, b.t(), {}, identity, {}, result);
    return result;
  }
  if (!has_rows(b)) return std::nullopt;
  if (has_rows(a)) return gradient_below(a, b, identity, false, {}, nullptr);
  if (has_rows(a.t())) return weight_gradient(a.t(), b, nullptr);
  return std::nullopt;
}

std::optional<std::vector<Tensor>> try_product_gradients(const MlpBackwardArguments& mlp) {
  if (!may_be_own_products(mlp.input, mlp.weights) || !are_gradients_faster(mlp)) return std::nullopt;
  const size_t lowest = mlp.lowest_wanted();
  const auto kept = [&](size_t i) { return as_matrix(mlp.kept(i)); };
  std::vector<Tensor> grads(mlp.output_mask.size());
  size_t i = mlp.layers() - 1;
  Tensor dz = as_matrix(mlp.grad_output);
  if (const ActivationSpec& f = mlp.activation_of(i); f.id != Activation::identity) {
    dz = bias_act_backward(dz, kept(i), std::nullopt, f, mlp.saves_output(i), {true, false}).front();
  }
  dz = with_rows(dz);
  while (true) {
    const bool goes_on = lowest < 1 + 2 * i;
    Tensor below, value;  // the gradient of the sums below, or of the input; the layer's input
    if (i == 0) {
      value = mlp.input;
      if (goes_on) below = gradient_below(dz, mlp.weights[0], identity, false, {}, nullptr);
    } else {
      const ActivationSpec& f = mlp.activation_of(i - 1);
      const bool from_output = mlp.saves_output(i - 1);
      const bool wants_value = mlp.wants_weight(i) && !from_output;
      if (from_output) value = kept(i - 1);
      if (goes_on) {
        below = gradient_below(dz, mlp.weights[i], f, from_output, kept(i - 1), wants_value ? &value : nullptr);
      } else if (wants_value) {
        value = bias_act(kept(i - 1), std::nullopt, f);
      }
    }
    const bool wants_bias = mlp.wants_bias(i);
    if (mlp.wants_weight(i)) {
      grads[1 + 2 * i] = weight_gradient(dz, with_rows(as_matrix(value)), wants_bias ? &grads[2 + 2 * i] : nullptr);
    } else if (wants_bias) {
      grads[2 + 2 * i] = bias_act_backward(dz, dz, std::nullopt, identity, /*from_output=*/true, {false, true}).front();
    }
    if (i == 0 || !goes_on) {
      if (goes_on) grads[0] = below.view(mlp.input.sizes());
      break;
    }
    dz = below;
    --i;
  }
  std::erase_if(grads, [](const Tensor& grad) { return !grad.defined(); });
  return grads;
}

}  // namespace fastops::hip
