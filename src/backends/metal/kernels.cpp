#include "backends/metal/kernels.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "backends/metal/sources.h"
#include "torch_internal/metal.h"

namespace fastops::mps {
namespace {

constexpr std::array<const char*, 3> dtype_names = {"float", "half", "bfloat"};

// Where the kernels of a kind are, the macro there that makes one of them, without FASTOPS_, and what is before and
// after the activation in their names.
struct Place {
  Source source;
  const char* macro;
  const char* prefix;
  const char* suffix;
};
constexpr std::array<Place, kernel_kinds> places = {{
    {Source::activation, "ACTIVATION", "", ""},
    {Source::activation_backward, "BACKWARD1", "", "_backward1"},
    {Source::activation_backward, "BACKWARD2", "", "_backward2"},
    {Source::activation_backward, "BACKWARD3", "", "_backward3"},
    {Source::bias_act, "BIAS_ACT", "bias_", ""},
    {Source::bias_act, "BIAS_ACT_BACKWARD", "bias_", "_backward"},
    {Source::gated_act, "GATED_ACT", "gated_", ""},
    {Source::gated_act, "GATED_ACT_BACKWARD", "gated_", "_backward"},
    {Source::linear_act, "LINEAR_ACT", "linear_", ""},
    {Source::column_sums, "COLUMN_SUMS", "column_sums", ""},
    {Source::rows, "ROWS_SMALL", "rows_", "_small"},
    {Source::rows, "ROWS_LARGE", "rows_", "_large"},
    {Source::rows, "ROWS_BACKWARD_SMALL", "rows_", "_backward_small"},
    {Source::rows, "ROWS_BACKWARD_LARGE", "rows_", "_backward_large"},
}};

struct Function {
  std::string name;
  std::unique_ptr<DynamicMetalShaderLibrary> library;
  std::shared_ptr<MetalKernelFunction> run;
};

// A library has one kernel alone, and is compiled when that is wanted: all of them together would take long, and who
// computes forward shall not wait for derivatives.
const Function& function(const KernelId& kernel) {
  // Never destroyed: at exit, PyTorch's Metal device may be gone before.
  static auto* const functions = new Function[kernel_kinds * activation_count * dtype_names.size()];
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int kind = static_cast<int>(kernel.kind);
  Function& function =
      functions[(kind * activation_count + static_cast<int>(kernel.activation)) * dtype_names.size() + kernel.dtype];
  if (!function.run) {
    const Place& place = places[kind];
    const ActivationInfo& activation = info(kernel.activation);
    const char* dtype = dtype_names[kernel.dtype];
    const std::string only = c10::str("#define FASTOPS_ONLY FASTOPS_", place.macro, "(", activation.name,
                                      ", activations::", activation.class_name, ", ", dtype, ")\n");
    function.name = c10::str("fastops_", place.prefix, place.source == Source::column_sums ? "" : activation.name,
                             place.suffix, "_", dtype);
    function.library = std::make_unique<DynamicMetalShaderLibrary>(only + source_text(place.source));
    function.run = function.library->getKernelFunction(function.name);
  }
  return function;
}

}  // namespace

int dtype_index(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 0;
    case at::kHalf:
      return 1;
    case at::kBFloat16:
      return 2;
    default:
      TORCH_CHECK_TYPE(false, "fastops: Apple GPUs have no ", dtype, "; use float32, bfloat16 or float16");
  }
}

KernelId::KernelId(KernelKind kind, Activation activation, at::ScalarType dtype)
    : kind(kind), activation(activation), dtype(dtype_index(dtype)) {}

void launch(const KernelId& kernel, const Grid& grid, at::TensorList tensors, const void* arguments, uint64_t size) {
  const Function& kernel_function = function(kernel);
  // Its callbacks, of profilers and of others, may call ops themselves: no lock is held around them.
  RECORD_FUNCTION(kernel_function.name.c_str(), c10::ArrayRef<const c10::IValue>{});
  // A MetalKernelFunction keeps the encoder that it writes to: one thread at a time.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  MetalKernelFunction& run = *kernel_function.run;
  run.runCommandBlock([&] {
    run.startEncoding();
    unsigned index = 0;
    // Metal wants every buffer of a kernel to be there.
    const Tensor& any = *std::find_if(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
    for (const Tensor& tensor : tensors) run.setArg(index++, tensor.defined() ? tensor : any);
    run.setArg(index, arguments, size);
    run.dispatch(c10::ArrayRef<uint64_t>(grid.threads), c10::ArrayRef<uint64_t>(grid.group));
  });
}

}  // namespace fastops::mps
