// Elementwise kernels over strided tensors.
#pragma once

#include "backends/metal/kernels.h"

namespace fastops::mps {

// output[i] = f(inputs[i]...); the tensors have the same sizes, and the output may be one of the inputs. False if they
// have too many dimensions, or more elements in one than a kernel counts, unless all are laid out alike.
bool try_elementwise(const KernelId& kernel, const ActivationSpec& spec, bool from_output, at::TensorList inputs,
                     const Tensor& output);

}  // namespace fastops::mps
