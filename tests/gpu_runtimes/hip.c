// A stand-in for libamdhip64.so: it runs nothing, and writes down what it is given and asked to launch, for
// tests/test_gpu_libraries.py. What of HIP's runtime is not here the launchers do not call.
#include <stddef.h>
#include <stdio.h>

typedef struct {
  unsigned x, y, z;
} Size;

typedef struct {  // what __hipRegisterFatBinary is given
  unsigned magic, version;
  const void* code;
  const void* unused;
} Binary;

enum { most = 65536, failure = 719 };

// ---- for the tests ----

const void* stand_in_codes[most];
int stand_in_code_count;
const char* stand_in_names[most];  // of the kernels
int stand_in_binary_of[most];      // the place of their code
int stand_in_kernel_count;
const char* stand_in_launched[most];  // their names
int stand_in_launch_count;
int stand_in_fails;

// ---- HIP ----

static const void* addresses[most];
static Size pushed_grid, pushed_block;
static size_t pushed_shared;
static void* pushed_stream;

void** __hipRegisterFatBinary(const Binary* binary) {
  if (binary->magic != 0x48495046 || stand_in_code_count == most) return NULL;
  stand_in_codes[stand_in_code_count++] = binary->code;
  return (void**)&stand_in_codes[stand_in_code_count - 1];
}

void __hipUnregisterFatBinary(void** binary) { (void)binary; }

void __hipRegisterFunction(void** binary, const void* kernel, char* name, const char* device_name, unsigned threads,
                           void* thread, void* block, void* block_size, void* grid_size, int* wave_size) {
  (void)name, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)wave_size;
  if (stand_in_kernel_count == most) return;
  addresses[stand_in_kernel_count] = kernel;
  stand_in_binary_of[stand_in_kernel_count] = (int)((const void**)binary - stand_in_codes);
  stand_in_names[stand_in_kernel_count++] = device_name;
}

int __hipPushCallConfiguration(Size grid, Size block, size_t shared, void* stream) {
  pushed_grid = grid, pushed_block = block, pushed_shared = shared, pushed_stream = stream;
  return 0;
}

int __hipPopCallConfiguration(Size* grid, Size* block, size_t* shared, void** stream) {
  *grid = pushed_grid, *block = pushed_block, *shared = pushed_shared, *stream = pushed_stream;
  return 0;
}

#ifndef WITHOUT_LAUNCH
int hipLaunchKernel(const void* kernel, Size grid, Size block, void** arguments, size_t shared, void* stream) {
  (void)arguments, (void)shared, (void)stream;
  if (stand_in_fails) return failure;
  if (block.x * block.y * block.z != 256 || grid.x == 0) return failure;
  for (int i = 0; i < stand_in_kernel_count; ++i) {
    if (addresses[i] == kernel && stand_in_launch_count < most) {
      stand_in_launched[stand_in_launch_count++] = stand_in_names[i];
      return 0;
    }
  }
  return failure;
}
#endif

int hipDeviceGetAttribute(int* value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 100;
  return 0;
}

int hipStreamIsCapturing(void* stream, int* status) {
  (void)stream;
  *status = 0;
  return 0;
}

int hipGetLastError(void) { return stand_in_fails ? failure : 0; }
const char* hipGetErrorString(int error) { return error == failure ? "the stand-in was told to fail" : "no error"; }
