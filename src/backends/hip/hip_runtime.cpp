// HIP's runtime for launchers in a library of their own: the functions that the compiler's launching code calls, each
// handed to the runtime that torch has loaded, whatever that file is called and wherever it lies. Nothing is linked, so
// the library can be loaded, and says what is missing, where there is none.
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "backends/hip/kernels.h"

namespace fastops::hip {
namespace {

struct Size {  // dim3
  unsigned x, y, z;
};
using Result = int;  // hipError_t
constexpr Result not_initialized = 3;

// The path of a library that this process has loaded, by the beginning of its name.
std::string loaded_library(std::string_view beginning) {
  struct Search {
    std::string_view beginning;
    std::string found;
  } search{beginning, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).substr(0, search.beginning.size()) != search.beginning) return 0;
        search.found = path;
        return 1;
      },
      &search);
  return search.found;
}

struct Runtime {
  std::string lacks;  // empty if nothing
  void** (*register_binary)(const void*) = nullptr;
  void (*unregister_binary)(void**) = nullptr;
  void (*register_function)(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*,
                            int*) = nullptr;
  Result (*push)(Size, Size, size_t, void*) = nullptr;
  Result (*pop)(Size*, Size*, size_t*, void**) = nullptr;
  Result (*launch)(const void*, Size, Size, void**, size_t, void*) = nullptr;
  Result (*attribute)(int*, int, int) = nullptr;
  Result (*is_capturing)(void*, int*) = nullptr;
  Result (*last_error)() = nullptr;
  const char* (*error_string)(Result) = nullptr;

  Runtime() {
    const std::string path = loaded_library("libamdhip64.so");
    void* const library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!library) {
      lacks = "torch has loaded no HIP runtime (libamdhip64.so)";
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (!function && lacks.empty()) lacks = path + " has no function " + name;
    };
    find(register_binary, "__hipRegisterFatBinary");
    find(unregister_binary, "__hipUnregisterFatBinary");
    find(register_function, "__hipRegisterFunction");
    find(push, "__hipPushCallConfiguration");
    find(pop, "__hipPopCallConfiguration");
    find(launch, "hipLaunchKernel");
    find(attribute, "hipDeviceGetAttribute");
    find(is_capturing, "hipStreamIsCapturing");
    find(last_error, "hipGetLastError");
    find(error_string, "hipGetErrorString");
  }
};

const Runtime& runtime() {
  static const Runtime found;
  return found;
}

bool is_there() { return runtime().lacks.empty(); }

}  // namespace

Error unusable() { return is_there() ? nullptr : runtime().lacks.c_str(); }

}  // namespace fastops::hip

using fastops::hip::is_there;
using fastops::hip::not_initialized;
using fastops::hip::Result;
using fastops::hip::runtime;
using fastops::hip::Size;

// Hidden, as everything is that is not marked: nobody else takes them for the runtime.
extern "C" {

void** __hipRegisterFatBinary(const void* binary) { return is_there() ? runtime().register_binary(binary) : nullptr; }

void __hipUnregisterFatBinary(void** binary) {
  if (is_there()) runtime().unregister_binary(binary);
}

void __hipRegisterFunction(void** binary, const void* kernel, char* name, const char* device_name, unsigned threads,
                           void* thread, void* block, void* block_size, void* grid_size, int* wave_size) {
  if (!is_there()) return;
  runtime().register_function(binary, kernel, name, device_name, threads, thread, block, block_size, grid_size,
                              wave_size);
}

Result __hipPushCallConfiguration(Size grid, Size block, size_t shared, void* stream) {
  return is_there() ? runtime().push(grid, block, shared, stream) : not_initialized;
}

Result __hipPopCallConfiguration(Size* grid, Size* block, size_t* shared, void** stream) {
  return is_there() ? runtime().pop(grid, block, shared, stream) : not_initialized;
}

Result hipLaunchKernel(const void* kernel, Size grid, Size block, void** arguments, size_t shared, void* stream) {
  return is_there() ? runtime().launch(kernel, grid, block, arguments, shared, stream) : not_initialized;
}

// The numbers of the attributes are the same from HIP 5 on.
Result hipDeviceGetAttribute(int* value, int attribute, int device) {
  return is_there() ? runtime().attribute(value, attribute, device) : not_initialized;
}

Result hipStreamIsCapturing(void* stream, int* status) {
  return is_there() ? runtime().is_capturing(stream, status) : not_initialized;
}

Result hipGetLastError() { return is_there() ? runtime().last_error() : not_initialized; }

const char* hipGetErrorString(Result error) {
  return is_there() ? runtime().error_string(error) : runtime().lacks.c_str();
}

}  // extern "C"
