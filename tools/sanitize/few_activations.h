// Included before every kernel of the CPU: the activations of the tests that are about kernels and threads and not
// about formulas. Of the instruction sets that are not used, next to nothing.
#pragma once

#include "activations/table.h"

#undef FASTOPS_ACTIVATIONS
#if defined(CPU_CAPABILITY_DEFAULT) && defined(__x86_64__)
#define FASTOPS_ACTIVATIONS(X) X(identity, Identity)
#else
#define FASTOPS_ACTIVATIONS(X) \
  X(identity, Identity) X(relu, ReLU) X(gelu, GELU) X(silu, SiLU) X(tanh, Tanh) X(softshrink, Softshrink)
#endif
