// What GPUs ask of a launch, for the emulator and the stand-in for the runtimes.
#pragma once

#include <cstdint>

namespace fastops::hip::emulator {

// What is wrong with a grid of blocks, sizes with x, y and z; null if nothing is. AMD's GPUs count the threads of each
// direction in 32 bits, NVIDIA's the blocks: of the first direction in 31 bits, of the others in 16.
template <class Size>
const char* launch_limits_error(const Size& grid, const Size& block) {
  const auto count = [](const Size& size) { return uint64_t{size.x} * size.y * size.z; };
  if (count(grid) == 0 || grid.x >= 1u << 31 || grid.y > 65535 || grid.z > 65535) return "invalid grid";
  if (count(block) == 0 || count(block) > 1024) return "invalid block";
  for (const uint64_t threads : {uint64_t{grid.x} * block.x, uint64_t{grid.y} * block.y, uint64_t{grid.z} * block.z}) {
    if (threads >> 32) return "2^32 threads or more in a direction of the grid";
  }
  return nullptr;
}

}  // namespace fastops::hip::emulator
