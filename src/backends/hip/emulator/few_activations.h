// The activations of the tests that are about kernels and not about formulas: by comparisons and by functions, with
// parameters and without, with a derivative from the output and without.
#pragma once

#define FASTOPS_KERNEL_ACTIVATIONS(X) \
  X(identity, Identity) X(gelu, GELU) X(silu, SiLU) X(softplus, Softplus) X(softshrink, Softshrink)
