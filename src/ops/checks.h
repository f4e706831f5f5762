// Argument checks shared by the ops. An error names the op, the argument, what it got and what it needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "export.h"

namespace fastops {

// The name of an argument, or of a tensor in an argument that is a list. It is put together only for an error.
struct Argument {
  Argument(const char* name) : name(name) {}
  Argument(std::string_view name) : name(name) {}
  Argument(std::string_view list, size_t index) : name(list), index(static_cast<int64_t>(index)) {}

  std::string_view name;
  int64_t index = -1;
};
std::ostream& operator<<(std::ostream& out, const Argument& argument);

// A strided tensor of a supported dtype (float32, float64, bfloat16, float16), else TypeError, whose memory has not
// been freed (RuntimeError).
FASTOPS_API void check_tensor(std::string_view op, Argument argument, const at::Tensor& tensor);

// As check_tensor, with the dtype (TypeError) and device (RuntimeError) of `like`.
FASTOPS_API void check_like(std::string_view op, Argument argument, const at::Tensor& tensor, Argument like_argument,
                            const at::Tensor& like);

// As check_like, and of the same shape (ValueError).
FASTOPS_API void check_same_shape(std::string_view op, Argument argument, const at::Tensor& tensor,
                                  Argument like_argument, const at::Tensor& like);

// The last dimension, which the tensor must have; else ValueError.
FASTOPS_API c10::SymInt last_size(std::string_view op, Argument argument, const at::Tensor& tensor);

// The shape of a tensor [..., features] with another number of features.
inline std::vector<c10::SymInt> sizes_with(const at::Tensor& tensor, const c10::SymInt& features) {
  std::vector<c10::SymInt> sizes = tensor.sym_sizes().vec();
  sizes.back() = features;
  return sizes;
}

// Whether the tensor has these sizes. Of sizes that torch.compile knows nothing of, a graph then says that they are.
FASTOPS_API bool has_sizes(const at::Tensor& tensor, c10::SymIntArrayRef sizes);

// As check_like, and of this shape (ValueError).
FASTOPS_API void check_shape(std::string_view op, Argument argument, const at::Tensor& tensor,
                             c10::SymIntArrayRef sizes, Argument like_argument, const at::Tensor& like);

// The same of a bias; nothing where absent.
FASTOPS_API void check_bias(std::string_view op, Argument argument, const std::optional<at::Tensor>& bias,
                            c10::SymIntArrayRef sizes, Argument like_argument, const at::Tensor& like);

// An `out` for a result with the sizes of `like`: an empty tensor, or one that has them.
FASTOPS_API void check_out(std::string_view op, const at::Tensor& out, const at::Tensor& like);

// Makes `out` ready for a result with the sizes of `like`: an empty tensor is resized, any other must have them.
// It may be `like` itself, but not overlap it in part nor overlap itself.
FASTOPS_API void prepare_out(std::string_view op, at::Tensor& out, const at::Tensor& like);

// An argument that must not overlap `out`; nothing where absent.
FASTOPS_API void check_separate(std::string_view op, Argument argument, const std::optional<at::Tensor>& tensor,
                                const at::Tensor& out);

// A tensor that is to be written in place: its elements must not share memory.
FASTOPS_API void check_in_place(std::string_view op, const at::Tensor& self);

inline const at::Tensor& undefined_tensor() {
  static const at::Tensor undefined;
  return undefined;
}

// The tensor, or an undefined one.
inline const at::Tensor& value_or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor ? *tensor : undefined_tensor();
}

}  // namespace fastops
