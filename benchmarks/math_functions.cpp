// The elementary functions of src/backends/cpu/kernels/math.h as C functions, for benchmarks/accuracy.py.
#include "backends/cpu/kernels/math.h"

using namespace fastops::cpu::CPU_CAPABILITY;

// n is a multiple of 16, which every vector's size divides.
#define FASTOPS_FUNCTION(name)                                               \
  extern "C" void math_##name(const float* x, float* y, int64_t n) {         \
    for (int64_t i = 0; i < n; i += Floats::size())                          \
      fastops::cpu::CPU_CAPABILITY::name(Floats::loadu(x + i)).store(y + i); \
  }
FASTOPS_FUNCTION(exp)
FASTOPS_FUNCTION(expm1)
FASTOPS_FUNCTION(log1p)
FASTOPS_FUNCTION(tanh)
FASTOPS_FUNCTION(erf)
#undef FASTOPS_FUNCTION
