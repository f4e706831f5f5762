#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>

#include "device.h"
#include "memory.h"

namespace hostmem {
namespace {

// The stream of numbers is that of a CPU generator with the same seed.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device, at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl({device_type, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_offset(uint64_t offset) override { host_.set_offset(offset); }
  uint64_t get_offset() const override { return host_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }

  const at::Generator& host() const { return host_; }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), host_.clone()); }

  at::Generator host_;
};

}  // namespace

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device < 0 ? current_device() : device));
}

const at::Generator& default_generator(int device) {
  static const std::array<at::Generator, device_count> generators = {new_generator(0), new_generator(1)};
  return generators.at(device < 0 ? current_device() : device);
}

at::Generator host_generator(const at::Generator& generator) {
  const auto* impl = dynamic_cast<const Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(impl, "hostmem: the generator is of device ", generator.device(), ", but must be of a hostmem device");
  return impl->host();
}

}  // namespace hostmem
