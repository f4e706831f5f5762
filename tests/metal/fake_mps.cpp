// A device "mps" in host memory, so that the host code runs unchanged: its ops are those of the CPU on the same memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

const c10::Device mps(c10::kMPS, 0);

// An element that is never written shows: it is NaN.
struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* memory = size ? std::aligned_alloc(64, (size + 63) / 64 * 64) : nullptr;
    if (memory) std::memset(memory, 0xff, size);
    return {memory, memory, std::free, mps};
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
Allocator allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kMPS; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return mps; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)

struct FakeHooks final : at::MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Allocator* getMPSDeviceAllocator() const override { return &allocator; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void deviceSynchronize() const override {}
  void commitStream() const override {}
};

constexpr c10::DispatchKeySet keys(c10::DispatchKey::MPS);

at::ScalarType supported(std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = c10::dtype_or_default(dtype);
  TORCH_CHECK_TYPE(type != at::kDouble, "Cannot convert a MPS Tensor to float64 dtype, which MPS does not support");
  return type;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, keys, supported(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, keys, supported(dtype));
}

// A CPU tensor over the same memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.is_mps()) return tensor;
  const auto storage =
      c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                   c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU)), nullptr, false);
  return at::empty({0}, tensor.options().device(at::kCPU))
      .set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool) {
  on_cpu(self).copy_(on_cpu(source));
  return self;
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(self));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Scalar local_scalar(const at::Tensor& tensor) { return on_cpu(tensor).item(); }

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  if (self.sizes() == size) return self;  // whatever its strides
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  const size_t needed = (self.storage_offset() + self.numel()) * self.element_size();
  if (needed > self.storage().nbytes()) {
    auto storage = self.storage();
    storage.set_data_ptr_noswap(allocator.allocate(needed));
    storage.set_nbytes(needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

namespace at {
namespace {
C10_REGISTER_CLASS(MPSHooksRegistry, MPSHooks, FakeHooks)
}
}  // namespace at

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("as_strided", &as_strided);
  m.impl("unfold", &unfold);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
}

TORCH_LIBRARY_IMPL(_, MPS, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

namespace {

// How many ops the callbacks around launches have called.
int64_t calls_of_callbacks = 0;

void call_op(const at::RecordFunction& function) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fastops::hardshrink", "")
                             .typed<at::Tensor(const at::Tensor&, double)>();
  thread_local bool calls = false;
  if (calls || std::strncmp(function.name(), "fastops_", 8) != 0) return;
  calls = true;
  op.call(at::ones({4}, at::device(mps)), 0.5);
  ++calls_of_callbacks;
  calls = false;
}

}  // namespace

extern "C" {
// From now on, an op is called where a launch begins and where it ends, as a profiler's callbacks may.
void metal_call_ops_around_launches() {
  at::addGlobalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        call_op(function);
        return nullptr;
      },
      [](const at::RecordFunction& function, at::ObserverContext*) { call_op(function); }));
}
int64_t metal_calls_around_launches() { return calls_of_callbacks; }
}
