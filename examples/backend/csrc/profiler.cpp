// The profiler's marks around each op on this device (torch.autograd.profiler with use_device="hostmem").
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "device.h"
#include "memory.h"

namespace hostmem {
namespace {

using Clock = std::chrono::steady_clock;

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const auto now = Clock::now();
    if (device) *device = static_cast<c10::DeviceIndex>(current_device());
    *event = std::make_shared<Clock::time_point>(now);
    if (cpu_ns) *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* first,
                const torch::profiler::impl::ProfilerVoidEventStub* second) const override {
    const std::chrono::duration<float, std::micro> time =
        *std::static_pointer_cast<Clock::time_point>(*second) - *std::static_pointer_cast<Clock::time_point>(*first);
    return time.count();
  }
  // A driver's tool would show these.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> call) const override {
    for (int device = 0; device < device_count; ++device) call(device);
  }
  void synchronize() const override {}
};

Stubs stubs;
const bool profiler_registered = (torch::profiler::impl::registerPrivateUse1Methods(&stubs), true);

}  // namespace
}  // namespace hostmem
