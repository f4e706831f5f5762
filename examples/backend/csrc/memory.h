// The memory of the devices. A device pointer cannot be read by the host: kernels ask where the memory really is.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "export.h"

namespace hostmem {

inline constexpr c10::DeviceType device_type = c10::DeviceType::PrivateUse1;
inline constexpr int device_count = 2;

// Where the host finds what a device pointer points to. A real driver has no such function; its kernels run on the
// device.
HOSTMEM_API void* host_pointer(const void* device_pointer);

// The device that a pointer belongs to; -1 for any other pointer.
int device_of(const void* pointer);

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);

// Gives a storage of a device another size and keeps its content.
void resize_storage(const c10::Storage& storage, size_t bytes);

// A CPU tensor over the memory of a device tensor, which must outlive it; a CPU tensor as it is.
HOSTMEM_API at::Tensor on_host(const at::Tensor& tensor);

}  // namespace hostmem
