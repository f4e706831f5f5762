// Metadata of this device's tensors, which torch.save and torch.load keep. The tensors themselves need nothing here:
// PyTorch copies their storages through the CPU.
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <set>

#include "memory.h"
#include "metadata.h"

namespace hostmem {
namespace {

struct Metadata final : c10::BackendMeta {
  explicit Metadata(std::set<std::string> flags) : flags(std::move(flags)) {}
  const std::set<std::string> flags;
};

const Metadata* metadata(const at::Tensor& tensor) {
  return dynamic_cast<const Metadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// PyTorch's map has a key for each thing that is true; those of a device have its name in front.
const std::string prefix = "hostmem.";

void save(const at::Tensor& tensor, std::unordered_map<std::string, bool>& map) {
  if (const Metadata* data = metadata(tensor)) {
    for (const std::string& flag : data->flags) map[prefix + flag] = true;
  }
}

void load(const at::Tensor& tensor, std::unordered_map<std::string, bool>& map) {
  for (const auto& [key, value] : map) {
    if (value && key.starts_with(prefix)) set_flag(tensor, key.substr(prefix.size()));
  }
}

const bool serialization_registered = (torch::jit::TensorBackendMetaRegistry(device_type, save, load), true);

}  // namespace

void set_flag(const at::Tensor& tensor, const std::string& name) {
  const Metadata* before = metadata(tensor);
  std::set<std::string> flags = before ? before->flags : std::set<std::string>();
  flags.insert(name);
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Metadata>(std::move(flags)));
}

bool has_flag(const at::Tensor& tensor, const std::string& name) {
  const Metadata* data = metadata(tensor);
  return data && data->flags.count(name) > 0;
}

}  // namespace hostmem
