// Each function of math.h as a kernel, for test_math.py.
#include "backends/metal/kernels/math.h"

#define PROBE(function)                       \
  [[kernel]] void probe_##function(           \
      device const float* x [[buffer(0)]],      \
      device float* y [[buffer(1)]],            \
      uint i [[thread_position_in_grid]]) {     \
    y[i] = function(x[i]);                      \
  }

namespace fastops {
namespace mps {
PROBE(exp)
PROBE(exp2)
PROBE(expm1)
PROBE(log1p)
PROBE(tanh)
PROBE(erf)
PROBE(sin)
PROBE(cos)
}  // namespace mps
}  // namespace fastops
