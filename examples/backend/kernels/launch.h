// From device tensors to the raw arguments of kernels.
#pragma once

#include <ATen/ATen.h>
#include <fastops/backends/cpu/kernels.h>
#include <fastops/fastops.h>

#include "../csrc/memory.h"

namespace hostmem {

using at::Tensor;
using fastops::ActivationSpec;

// The kernels of this device are those of the CPU. Another device has its own, with the formulas of
// <fastops/activations/activations.h>.
inline const fastops::cpu::Kernels& kernels_for(const ActivationSpec& spec, const Tensor& tensor) {
  using fastops::cpu::Dtype;
  const auto type = tensor.scalar_type();
  return fastops::cpu::kernels(spec.id, type == at::kDouble     ? Dtype::float64
                                        : type == at::kBFloat16 ? Dtype::bfloat16
                                        : type == at::kHalf     ? Dtype::float16
                                                                : Dtype::float32);
}

inline void* data(const Tensor& tensor) { return tensor.defined() ? host_pointer(tensor.mutable_data_ptr()) : nullptr; }
inline const void* const_data(const Tensor& tensor) {
  return tensor.defined() ? host_pointer(tensor.const_data_ptr()) : nullptr;
}

// What a kernel may compute and is not asked for.
inline constexpr fastops::cpu::Rows no_rows{nullptr, 0};

// A tensor [..., columns] as a matrix; its rows are contiguous and `stride` elements apart.
inline int64_t columns(const Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(-1); }
inline int64_t rows(const Tensor& tensor) { return columns(tensor) == 0 ? 0 : tensor.numel() / columns(tensor); }
inline fastops::cpu::Rows row_data(const Tensor& tensor, int64_t stride) { return {data(tensor), stride}; }
inline fastops::cpu::ConstRows const_row_data(const Tensor& tensor, int64_t stride) {
  return {const_data(tensor), stride};
}

// The tensor, with its elements in the order in which `like` has them.
inline Tensor in_layout_of(const Tensor& like, const Tensor& tensor) {
  return tensor.strides() == like.strides() ? tensor : at::empty_like(like).copy_(tensor);
}

}  // namespace hostmem
