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
  return fastops::cpu::kernels(spec.id, fastops::dtype_of(tensor));
}

inline void* data(const Tensor& tensor) { return tensor.defined() ? host_pointer(tensor.mutable_data_ptr()) : nullptr; }
inline const void* const_data(const Tensor& tensor) {
  return tensor.defined() ? host_pointer(tensor.const_data_ptr()) : nullptr;
}

// A tensor [..., columns] as a matrix. Its rows are contiguous, and evenly spaced: those of the half of a contiguous
// tensor are further apart than they are long. What a kernel may compute and is not asked for is an undefined tensor.
inline int64_t columns(const Tensor& tensor) { return tensor.dim() == 0 ? 1 : tensor.size(-1); }
inline int64_t rows(const Tensor& tensor) { return columns(tensor) == 0 ? 0 : tensor.numel() / columns(tensor); }
inline int64_t row_stride(const Tensor& tensor) { return tensor.is_contiguous() ? columns(tensor) : tensor.stride(-2); }
inline fastops::cpu::Rows rows_of(const Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, 0};
  return {data(tensor), row_stride(tensor)};
}
inline fastops::cpu::ConstRows const_rows_of(const Tensor& tensor) { return {const_data(tensor), row_stride(tensor)}; }

}  // namespace hostmem
