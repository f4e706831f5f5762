// CUDA's runtime for launchers in a library of their own: it is linked statically, and wants a driver.
#include <cuda_runtime_api.h>

#include <string>

#include "backends/hip/kernels.h"

namespace fastops::hip {
namespace {

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

std::string what_the_driver_lacks() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "there is no NVIDIA driver (libcuda.so.1)";
  // Code of a minor version runs with the driver of an earlier one.
  if (driver / 1000 >= CUDART_VERSION / 1000) return {};
  return "NVIDIA's driver is for CUDA " + version(driver) + ", and the kernels need one for CUDA " +
         version(CUDART_VERSION / 1000 * 1000);
}

}  // namespace

Error unusable() {
  static const std::string lacks = what_the_driver_lacks();
  return lacks.empty() ? nullptr : lacks.c_str();
}

}  // namespace fastops::hip
