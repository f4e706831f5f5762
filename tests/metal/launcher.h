// Runs a kernel of the table over a grid of threads, as a GPU would.
#pragma once

#include <string>
#include <vector>

namespace metal {
template <typename T, int N>
struct vec;  // the launcher needs the table's layout only
}

#include "shim/dispatch.h"

namespace metal_shim {

// Null if there is no such kernel.
const KernelEntry* find_kernel(const std::string& name);

// The order in which threads run; 0 is that of their indices.
void set_schedule(unsigned seed);

// Throws std::runtime_error where Metal's behavior would be undefined.
void launch(const KernelEntry& kernel, void* const* buffers, const unsigned (&grid)[3], const unsigned (&group)[3]);

}  // namespace metal_shim
