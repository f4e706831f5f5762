// ATen's basic ops: making tensors, views, copies, filling and random numbers. The rest goes to the CPU: fallback.cpp.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "device.h"
#include "generator.h"
#include "memory.h"

namespace hostmem {
namespace {

using at::Tensor;

// ---- making tensors ----

constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, device_allocator(), keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), keys, c10::dtype_or_default(dtype));
}

// ---- sizes and storages ----

// A storage that is too small for the tensor grows.
void make_room(const Tensor& tensor) {
  const size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  if (needed > tensor.storage().nbytes()) resize_storage(tensor.storage(), needed);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  make_room(self);
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  make_room(self);
  return self;
}
Tensor& set_whole_storage(Tensor& self, c10::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {count}, {1});
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_nothing(Tensor& self) {
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true), 0, {0}, {1});
}

// Views are arithmetic on sizes and strides: PyTorch's own functions do.
Tensor as_strided(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
Tensor reshape_alias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

// ---- copies ----

// copy_ itself, for copies to, from and between devices. With _copy_from alone, which PyTorch's copy_ calls, conjugates
// and negatives that are not yet computed never arrive: to compute them, PyTorch makes a copy.
Tensor& copy_(Tensor& self, const Tensor& source, bool /*non_blocking*/) {
  on_host(self).copy_(on_host(source));
  return self;
}
Tensor copy_from(const Tensor& self, const Tensor& to, bool /*non_blocking*/) {
  on_host(to).copy_(on_host(self));
  return to;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Scalar local_scalar(const Tensor& tensor) { return on_host(tensor).item(); }

void record_stream(Tensor& tensor, c10::Stream stream) {
  c10::impl::VirtualGuardImpl(device_type).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

// ---- the CPU's kernels on the memory of the device ----

bool is_generator(const c10::Argument& argument) {
  const auto& type = *argument.type();
  return type.kind() == c10::TypeKind::GeneratorType ||
         (type.kind() == c10::TypeKind::OptionalType &&
          type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType);
}

// An op that writes into one of its arguments and changes no sizes.
void in_place(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const auto written = std::find_if(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  });
  c10::IValue result = (*stack)[first + (written - arguments.begin())];
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = on_host(value.toTensor());
    } else if (is_generator(arguments[i])) {
      value =
          host_generator(value.isNone() ? default_generator(result.toTensor().device().index()) : value.toGenerator());
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  stack->back() = std::move(result);
}

// With the numbers of the device's generator; PyTorch's dropout calls it for devices of this kind.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0 : 1 / (1 - p)), mask};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("copy_", &copy_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
  m.impl("native_dropout", &native_dropout);
  for (const char* op : {"fill_.Scalar", "fill_.Tensor", "zero_", "normal_", "uniform_", "random_", "random_.from",
                         "random_.to", "bernoulli_.float", "bernoulli_.Tensor", "exponential_", "cauchy_", "geometric_",
                         "log_normal_", "randperm.generator_out"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&in_place>());
  }
}

}  // namespace hostmem
