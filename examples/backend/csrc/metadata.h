// What this device knows of a tensor beyond its sizes: a set of named flags. Real devices keep such things as a tiled
// memory format.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "export.h"

namespace hostmem {

HOSTMEM_API void set_flag(const at::Tensor& tensor, const std::string& name);
HOSTMEM_API bool has_flag(const at::Tensor& tensor, const std::string& name);

}  // namespace hostmem
