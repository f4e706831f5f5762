// The ops on GPU tensors: from tensors to the launchers' arguments.
#include "ops/device.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "backends/hip/epilogue.h"
#include "backends/hip/launch.h"
#include "backends/hip/product.h"
#include "backends/hip/rows.h"
#include "backends/hip/small_mlp.h"

namespace fastops::hip {
namespace {

// Each function finds strides that make a grid; where there are none, it takes copies.
struct Device {
  using Guard = c10::DeviceGuard;

  static Tensor empty(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }
  static Tensor empty_like(const Tensor& like) {
    if (!like.is_non_overlapping_and_dense()) return at::empty_like(like);
    return at::empty_strided(like.sizes(), like.strides(), like.options());  // what that calls through the dispatcher
  }

  static bool try_activation(const ActivationSpec& f, const Tensor& x, const Tensor& y) {
    const auto grid = find_grid(y, x);
    if (grid) check(activation_forward(call_for(f, y, *grid), grid->matrices[1], grid->matrices[0]));
    return grid.has_value();
  }

  static bool try_activation_backward(const ActivationBackwardArguments& backward, const Tensor& result) {
    const auto grid = find_grid({result}, {backward.grad_output, backward.saved});
    if (!grid) return false;
    const auto& m = grid->matrices;
    check(activation_backward(call_for(backward.activation, result, *grid), static_cast<int>(backward.order),
                              backward.from_output, m[1], m[2], m[0]));
    return true;
  }

  static void bias_act(const ActivationSpec& f, const Tensor& x, const Tensor& bias, const Tensor& z, const Tensor& y) {
    if (z.defined()) {
      bias_act({Activation::identity, {}}, x, bias, {}, z);
      return activate<Device>(f, z, y);
    }
    const auto grid = find_grid({y}, {x, bias.expand(y.sizes())});
    if (!grid) return bias_act(f, x.contiguous(), bias, {}, y);
    check(bias_forward(call_for(f, y, *grid), grid->matrices[1], grid->matrices[2], grid->matrices[0]));
  }

  static LayerSteps::Backward bias_act_backward(const Tensor& grad, const Tensor& saved, const Tensor& bias,
                                                const ActivationSpec& f, bool from_output, LayerSteps::Wanted wanted,
                                                bool /*disposable*/) {
    LayerSteps::Backward results;
    if (wanted.grad) results.grad = empty(saved.sizes(), saved);
    if (wanted.grad && !wanted.bias_grad && !bias.defined()) {  // whatever the columns are
      activate_backward<Device>({grad, saved, f, from_output, /*order=*/1}, results.grad);
      return results;
    }
    if (wanted.bias_grad) results.bias_grad = empty({saved.size(-1)}, saved);
    const Tensor added = bias.defined() ? bias.expand(saved.sizes()) : bias;
    auto grid = find_grid({results.grad}, {grad, saved, added}, /*keep_columns=*/true);
    Tensor grad_rows, saved_rows;  // copies, where the strides do not make a grid
    if (!grid) {
      grad_rows = grad.contiguous();
      saved_rows = saved.contiguous();
      grid = find_grid({results.grad}, {grad_rows, saved_rows, added}, /*keep_columns=*/true);
    }
    Call call = call_for(f, saved, *grid);
    call.multiprocessors = multiprocessors_of(saved);
    Tensor block_sums;
    if (const int64_t blocks = bias_backward_blocks(call); wanted.bias_grad && blocks > 1) {
      block_sums = at::empty({blocks, call.columns}, saved.options().dtype(compute_type(saved)));
    }
    const auto& m = grid->matrices;
    check(bias_backward(call, from_output, m[1], m[2], m[3], m[0], result_data(block_sums),
                        result_data(results.bias_grad)));
    return results;
  }

  static void act_mul(const ActivationSpec& f, const Tensor& gate, const Tensor& up, const Tensor& y) {
    const auto grid = find_grid({y}, {gate, up});
    if (!grid) return act_mul(f, gate.contiguous(), up.contiguous(), y);
    check(gated_forward(call_for(f, gate, *grid), grid->matrices[1], grid->matrices[2], grid->matrices[0]));
  }

  static void act_mul_backward(const ActivationSpec& f, const Tensor& grad, const Tensor& gate, const Tensor& up,
                               const GatedGradients& results) {
    const auto grid = find_grid({results.gate, results.up, results.product}, {grad, gate, up});
    if (!grid) return act_mul_backward(f, grad.contiguous(), gate.contiguous(), up.contiguous(), results);
    const auto& m = grid->matrices;
    check(gated_backward(call_for(f, gate, *grid), m[3], m[4], m[5], m[0], m[1], m[2]));
  }

  static Tensor product(const Tensor& a, const Tensor& b) {
    if (auto result = try_product(a, b)) return *std::move(result);
    return at::mm(a, b);
  }

  static Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const ActivationSpec identity{Activation::identity, {}};
    if (auto layer = try_product_layer(x, weight, bias, identity, /*keeps_z=*/false)) return std::move(layer->y);
    return library_linear(x, weight, bias);
  }

  static Tensor library_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
  }

  static Tensor layer_in_steps(const Tensor& x, const Tensor& weight, const Tensor& bias, const ActivationSpec& f) {
    const Tensor z = library_linear(x, weight, bias);
    activate<Device>(f, z, z);
    return z;
  }

  // The product adds the bias: in PyTorch's libraries as its last step.
  static std::optional<LayerSteps::Forward> try_layer(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                      const ActivationSpec& f, bool keeps_z) {
    if (f.id == Activation::identity) return std::nullopt;
    if (auto layer = try_product_layer(x, weight, bias, f, keeps_z)) return layer;
    if (!keeps_z) {
      if (auto y = try_epilogue(x, weight, bias, f, layer_in_steps)) return LayerSteps::Forward{{}, *std::move(y)};
    }
    const Tensor z = library_linear(x, weight, bias);
    const Tensor y = keeps_z ? empty_like(z) : z;
    activate<Device>(f, z, y);
    return LayerSteps::Forward{z, y};
  }

  static std::optional<Tensor> try_mlp(const MlpArguments& mlp, std::vector<Tensor>* saved) {
    return use_small_mlp(mlp, /*backward=*/false) ? std::optional(small_mlp(mlp, saved)) : std::nullopt;
  }
  static std::optional<std::vector<Tensor>> try_mlp_backward(const MlpBackwardArguments& mlp) {
    return use_small_mlp(mlp, /*backward=*/true) ? small_mlp_gradients(mlp) : try_product_gradients(mlp);
  }

  static constexpr auto rows = steps_on_rows;
  static constexpr auto rows_backward = steps_on_rows_backward;
};

}  // namespace

TORCH_LIBRARY_IMPL(fastops, FASTOPS_GPU_KEY, m) { impl_ops<Device>(m); }

}  // namespace fastops::hip
