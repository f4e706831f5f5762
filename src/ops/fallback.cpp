#include "ops/fallback.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace fastops {
namespace {

enum class Fallback { silent, warn, error };

Fallback chosen() {
  static const Fallback choice = [] {
    const char* variable = std::getenv("FASTOPS_FALLBACK");
    const std::string value = variable ? variable : "";
    TORCH_CHECK_VALUE(value.empty() || value == "warn" || value == "error", "fastops: FASTOPS_FALLBACK is '", value,
                      "', but it can be warn, error or unset");
    return value.empty() ? Fallback::silent : value == "warn" ? Fallback::warn : Fallback::error;
  }();
  return choice;
}

}  // namespace

bool fallback_is_visible() {
  static const bool visible = chosen() != Fallback::silent;
  return visible;
}

void report_fallback(const char* op, const at::Tensor& tensor) {
  const std::string message = c10::str("fastops.", op, " has no kernel of its own for ", tensor.device().type(),
                                       " tensors and runs through PyTorch's ops");
  TORCH_CHECK_NOT_IMPLEMENTED(chosen() != Fallback::error, message, " (FASTOPS_FALLBACK=error)");
  TORCH_WARN(message, " (FASTOPS_FALLBACK=warn)");
}

}  // namespace fastops
