// Elementwise kernels over tensors of any strides.
#pragma once

#include "backends/metal/kernels.h"

namespace fastops::mps {

// output[i] = f(inputs[i]...); the tensors have the same sizes, and the output may be one of the inputs.
void elementwise(const KernelId& kernel, const ActivationSpec& spec, bool from_output, at::TensorList inputs,
                 const Tensor& output);

}  // namespace fastops::mps
