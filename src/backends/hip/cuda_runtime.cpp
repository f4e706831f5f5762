// CUDA's runtime for launchers in a library of their own: it is linked statically, and wants a driver.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "backends/hip/kernels.h"

namespace fastops::hip {
namespace {

// Without std::string, of which nvcc's compiler would leave functions for others to see.
struct Lacks {
  char text[160] = "";  // empty if nothing

  Lacks() {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      std::snprintf(text, sizeof(text), "there is no NVIDIA driver (libcuda.so.1)");
    } else if (driver / 1000 < CUDART_VERSION / 1000) {  // the driver may be of an earlier minor version
      std::snprintf(text, sizeof(text), "NVIDIA's driver is for CUDA %d.%d, and the kernels need one for CUDA %d",
                    driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    }
  }
};

}  // namespace

Error unusable() {
  static const Lacks lacks;
  return *lacks.text ? lacks.text : nullptr;
}

}  // namespace fastops::hip
