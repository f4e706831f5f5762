// Every other op runs on the CPU, with copies of its arguments. A model runs from the first day, and ops get kernels in
// the order in which a profile asks for them.
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

namespace {

void cpu_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_fallback>()); }
