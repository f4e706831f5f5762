// The random number generators of the devices.
#pragma once

#include <ATen/core/Generator.h>

#include "export.h"

namespace hostmem {

at::Generator new_generator(int device);

// The generator that ops of a device use when they are given none.
HOSTMEM_API const at::Generator& default_generator(int device);

// The CPU generator inside a device's: the kernels draw from it.
at::Generator host_generator(const at::Generator& generator);

}  // namespace hostmem
