// Ops in place of plain modules.
#pragma once

#include "torch_internal/bindings.h"

namespace fastops {

// Gives fastops._C functions that call an op for the modules that a network has, and return None where one of these is
// not plain (plain.h).
void define_calls_of_modules(pybind11::module_& m);

}  // namespace fastops
