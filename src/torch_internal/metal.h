// PyTorch's library of Metal kernels made from source text, with its command buffers.
//
// Private, in all torch versions from 2.11 to 2.15: torch.mps.compile_shader is the same for Python. Where it is
// missing the Metal backend cannot be built, and without that everything runs through PyTorch's ops.
#pragma once

#include <ATen/native/mps/MetalShaderLibrary.h>

namespace fastops::mps {

using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;

}  // namespace fastops::mps
