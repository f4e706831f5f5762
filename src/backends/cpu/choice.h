// Whose matrix products a network is for: those of this library, or PyTorch's.
#pragma once

#include <ATen/core/Tensor.h>

namespace fastops::cpu {

enum class Pass { forward, backward };

// Whether the products here take this input, as FASTOPS_CPU_PRODUCTS and the instruction set have it.
bool has_own_products(const at::Tensor& input);

// Whether PyTorch's product of such rows reads past their ends: where the depth is no whole number of steps of AMX's
// tiles, oneDNN multiplies what is there by zeros, and a NaN or an infinity in the next row makes NaNs in this one
// (torch 2.13). It does not do so for a depth of 1 or 2. It takes the tiles whatever instruction set is asked for here.
bool reads_past_rows(const at::Tensor& input, int64_t depth);

// Whether to use the products here for layers with these weights, rather than PyTorch's: whether the instruction set in
// use has them, and they are the faster ones on this CPU. FASTOPS_CPU_PRODUCTS chooses for all layers. Weights of an
// ensemble: rather than PyTorch's batched products.
bool has_faster_products(const at::Tensor& input, at::TensorList weights, Pass pass);

// Whether rows go through all layers of a network in vectors, and weights are read where they lie: that is the fastest
// way through narrow ones, and, forward, on some CPUs through all.
bool goes_unpacked(const at::Tensor& input, at::TensorList weights, Pass pass);
// The same where there are steps on rows between its products, which else are calls of their own.
bool goes_unpacked_with_steps(const at::Tensor& input, at::TensorList weights, Pass pass);

// Whether the backward pass of layers that are not for that goes row by row, with products of matrices where they lie;
// that of values alone, or of values with their derivatives.
bool goes_plain(const at::Tensor& input, at::TensorList weights, bool with_derivatives);

// Whether the layers of a gated network go unpacked forward, one by one, rather than as products that are packed.
bool goes_unpacked_by_layers(const at::Tensor& input, const at::Tensor& gate_weight);

// Whether that is the way for a single product a @ b, which layers are that neither way is for.
bool goes_unpacked(const at::Tensor& a, const at::Tensor& b);

}  // namespace fastops::cpu
