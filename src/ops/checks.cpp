#include "ops/checks.h"

#include <ATen/MemoryOverlap.h>

#include "torch_internal/functorch.h"

namespace fastops {

std::ostream& operator<<(std::ostream& out, const Argument& argument) {
  // What schemas call self, as PyTorch's do, is input in Python, and in PyTorch's own messages there.
  out << (argument.name == "self" ? "input" : argument.name);
  if (argument.index >= 0) out << '[' << argument.index << ']';
  return out;
}

namespace {

// Whether all elements lie within the storage, which may have been resized: FSDP frees parameters so. Nothing is known
// of tensors without memory of their own.
bool lies_in_storage(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage()) {
    const at::Tensor& inner = unwrapped(tensor);
    return inner.is_same(tensor) || lies_in_storage(inner);
  }
  constexpr c10::DispatchKeySet stand_ins({c10::DispatchKey::Python, c10::DispatchKey::Functionalize});
  if (impl.has_symbolic_sizes_strides() || impl.key_set().has_any(stand_ins)) return true;
  const c10::Storage& storage = impl.unsafe_storage();
  int64_t elements = impl.numel();
  if (elements == 0 || storage.device_type() == c10::kMeta) return true;
  if (!impl.is_contiguous()) {
    elements = 1;
    for (int64_t d = 0; d < impl.dim(); ++d) elements += (impl.size(d) - 1) * impl.stride(d);
  }
  return (impl.storage_offset() + elements) * impl.itemsize() <= storage.nbytes();
}

}  // namespace

void check_tensor(std::string_view op, Argument argument, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined(), "fastops.", op, ": ", argument, " is an undefined tensor");
  TORCH_CHECK_TYPE(!tensor.is_nested(), "fastops.", op, ": ", argument,
                   " must be a dense (strided) tensor, but is a nested one");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "fastops.", op, ": ", argument,
                   " must be a dense (strided) tensor, ", "but its layout is ", tensor.layout());
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
      break;
    default:
      TORCH_CHECK_TYPE(false, "fastops.", op, ": ", argument, " must be float32, float64, bfloat16 or float16, but is ",
                       tensor.scalar_type());
  }
  TORCH_CHECK(lies_in_storage(tensor), "fastops.", op, ": ", argument, " has shape ", tensor.sym_sizes(),
              ", but its storage is too small for that: its memory has been freed, or its storage resized");
}

void check_like(std::string_view op, Argument argument, const at::Tensor& tensor, Argument like_argument,
                const at::Tensor& like) {
  check_tensor(op, argument, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), "fastops.", op, ": ", argument, " is ",
                   tensor.scalar_type(), ", but ", like_argument, " is ", like.scalar_type(),
                   "; they must have the same dtype");
  TORCH_CHECK(tensor.device() == like.device(), "fastops.", op, ": ", argument, " is on ", tensor.device(), ", but ",
              like_argument, " is on ", like.device(), "; they must be on the same device");
}

bool has_sizes(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  const c10::SymIntArrayRef own = tensor.sym_sizes();
  return std::equal(own.begin(), own.end(), sizes.begin(), sizes.end(), [](const c10::SymInt& a, const c10::SymInt& b) {
    return a.sym_eq(b).expect_true(__FILE__, __LINE__);
  });
}

void check_same_shape(std::string_view op, Argument argument, const at::Tensor& tensor, Argument like_argument,
                      const at::Tensor& like) {
  check_like(op, argument, tensor, like_argument, like);
  TORCH_CHECK_VALUE(has_sizes(tensor, like.sym_sizes()), "fastops.", op, ": ", argument, " has shape ",
                    tensor.sym_sizes(), ", but ", like_argument, " has shape ", like.sym_sizes(),
                    "; they must be equal (nothing is broadcast)");
}

c10::SymInt last_size(std::string_view op, Argument argument, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "fastops.", op, ": ", argument, " must have at least one dimension, but is 0-d");
  return tensor.sym_size(-1);
}

void check_shape(std::string_view op, Argument argument, const at::Tensor& tensor, c10::SymIntArrayRef sizes,
                 Argument like_argument, const at::Tensor& like) {
  check_like(op, argument, tensor, like_argument, like);
  TORCH_CHECK_VALUE(has_sizes(tensor, sizes), "fastops.", op, ": ", argument, " has shape ", tensor.sym_sizes(),
                    ", but must have shape ", sizes);
}

void check_bias(std::string_view op, Argument argument, const std::optional<at::Tensor>& bias,
                c10::SymIntArrayRef sizes, Argument like_argument, const at::Tensor& like) {
  if (bias && bias->defined()) check_shape(op, argument, *bias, sizes, like_argument, like);
}

namespace {

// Whether the tensor's place in memory is known; it is not while torch.compile traces symbolic sizes.
bool has_place(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

void check_no_internal_overlap(std::string_view op, Argument argument, const at::Tensor& tensor) {
  TORCH_CHECK(!has_place(tensor) || at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "fastops.", op, ": ",
              argument, " is written to, but several of its elements share one memory location (it is expanded); ",
              "clone() it first");
}

at::MemOverlapStatus overlap(const at::Tensor& a, const at::Tensor& b) {
  return has_place(a) && has_place(b) ? at::get_overlap_status(a, b) : at::MemOverlapStatus::No;
}

}  // namespace

void check_out(std::string_view op, const at::Tensor& out, const at::Tensor& like) {
  check_like(op, "out", out, "self", like);
  TORCH_CHECK_VALUE(out.sym_sizes().equals(like.sym_sizes()) || out.sym_numel() == 0, "fastops.", op,
                    ": out has shape ", out.sym_sizes(), ", but the result has shape ", like.sym_sizes(),
                    " (only an empty out is resized)");
}

void prepare_out(std::string_view op, at::Tensor& out, const at::Tensor& like) {
  check_out(op, out, like);
  if (!out.sym_sizes().equals(like.sym_sizes())) out.resize__symint(like.sym_sizes());
  check_no_internal_overlap(op, "out", out);
  TORCH_CHECK(overlap(out, like) != at::MemOverlapStatus::Partial, "fastops.", op,
              ": out overlaps input in part; it must be input or lie elsewhere");
}

void check_separate(std::string_view op, Argument argument, const std::optional<at::Tensor>& tensor,
                    const at::Tensor& out) {
  if (!tensor || !tensor->defined()) return;
  const auto status = overlap(out, *tensor);
  TORCH_CHECK(status != at::MemOverlapStatus::Partial && status != at::MemOverlapStatus::Full, "fastops.", op, ": ",
              argument, " overlaps out; they must lie apart in memory");
}

void check_in_place(std::string_view op, const at::Tensor& self) {
  check_tensor(op, "self", self);
  check_no_internal_overlap(op, "self", self);
}

}  // namespace fastops
