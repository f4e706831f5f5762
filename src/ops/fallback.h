// Makes it visible when an op runs through PyTorch's ops because the tensors' device has no kernel for it: the
// environment variable FASTOPS_FALLBACK is `warn` or `error`. Unset or empty, nothing happens.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

namespace fastops {

// Read once.
bool fallback_is_visible();

// Warns, or throws NotImplementedError.
void report_fallback(const char* op, const at::Tensor& tensor);

inline void note_fallback(const char* op, const at::Tensor& tensor) {
  if (fallback_is_visible()) report_fallback(op, tensor);
}

namespace detail {

template <size_t size>
struct Name {
  char text[size];
  consteval Name(const char (&name)[size]) { std::copy_n(name, size, text); }
};

template <Name op, auto kernel>
struct Noted;
template <Name op, class Result, class... Rest, Result (*kernel)(const at::Tensor&, Rest...)>
struct Noted<op, kernel> {
  static Result run(const at::Tensor& first, Rest... rest) {
    note_fallback(op.text, first);
    return kernel(first, std::forward<Rest>(rest)...);
  }
};

}  // namespace detail

// The kernel of an op for devices that have none of their own. Its first argument is a tensor.
#define FASTOPS_COMPOSITE(op, kernel) TORCH_FN((detail::Noted<op, kernel>::run))

}  // namespace fastops
