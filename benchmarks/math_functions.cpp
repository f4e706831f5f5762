// The elementary functions of src/backends/cpu/kernels/math.h as C functions, for math_functions.py.
#include "backends/cpu/kernels/math_float64.cpp"

using namespace fastops::cpu::CPU_CAPABILITY;

namespace {

// n is a multiple of 16, which every vector's size divides.
template <class S, class F>
void map(const S* x, S* y, int64_t n, F f) {
  using V = Vectorized<S>;
  for (int64_t i = 0; i < n; i += V::size()) f(V::loadu(x + i)).store(y + i);
}

}  // namespace

#define FASTOPS_FUNCTION(name)                                                     \
  extern "C" void name##_float32(const float* x, float* y, int64_t n) {            \
    map(x, y, n, [](Floats v) { return fastops::cpu::CPU_CAPABILITY::name(v); });  \
  }                                                                                \
  extern "C" void name##_float64(const double* x, double* y, int64_t n) {          \
    map(x, y, n, [](Doubles v) { return fastops::cpu::CPU_CAPABILITY::name(v); }); \
  }
FASTOPS_FUNCTION(exp)
FASTOPS_FUNCTION(expm1)
FASTOPS_FUNCTION(log1p)
FASTOPS_FUNCTION(tanh)
FASTOPS_FUNCTION(erf)
FASTOPS_FUNCTION(sin)
FASTOPS_FUNCTION(cos)
#undef FASTOPS_FUNCTION
