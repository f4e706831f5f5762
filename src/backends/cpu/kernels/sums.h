// What becomes of a block of sums, packet by packet: what epilogues of products are made of.
#pragma once

#include <algorithm>

#include "backends/cpu/kernels/panels.h"
#include "compiler.h"

namespace fastops::cpu::CPU_CAPABILITY {

// Of the first `count` numbers of some vectors, those in vector k.
template <class S>
C10_ALWAYS_INLINE int64_t count_in_vector(int64_t count, int k) {
  return std::clamp<int64_t>(count - k * Vec<S>::width, 0, Vec<S>::width);
}
// Of those of a packet, in its part k.
template <class Storage>
C10_ALWAYS_INLINE int64_t count_in_part(int64_t count, int k) {
  return Packet<Storage>::parts == 1 ? count : count_in_vector<Compute<Storage>>(count, k);
}

// Packets of numbers in the type that is computed with, as epilogues take and give them. `count` is that of a packet,
// or less at the end of a row.
template <class Storage>
C10_ALWAYS_INLINE Packet<Storage> load_computed(const Compute<Storage>* p, int64_t count) {
  constexpr int64_t width = Packet<Storage>::Number::width;
  Packet<Storage> out;
  for (int k = 0; k < Packet<Storage>::parts; ++k) {
    out.part[k] = load_part(p + k * width, count_in_part<Storage>(count, k));
  }
  return out;
}
template <class Storage>
C10_ALWAYS_INLINE void store_computed(const Packet<Storage>& value, Compute<Storage>* p, int64_t count) {
  constexpr int64_t width = Packet<Storage>::Number::width;
  for (int k = 0; k < Packet<Storage>::parts; ++k) {
    store_part(value.part[k].v, p + k * width, count_in_part<Storage>(count, k));
  }
}

// Calls step(sum, load, store, store_operand) for each packet of a block: sum(s) is the packet of sum s; load(rows)
// and store(value, rows) are for the same place of a matrix in the storage type, store_operand(value, rows, as_stored)
// for that of a matrix in the storage type or in the one that is computed with. Nothing is stored to a matrix without
// data. The matrices' rows lie far apart, where the processor does not foresee them: what comes `rows_ahead` rows later
// is fetched ahead. All of it is in line, and so should `step` be: called for each packet, GCC passes what the lambdas
// refer to through memory. It should have copies of its arguments, too: what is stored could else change them, for all
// that the compiler knows, and so it could the block. Of whole panels no packet asks for its count: where sums are of a
// few products each, such instructions are most of the work.
template <class Storage, class Step>
C10_ALWAYS_INLINE void for_each_sum(const Block& of_sums, Step step) {
  using S = Compute<Storage>;
  constexpr int64_t width = Packet<Storage>::width;
  constexpr int64_t rows_ahead = 8;
  const Block block = of_sums;
  const auto at = [&](int64_t r, int64_t i, auto count) FASTOPS_INLINE_LAMBDA {
    const int64_t c = block.column + i;
    const auto store = [&](const Packet<Storage>& value, Rows rows) FASTOPS_INLINE_LAMBDA {
      if (!rows.data) return;
      Storage* p = row<Storage>(rows, block.row + r) + c;
      FASTOPS_PREFETCH_WRITE(p + rows_ahead * rows.stride);
      value.store(p, count);
    };
    step(
        [&](int s) FASTOPS_INLINE_LAMBDA {
          return load_computed<Storage>(static_cast<const S*>(block.sums[s]) + r * block.stride + i, count);
        },
        [&](ConstRows rows) FASTOPS_INLINE_LAMBDA {
          const Storage* p = row<Storage>(rows, block.row + r) + c;
          if (rows.stride) FASTOPS_PREFETCH(p + rows_ahead * rows.stride);
          return Packet<Storage>::load(p, count);
        },
        store,
        [&](const Packet<Storage>& value, Rows rows, bool as_stored) FASTOPS_INLINE_LAMBDA {
          if (std::is_same_v<S, Storage> || as_stored) return store(value, rows);
          if (!rows.data) return;
          S* p = row<S>(rows, block.row + r) + c;
          FASTOPS_PREFETCH_WRITE(p + rows_ahead * rows.stride);
          store_computed<Storage>(value, p, count);
        });
  };
  constexpr int64_t whole = panel_columns<S>;
  if (block.columns == whole) {
    for (int64_t r = 0; r < block.rows; ++r) {
      FASTOPS_UNROLL(4)
      for (int64_t i = 0; i < whole; i += width) at(r, i, std::integral_constant<int64_t, width>());
    }
  } else {
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t i = 0; i < block.columns; i += width) at(r, i, std::min(width, block.columns - i));
    }
  }
}

}  // namespace fastops::cpu::CPU_CAPABILITY
