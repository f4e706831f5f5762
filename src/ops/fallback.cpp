#include "ops/fallback.h"

#include <c10/util/Exception.h>

#include <string>

#include "ops/environment.h"

namespace fastops {
namespace {

const std::string& chosen() {
  static const std::string choice = environment_choice("FASTOPS_FALLBACK", {"warn", "error"});
  return choice;
}
const ReadAtImport chosen_at_import([] { chosen(); });

}  // namespace

bool fallback_is_visible() {
  static const bool visible = !chosen().empty();
  return visible;
}

void report_fallback(const char* op, const at::Tensor& tensor) {
  const std::string message = c10::str("fastops.", op, " has no kernel of its own for ", tensor.device().type(),
                                       " tensors and runs through PyTorch's ops");
  TORCH_CHECK_NOT_IMPLEMENTED(chosen() != "error", message, " (FASTOPS_FALLBACK=error)");
  TORCH_WARN(message, " (FASTOPS_FALLBACK=warn)");
}

}  // namespace fastops
