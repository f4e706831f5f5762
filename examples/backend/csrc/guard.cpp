// The device guard: current device, streams and events.
//
// A kernel of this device runs on the calling thread, so a stream has nothing in flight when a call returns, and an
// event has happened once it is recorded. With a real driver, record, block, query and synchronize are its calls.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>

#include "device.h"
#include "memory.h"

namespace hostmem {
namespace {

thread_local int the_device = 0;
thread_local std::array<c10::StreamId, device_count> the_streams{};  // 0 is the default stream
std::atomic<c10::StreamId> last_stream = 0;

struct Event {
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {device_type, static_cast<c10::DeviceIndex>(the_device)}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == device_type, "hostmem: not a device of this kind: ", device);
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { the_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, the_streams.at(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, ++last_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    the_streams.at(stream.device_index()) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "hostmem: the event is of device ", int{device},
                ", but the stream of device ", int{stream.device_index()});
    if (!*event) *event = new Event();
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "hostmem: both events must have been recorded");
    const std::chrono::duration<double, std::milli> time =
        static_cast<Event*>(second)->time - static_cast<Event*>(first)->time;
    return time.count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

int current_device() { return the_device; }

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count, "hostmem: device is ", device, ", but must be from 0 to ",
              device_count - 1);
  the_device = device;
}

}  // namespace hostmem
