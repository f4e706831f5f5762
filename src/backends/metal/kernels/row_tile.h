// Rows in threadgroup memory, with the sums over a row and the numbers of a dropout for each element.
#pragma once

#include "backends/metal/kernels/access.h"

namespace fastops {
namespace mps {

// ---- numbers of any dtype ----

inline float load_number(device const void* from, uint dtype, ulong i) {
  switch (dtype) {
    case 0:
      return static_cast<device const float*>(from)[i];
    case 1:
      return float(static_cast<device const half*>(from)[i]);
    default:
      return float(static_cast<device const bfloat*>(from)[i]);
  }
}

inline void store_number(float value, device void* to, uint dtype, ulong i) {
  switch (dtype) {
    case 0:
      static_cast<device float*>(to)[i] = value;
      break;
    case 1:
      static_cast<device half*>(to)[i] = half(value);
      break;
    default:
      static_cast<device bfloat*>(to)[i] = bfloat(value);
  }
}

// ---- dropout ----

struct FourNumbers {
  uint of[row_numbers];
};

// Philox4x32-10 of the counter (call, row, 0, stream): rows are counted in 32 bits here.
inline FourNumbers philox(ulong seed, uint call, uint row, uint stream) {
  uint c0 = call, c1 = row, c2 = 0, c3 = stream;
  uint key0 = uint(seed), key1 = uint(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint high0 = metal::mulhi(0xD2511F53u, c0);
    const uint low0 = 0xD2511F53u * c0;
    const uint high1 = metal::mulhi(0xCD9E8D57u, c2);
    const uint low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  FourNumbers numbers;
  numbers.of[0] = c0;
  numbers.of[1] = c1;
  numbers.of[2] = c2;
  numbers.of[3] = c3;
  return numbers;
}

// ---- rows in threadgroup memory ----

// A thread's part of a row. Each element belongs to one thread, which has all that is kept of it, and no other thread
// reads or writes it there: barriers are for sums over a row alone. Of 64 neighbours, 16 calls of Philox have four
// numbers each, so a thread's four elements are 16 apart.
struct Row {
  threadgroup float* partial;  // of the row: for sums, and what norms found
  threadgroup float* tiles;    // the thread's element of the first slot
  uint tile_size;
  uint columns;  // 0 where there is no such row
  uint row;
  uint thread_index;
  uint threads;
  uint slots;

  uint column(uint slot) const { return first_column(slot) + slot % row_numbers * row_calls; }
  // That of the four slots from this one on.
  uint first_column(uint slot) const {
    return thread_index / row_calls * row_group + thread_index % row_calls + slot / row_numbers * row_numbers * threads;
  }
  ulong place(uint column, uint all_columns) const { return ulong(row) * all_columns + column; }

  threadgroup float& at(uint tile, uint slot) const { return tiles[tile * tile_size + slot * threads]; }

  // What the norms of the row found: written by its first thread, to be read by all after a barrier.
  threadgroup float& multiplier(uint step) const { return partial[threads + row_calls + step]; }
  threadgroup float& first_mean() const { return partial[threads + row_calls + most_row_steps]; }

  // The sum of all threads' values. All threads of the threadgroup must come here.
  float sum(float value) const {
    threadgroup float* const sums = partial + threads;
    partial[thread_index] = value;
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (thread_index < uint(row_calls)) {
      float sum = 0.0f;
      for (uint i = thread_index; i < threads; i += row_calls) sum += partial[i];
      sums[thread_index] = sum;
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < uint(row_calls); ++i) total += sums[i];
    return total;  // the next one's first barrier is behind these reads
  }
};

// The part of a thread of the row that its threadgroup has at that place, in the memory of these rows.
inline Row row_of(threadgroup float* memory, constant RowStepsArguments& to, uint2 thread_position, uint2 group_size,
                  uint row) {
  const uint beside = group_size.x + numbers_beside_tiles;
  Row result;
  result.partial = memory + thread_position.y * beside;
  result.tiles = memory + group_size.y * beside + thread_position.y * group_size.x * to.slots + thread_position.x;
  result.tile_size = group_size.y * group_size.x * to.slots;
  result.columns = row < to.rows ? to.columns : 0;
  result.row = row;
  result.thread_index = thread_position.x;
  result.threads = group_size.x;
  result.slots = to.slots;
  return result;
}

}  // namespace mps
}  // namespace fastops
