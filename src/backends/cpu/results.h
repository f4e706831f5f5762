// The memory of large results. glibc gives much of what is freed back to the system at once, and a new tensor then
// waits for its page faults longer than for its work. Results that were made here keep their memory for the next ones.
#pragma once

#include <ATen/core/Tensor.h>

namespace fastops::cpu {

// As at::empty and at::empty_like, with a tensor's dtype. Up to 256 MiB of what is freed is kept, or as many MiB as the
// environment variable FASTOPS_CPU_KEPT_MIB says.
at::Tensor empty_result(at::IntArrayRef sizes, const at::Tensor& like);
at::Tensor empty_result_like(const at::Tensor& like);

}  // namespace fastops::cpu
