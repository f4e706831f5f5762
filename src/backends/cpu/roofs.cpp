// The roofs' kernels on all of PyTorch's threads, timed.
#include "backends/cpu/roofs.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "backends/cpu/launch.h"
#include "backends/cpu/launchers/share.h"

namespace fastops::cpu {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Long enough for the clock, short enough that some of many are not interrupted.
constexpr double sample_seconds = 0.002;

// The most times per second that work(repetitions) does a repetition.
template <class Work>
double best_rate(double seconds, Work work) {
  const double start = now();
  int64_t repetitions = 1;
  double best = 0;
  do {
    const double begin = now();
    work(repetitions);
    const double elapsed = std::max(now() - begin, 1e-9);
    const double rate = static_cast<double>(repetitions) / elapsed;
    // Where more at a time goes faster, most of the time was spent waiting for threads: on a busy machine, for long.
    if (elapsed < sample_seconds || rate > 1.1 * best) repetitions *= 2;
    best = std::max(best, rate);
  } while (now() - start < seconds);
  return best;
}

const MultiplyAdd& of_dtype(const RoofKernels& kernels, std::string_view dtype) {
  if (dtype == "float32") return kernels.float32;
  if (dtype == "float64") return kernels.float64;
  if (dtype == "bfloat16") return kernels.bfloat16;
  TORCH_CHECK_VALUE(false, "fastops: dtype must be float32, float64 or bfloat16, but is '", dtype, "'");
}

}  // namespace

std::optional<double> peak_flops(std::string_view dtype, double seconds) {
  const RoofKernels kernels = roof_kernels();
  const MultiplyAdd& multiply_add = of_dtype(kernels, dtype);
  if (!multiply_add.kernel) return std::nullopt;
  constexpr int64_t iterations = 1000;  // in a repetition, so that nothing but the loop counts
  const int64_t threads = at::get_num_threads();
  std::atomic<float> sink{0};  // keeps the compiler from dropping the work
  const double rate = best_rate(seconds, [&](int64_t repetitions) {
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) sink = multiply_add.kernel(repetitions * iterations);
    });
  });
  return rate * static_cast<double>(threads * iterations * multiply_add.flops_per_iteration);
}

double copy_bandwidth(int64_t bytes, bool nontemporal, double seconds) {
  TORCH_CHECK_VALUE(bytes >= static_cast<int64_t>(sizeof(float)), "fastops: bytes must be at least 4, but is ", bytes);
  const RoofKernels kernels = roof_kernels();
  const CopyKernel copy = nontemporal ? kernels.copy_nontemporal : kernels.copy;
  const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
  const at::Tensor in = at::ones({n}, at::kFloat);
  const at::Tensor out = at::zeros({n}, at::kFloat);
  const float* source = in.const_data_ptr<float>();
  float* destination = out.mutable_data_ptr<float>();
  TorchCaller caller;
  const double rate = best_rate(seconds, [&](int64_t repetitions) {
    for (int64_t k = 0; k < repetitions; ++k) {
      share(caller, n, grain_size,
            [&](int64_t begin, int64_t end) { copy(source + begin, destination + begin, end - begin, 1.0f); });
    }
  });
  return rate * 2 * static_cast<double>(n * static_cast<int64_t>(sizeof(float)));
}

}  // namespace fastops::cpu
