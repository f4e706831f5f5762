// The current device of the calling thread.
#pragma once

#include "export.h"

namespace hostmem {

HOSTMEM_API int current_device();
HOSTMEM_API void set_current_device(int device);

}  // namespace hostmem
