// Products of matrices that are no op of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include "export.h"

namespace fastops {

// a @ b for matrices on the CPU, by the kernels of its backend where these are the faster ones; else undefined. The
// tensors are plain ones, and nothing is recorded.
FASTOPS_API at::Tensor try_product(const at::Tensor& a, const at::Tensor& b);

// A static object of this kind has the backend's.
using TryProduct = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b);
struct FASTOPS_API RegisterProduct {
  explicit RegisterProduct(TryProduct product);
};

}  // namespace fastops
