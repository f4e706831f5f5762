// HOSTMEM_API marks what the library shows to the Python module and to the kernels.
#pragma once

#define HOSTMEM_API __attribute__((visibility("default")))
