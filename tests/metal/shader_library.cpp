// Stand-in for the part of torch for macOS that ATen/native/mps/MetalShaderLibrary.h declares. The kernels are those
// that translate.py made of the real .metal files, in the library that FASTOPS_METAL_KERNELS names. Whatever Metal or
// PyTorch would refuse, or not define, is an error here.
#include <ATen/core/Tensor.h>
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <regex>

namespace metal {
template <typename T, int N>
struct vec;
}
#include "shim/dispatch.h"

namespace at::native::mps {
namespace {

using metal_shim::KernelEntry;

struct Kernels {
  const void* (*find)(const char*);
  const char* (*launch)(const void*, void* const*, const unsigned (*)[3], const unsigned (*)[3]);
  void (*set_schedule)(unsigned);

  Kernels() {
    const char* path = std::getenv("FASTOPS_METAL_KERNELS");
    TORCH_CHECK(path, "FASTOPS_METAL_KERNELS must name the library of kernels");
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, dlerror());
    find = reinterpret_cast<decltype(find)>(dlsym(library, "metal_find_kernel"));
    launch = reinterpret_cast<decltype(launch)>(dlsym(library, "metal_launch"));
    set_schedule = reinterpret_cast<decltype(set_schedule)>(dlsym(library, "metal_set_schedule"));
    if (const char* seed = std::getenv("FASTOPS_METAL_SCHEDULE")) set_schedule(std::atoi(seed));
  }
};

const Kernels& kernels() {
  static const Kernels loaded;
  return loaded;
}

constexpr size_t most_buffers = 31;
constexpr size_t most_bytes = 4096;      // of an argument that is no tensor
constexpr uint64_t most_threads = 1024;  // of a threadgroup

struct Buffer {
  char* data = nullptr;  // of a tensor: its storage
  size_t size = 0;
  size_t offset = 0;
  std::vector<char> bytes;  // of an argument that is no tensor
  bool is_tensor = false;
};

struct Encoder {
  Buffer buffers[most_buffers];
};

bool in_command_block = false;
uint64_t dispatch_count = 0;

Encoder& encoder_of(MTLComputeCommandEncoder_t encoder) {
  TORCH_CHECK(in_command_block && encoder, "Metal: called outside of startEncoding in a command block");
  return *static_cast<Encoder*>(encoder);
}

// A copy of a storage that ends at a page that may not be touched and has known bytes around it.
class Guarded {
 public:
  Guarded(char* original, size_t size) : original_(original), size_(size) {
    const size_t body = (size + page - 1) / page * page;
    mapped_ = body + page;
    base_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    TORCH_CHECK(base_ != MAP_FAILED, "no memory for a copy of a buffer");
    mprotect(base_ + body, page, PROT_NONE);
    data_ = base_ + (body - size) / 16 * 16;  // aligned for the largest vector
    std::memset(base_, canary, body);
    std::memcpy(data_, original, size);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }

  char* original() const { return original_; }
  char* data() const { return data_; }

  // Checks the bytes around the data and copies the data back.
  void finish(const char* kernel) const {
    for (const char* p = base_; p < base_ + mapped_ - page; ++p) {
      TORCH_CHECK((p >= data_ && p < data_ + size_) || *p == canary, kernel, ": wrote outside of a buffer");
    }
    std::memcpy(original_, data_, size_);
  }

 private:
  static constexpr size_t page = 4096;
  static constexpr char canary = static_cast<char>(0xa5);
  char* original_;
  size_t size_;
  size_t mapped_;
  char* base_;
  char* data_;
};

void run(const KernelEntry& kernel, Encoder& encoder, const unsigned (&grid)[3], const unsigned (&group)[3]) {
  for (int i = 0; i < kernel.argument_count; ++i) {
    const auto& argument = kernel.arguments[i];
    TORCH_CHECK(argument.kind != metal_shim::k_buffer || encoder.buffers[argument.index].data, kernel.name, ": buffer ",
                argument.index, " is not set");
  }
  // Tensors that share a storage go on sharing it.
  std::vector<std::unique_ptr<Guarded>> guarded;
  void* data[most_buffers] = {};
  for (size_t i = 0; i < most_buffers; ++i) {
    const Buffer& buffer = encoder.buffers[i];
    data[i] = buffer.data;
    if (!buffer.is_tensor) continue;
    const auto same = [&](const auto& other) { return other->original() == buffer.data; };
    auto found = std::find_if(guarded.begin(), guarded.end(), same);
    if (found == guarded.end()) {
      found = guarded.insert(guarded.end(), std::make_unique<Guarded>(buffer.data, buffer.size));
    }
    data[i] = (*found)->data() + buffer.offset;
  }
  const char* error = kernels().launch(&kernel, data, &grid, &group);
  TORCH_CHECK(!error, error);
  for (const auto& memory : guarded) memory->finish(kernel.name);
  ++dispatch_count;
}

}  // namespace

MetalKernelFunction::MetalKernelFunction(MTLComputePipelineState_t cps_, MTLFunction_t f_) : cps(cps_), func(f_) {}
MetalKernelFunction::~MetalKernelFunction() { delete static_cast<Encoder*>(encoder); }

void MetalKernelFunction::runCommandBlock(std::function<void(void)> f) {
  static std::mutex queue;
  const std::lock_guard lock(queue);
  struct Block {
    Block() { in_command_block = true; }
    ~Block() { in_command_block = false; }
  } block;
  f();
}

void MetalKernelFunction::startEncoding() {
  TORCH_CHECK(in_command_block, "Metal: startEncoding outside of a command block");
  delete static_cast<Encoder*>(encoder);
  encoder = new Encoder();
}

void MetalKernelFunction::setArg(unsigned idx, const at::TensorBase& t) {
  TORCH_CHECK(idx < most_buffers && t.device().is_mps(), "Metal: buffer ", idx, " is on ", t.device());
  Buffer& buffer = encoder_of(encoder).buffers[idx];
  buffer.data = static_cast<char*>(t.storage().mutable_data());
  buffer.size = t.storage().nbytes();
  buffer.offset = t.storage_offset() * t.element_size();
  buffer.is_tensor = true;
}

void MetalKernelFunction::setArg(unsigned idx, const void* ptr, uint64_t size) {
  TORCH_CHECK(idx < most_buffers && size > 0 && size <= most_bytes, "Metal: an argument of ", size, " bytes");
  Buffer& buffer = encoder_of(encoder).buffers[idx];
  buffer.bytes.assign(static_cast<const char*>(ptr), static_cast<const char*>(ptr) + size);
  buffer.data = buffer.bytes.data();
  buffer.size = size;
}

void MetalKernelFunction::dispatch(c10::ArrayRef<uint64_t> length, c10::OptionalArrayRef<uint64_t> groupSize) {
  TORCH_CHECK(!length.empty() && length.size() <= 3 && groupSize && groupSize->size() == length.size());
  unsigned grid[3] = {1, 1, 1};
  unsigned group[3] = {1, 1, 1};
  for (size_t d = 0; d < length.size(); ++d) {
    TORCH_CHECK(length[d] > 0 && length[d] <= UINT32_MAX && (*groupSize)[d] > 0, "Metal: a grid of ", length[d]);
    grid[d] = static_cast<unsigned>(length[d]);
    group[d] = static_cast<unsigned>((*groupSize)[d]);
  }
  TORCH_CHECK(uint64_t{group[0]} * group[1] * group[2] <= most_threads, "Metal: too many threads in a threadgroup");
  run(*static_cast<const KernelEntry*>(cps), encoder_of(encoder), grid, group);
}

MetalShaderLibrary::~MetalShaderLibrary() = default;
DynamicMetalShaderLibrary::~DynamicMetalShaderLibrary() = default;

// What PyTorch compiles the text in. It hands it over as ASCII.
MTLLibrary_t MetalShaderLibrary::getLibrary() {
  for (const char c : shaderSource) TORCH_CHECK(static_cast<unsigned char>(c) < 128, "Metal: source that is not ASCII");
  return library = this;
}
MTLLibrary_t MetalShaderLibrary::getLibrary(const std::initializer_list<std::string>&) {
  TORCH_CHECK(false, "not in this stand-in");
}

namespace {

// For tests of what Metal would be given: each text goes into the folder FASTOPS_METAL_SOURCES, if there is one.
void keep_source(const std::string& kernel, const std::string& text) {
  const char* folder = std::getenv("FASTOPS_METAL_SOURCES");
  if (folder) std::ofstream(folder + ("/" + kernel) + ".metal") << text;
}

}  // namespace

// The kernel of this library is that of the instance that the first line of its text asks for.
std::shared_ptr<MetalKernelFunction> MetalShaderLibrary::getKernelFunction(const std::string& name) {
  getLibrary();
  keep_source(name, shaderSource);
  const void* kernel = kernels().find(name.c_str());
  TORCH_CHECK(kernel, "Metal: no kernel ", name);
  std::smatch instance;
  const std::string line = shaderSource.substr(0, shaderSource.find('\n'));
  const std::regex form("#define FASTOPS_ONLY FASTOPS_\\w+\\((\\w+), activations::\\w+, (\\w+)\\)");
  TORCH_CHECK(std::regex_match(line, instance, form), "Metal: a library of ", line);
  const std::string activation = instance[1];
  const std::string dtype = instance[2];
  const bool of_activation = name.find("_" + activation + "_") != name.npos || name.find("column_sums") != name.npos;
  const bool of_dtype = name.size() > dtype.size() && name.substr(name.size() - dtype.size() - 1) == "_" + dtype;
  TORCH_CHECK(of_activation && of_dtype, "Metal: no kernel ", name, " in the library of ", activation, ", ", dtype);
  return std::make_shared<MetalKernelFunction>(const_cast<void*>(kernel), nullptr);
}

}  // namespace at::native::mps

extern "C" {
void metal_set_schedule(unsigned seed) { at::native::mps::kernels().set_schedule(seed); }
uint64_t metal_dispatch_count() { return at::native::mps::dispatch_count; }
}
