// A stand-in for libcuda.so.1, NVIDIA's driver, without any device: what CUDA's runtime asks it first.
int cuDriverGetVersion(int* version) {
  *version = VERSION;
  return 0;
}
