// A stand-in for the runtimes of HIP and CUDA that launches nothing. It writes down what it is asked to launch, and
// fails when it is told to and where a GPU would not take the launch, for the tests of the code that launches kernels
// (tests/test_gpu_launch.py). What of a runtime is not here the kernels' launchers do not call: they neither wait nor
// allocate.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "backends/hip/emulator/limits.h"

namespace {

struct Size {
  unsigned x, y, z;
};

struct Configuration {
  Size grid, block;
  size_t shared;
  void* stream;
};

std::map<const void*, std::string> kernels;  // the mangled names of what the compilers' launching code knows by address
Configuration pushed;
std::string launches;  // a line for each
int successes = -1;    // launches until one fails; negative where none is to
int last_error = 0;
int capture = 0;  // the status of every stream; negative where asking for it fails
constexpr int failure = 719;
const char* failure_text = nullptr;  // of the last failure

constexpr int shared_memory_attribute = 97;    // cudaDevAttrMaxSharedMemoryPerBlockOptin
std::map<const void*, size_t> allowed_shared;  // by CUDA, where a kernel was allowed more than others

void add_kernel(const void* address, const char* name) { kernels[address] = name; }

int push(Size grid, Size block, size_t shared, void* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

int pop(Size* grid, Size* block, size_t* shared, void** stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return 0;
}

int fail(const char* error) {
  failure_text = error;
  return last_error = failure;
}

int launch(const void* kernel, Size grid, Size block, size_t shared, void* stream, size_t most_shared) {
  const c10::impl::VirtualGuardImpl device(c10::kPrivateUse1);
  std::ostringstream line;
  line << kernels.at(kernel);
  for (const Size& size : {grid, block}) line << ' ' << size.x << ' ' << size.y << ' ' << size.z;
  line << ' ' << shared << ' ' << reinterpret_cast<intptr_t>(stream) << ' ' << int{device.getDevice().index()} << '\n';
  launches += line.str();
  const char* error = fastops::hip::emulator::launch_limits_error(grid, block);
  if (shared > most_shared) error = "so much shared memory is not allowed";
  if (successes >= 0 && successes-- == 0) error = "the stand-in was told to fail";
  return error ? fail(error) : 0;
}

// As many multiprocessors as an H100 has, and on the other device few. Of shared memory, for which launchers ask as
// well, that is less than every GPU has, but for CUDA, as much as an H100's blocks may have.
int get_attribute(int* value, int device) {
  *value = device == 0 ? 132 : 16;
  return 0;
}

// What streams say of themselves: the status, or that there is none.
int get_capture(int* status) {
  if (capture < 0) return fail("the stand-in was told not to say");
  *status = capture;
  return 0;
}

int take_last_error() { return std::exchange(last_error, 0); }

}  // namespace

extern "C" {

// ---- for the tests ----

// Lets the launch after the next `count` ones fail.
void stand_in_fail_after(int count) { successes = count; }

// Lets all streams be captured (1), or fail to say whether they are (-1).
void stand_in_capture(int status) { capture = status; }

// The launches since the last call; the text is good until the next launch.
const char* stand_in_launches() {
  static std::string taken;
  taken = std::exchange(launches, {});
  return taken.c_str();
}

// ---- HIP ----

void** __hipRegisterFatBinary(const void*) { return nullptr; }
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterFunction(void**, const void* kernel, char*, const char* name, unsigned, void*, void*, void*, void*,
                           int*) {
  add_kernel(kernel, name);
}
int __hipPushCallConfiguration(Size grid, Size block, size_t shared, void* stream) {
  return push(grid, block, shared, stream);
}
int __hipPopCallConfiguration(Size* grid, Size* block, size_t* shared, void** stream) {
  return pop(grid, block, shared, stream);
}
int hipLaunchKernel(const void* kernel, Size grid, Size block, void**, size_t shared, void* stream) {
  return launch(kernel, grid, block, shared, stream, 64 * 1024);
}
int hipDeviceGetAttribute(int* value, int, int device) { return get_attribute(value, device); }
int hipStreamIsCapturing(void*, int* status) { return get_capture(status); }
int hipGetLastError() { return take_last_error(); }
const char* hipGetErrorString(int error) { return error == failure ? failure_text : "no error"; }

// ---- CUDA ----

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*, void*, void*,
                            int*) {
  add_kernel(kernel, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
int __cudaPushCallConfiguration(Size grid, Size block, size_t shared, void* stream) {
  return push(grid, block, shared, stream);
}
int __cudaPopCallConfiguration(Size* grid, Size* block, size_t* shared, void** stream) {
  return pop(grid, block, shared, stream);
}
int __cudaGetKernel(const void** kernel, const void* address) {
  *kernel = address;
  return 0;
}
int __cudaLaunchKernel(const void* kernel, Size grid, Size block, void**, size_t shared, void* stream) {
  const auto allowed = allowed_shared.find(kernel);
  return launch(kernel, grid, block, shared, stream, allowed == allowed_shared.end() ? 48 * 1024 : allowed->second);
}
int cudaLaunchKernel(const void* kernel, Size grid, Size block, void** arguments, size_t shared, void* stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
int cudaGetDevice(int* device) {
  *device = c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getDevice().index();
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != shared_memory_attribute) return get_attribute(value, device);
  *value = 227 * 1024;
  return 0;
}
// What a kernel is allowed holds for all threads: another value than before would be between one's and its launch.
int cudaFuncSetAttribute(const void* kernel, int, int value) {
  const size_t allowed = allowed_shared.emplace(kernel, value).first->second;
  return allowed == static_cast<size_t>(value) ? 0 : fail("a kernel's shared memory is changed");
}
int cudaStreamIsCapturing(void*, int* status) { return get_capture(status); }
int cudaGetLastError() { return take_last_error(); }
const char* cudaGetErrorString(int error) { return hipGetErrorString(error); }

}  // extern "C"
