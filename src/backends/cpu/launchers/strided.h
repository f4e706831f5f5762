// Elements with strides, taken a piece at a time: pieces lie in a buffer, which the first-level cache holds, so that
// kernels of contiguous elements serve and no pass over memory is added.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/launchers/share.h"

namespace fastops::cpu {

// Elements of a piece.
inline constexpr int64_t piece_size = 512;
struct alignas(64) PieceBuffer {
  char bytes[piece_size * 8];
};

// f(T()) for a type of that many bytes.
template <class F>
void with_bytes(int64_t bytes, F f) {
  if (bytes == 8) return f(uint64_t());
  if (bytes == 4) return f(uint32_t());
  f(uint16_t());
}

// run(done, offsets, n) for the elements from `begin` on, as far as they lie evenly spaced: n of them after `done`
// others, the first one at that offset in each operand.
template <size_t operands, class Run>
void for_each_run(const Walk& walk, const std::array<const int64_t*, operands>& strides, int64_t begin, int64_t count,
                  Run run) {
  int64_t index[Walk::most_axes];
  std::array<int64_t, operands> offsets{};
  for (int64_t axis = 0, rest = begin; axis < walk.axes; ++axis) {
    index[axis] = rest % walk.size[axis];
    rest /= walk.size[axis];
    for (size_t i = 0; i < operands; ++i) offsets[i] += index[axis] * strides[i][axis];
  }
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(count - done, walk.size[0] - index[0]);
    run(done, offsets, n);
    done += n;
    index[0] += n;
    for (size_t i = 0; i < operands; ++i) offsets[i] += n * strides[i][0];
    for (int64_t axis = 0; axis + 1 < walk.axes && index[axis] == walk.size[axis]; ++axis) {
      for (size_t i = 0; i < operands; ++i) offsets[i] += strides[i][axis + 1] - walk.size[axis] * strides[i][axis];
      index[axis] = 0;
      ++index[axis + 1];
    }
  }
}

// Whether the elements lie side by side in that order.
inline bool is_contiguous(const Walk& walk, const int64_t* stride) {
  for (int64_t axis = 0, size = 1; axis < walk.axes; size *= walk.size[axis++]) {
    if (stride[axis] != size) return false;
  }
  return true;
}

// Four at a time: GCC's loop over one is two to four times as slow, and its unrolled one no faster.
template <class T>
void copy_spaced(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, n * sizeof(T));
    return;
  }
  int64_t i = 0;
  for (; i + 4 <= n; i += 4, from += 4 * from_stride, to += 4 * to_stride) {
    const T numbers[] = {from[0], from[from_stride], from[2 * from_stride], from[3 * from_stride]};
    for (int64_t k = 0; k < 4; ++k) to[k * to_stride] = numbers[k];
  }
  for (; i < n; ++i, from += from_stride, to += to_stride) *to = *from;
}

// Copies `count` elements side by side.
inline void gather(const Walk& walk, const ConstStrided& elements, int64_t bytes, int64_t begin, int64_t count,
                   void* result) {
  with_bytes(bytes, [&](auto unit) {
    using T = decltype(unit);
    const int64_t stride = elements.stride[0];
    for_each_run<1>(walk, {elements.stride.data()}, begin, count, [&](int64_t done, const auto& offsets, int64_t n) {
      const T* const from = static_cast<const T*>(elements.data) + offsets[0];
      T* const to = static_cast<T*>(result) + done;
      if (stride == 0) {
        std::fill_n(to, n, *from);
      } else {
        copy_spaced(from, stride, to, 1, n);
      }
    });
  });
}

// Writes elements that lie side by side.
inline void scatter(const Walk& walk, const Strided& elements, int64_t bytes, int64_t begin, int64_t count,
                    const void* values) {
  with_bytes(bytes, [&](auto unit) {
    using T = decltype(unit);
    const int64_t stride = elements.stride[0];
    for_each_run<1>(walk, {elements.stride.data()}, begin, count, [&](int64_t done, const auto& offsets, int64_t n) {
      copy_spaced(static_cast<const T*>(values) + done, 1, static_cast<T*>(elements.data) + offsets[0], stride, n);
    });
  });
}

inline int64_t elements_of(const Walk& walk) {
  int64_t elements = 1;
  for (int64_t axis = 0; axis < walk.axes; ++axis) elements *= walk.size[axis];
  return elements;
}

// f(from, to, n) for pieces of all elements, on several threads: pointers to n elements side by side, those that are
// read in an array. Long rows are taken as they lie.
template <size_t inputs, class F>
void for_each_piece(Caller& caller, const Walk& walk, int64_t bytes, const std::array<ConstStrided, inputs>& reads,
                    const Strided& writes, const F& f) {
  constexpr int64_t long_row = 64;
  bool in_rows = walk.size[0] >= long_row && writes.stride[0] == 1;
  std::array<const int64_t*, inputs + 1> strides;
  std::array<bool, inputs + 1> contiguous;
  for (size_t i = 0; i < inputs; ++i) {
    in_rows = in_rows && reads[i].stride[0] == 1;
    strides[i] = reads[i].stride.data();
    contiguous[i] = is_contiguous(walk, strides[i]);
  }
  strides[inputs] = writes.stride.data();
  contiguous[inputs] = is_contiguous(walk, strides[inputs]);
  const auto read_at = [&](size_t i, int64_t element) -> const void* {
    return static_cast<const char*>(reads[i].data) + element * bytes;
  };
  const auto written_at = [&](int64_t element) -> void* { return static_cast<char*>(writes.data) + element * bytes; };

  share_elements(caller, elements_of(walk), [&](int64_t begin, int64_t end) {
    std::array<const void*, inputs> from;
    if (in_rows) {
      return for_each_run(walk, strides, begin, end - begin, [&](int64_t, const auto& offsets, int64_t n) {
        for (size_t i = 0; i < inputs; ++i) from[i] = read_at(i, offsets[i]);
        f(from, written_at(offsets[inputs]), n);
      });
    }
    PieceBuffer buffers[inputs + 1];
    for (; begin < end; begin += piece_size) {
      const int64_t n = std::min(piece_size, end - begin);
      for (size_t i = 0; i < inputs; ++i) {
        from[i] = contiguous[i] ? read_at(i, begin) : buffers[i].bytes;
        if (!contiguous[i]) gather(walk, reads[i], bytes, begin, n, buffers[i].bytes);
      }
      f(from, contiguous[inputs] ? written_at(begin) : buffers[inputs].bytes, n);
      if (!contiguous[inputs]) scatter(walk, writes, bytes, begin, n, buffers[inputs].bytes);
    }
  });
}

}  // namespace fastops::cpu
