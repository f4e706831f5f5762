#include "backends/metal/kernels.h"

#include <ATen/record_function.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "backends/metal/sources.h"
#include "torch_internal/metal.h"

namespace fastops::mps {
namespace {

constexpr std::array<const char*, 3> dtype_names = {"float", "half", "bfloat"};

int dtype_index(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return 0;
    case at::kHalf:
      return 1;
    case at::kBFloat16:
      return 2;
    default:
      TORCH_CHECK_TYPE(false, "fastops: Apple GPUs have no ", tensor.scalar_type(),
                       "; use float32, bfloat16 or float16");
  }
}

// Where the kernels of a kind are, and what is before and after the activation in their names.
struct Place {
  Source source;
  const char* prefix;
  const char* suffix;
};
constexpr std::array<Place, kernel_kinds> places = {{
    {Source::activation, "", ""},
    {Source::activation, "", "_backward1"},
    {Source::activation, "", "_backward2"},
    {Source::activation, "", "_backward3"},
    {Source::bias_act, "bias_", ""},
    {Source::bias_act, "bias_", "_backward"},
    {Source::gated_act, "gated_", ""},
    {Source::gated_act, "gated_", "_backward"},
    {Source::linear_act, "linear_", ""},
    {Source::column_sums, "column_sums", ""},
}};

// A file's kernels for one activation and dtype. They are compiled when the first of them is wanted: all of them
// together would take long.
DynamicMetalShaderLibrary& library(Source source, Activation activation, int dtype) {
  // Never destroyed: at exit, PyTorch's Metal device may be gone before.
  static auto* const libraries =
      new std::unique_ptr<DynamicMetalShaderLibrary>[source_count * activation_count * dtype_names.size()];
  auto& library =
      libraries[(static_cast<int>(source) * activation_count + static_cast<int>(activation)) * dtype_names.size() +
                dtype];
  if (!library) {
    const std::string only = c10::str("#define FASTOPS_ONLY FASTOPS_KERNELS(", info(activation).name,
                                      ", activations::", info(activation).class_name, ", ", dtype_names[dtype], ")\n");
    library = std::make_unique<DynamicMetalShaderLibrary>(only + source_text(source));
  }
  return *library;
}

struct Function {
  std::string name;
  std::shared_ptr<MetalKernelFunction> run;
};

Function& function(const KernelId& kernel) {
  static auto* const functions = new Function[kernel_kinds * activation_count * dtype_names.size()];
  const int kind = static_cast<int>(kernel.kind);
  Function& function =
      functions[(kind * activation_count + static_cast<int>(kernel.activation)) * dtype_names.size() + kernel.dtype];
  if (!function.run) {
    const Place& place = places[kind];
    const char* activation = place.source == Source::column_sums ? "" : info(kernel.activation).name;
    function.name = c10::str("fastops_", place.prefix, activation, place.suffix, "_", dtype_names[kernel.dtype]);
    function.run = library(place.source, kernel.activation, kernel.dtype).getKernelFunction(function.name);
  }
  return function;
}

}  // namespace

KernelId::KernelId(KernelKind kind, Activation activation, const Tensor& tensor)
    : kind(kind), activation(activation), dtype(dtype_index(tensor)) {}

void launch(const KernelId& kernel, const Grid& grid, at::TensorList tensors, const void* arguments, uint64_t size) {
  // A MetalKernelFunction keeps the encoder that it writes to: one thread at a time.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Function& kernel_function = function(kernel);
  RECORD_FUNCTION(kernel_function.name.c_str(), c10::ArrayRef<const c10::IValue>{});
  MetalKernelFunction& run = *kernel_function.run;
  run.runCommandBlock([&] {
    run.startEncoding();
    unsigned index = 0;
    // Metal wants every buffer of a kernel to be there.
    for (const Tensor& tensor : tensors) run.setArg(index++, tensor.defined() ? tensor : tensors.front());
    run.setArg(index, arguments, size);
    run.dispatch(c10::ArrayRef<uint64_t>(grid.threads), c10::ArrayRef<uint64_t>(grid.group));
  });
}

}  // namespace fastops::mps
