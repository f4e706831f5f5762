// Panels of rows that lie beside each other: of each feature, or of each pair of features, a panel has those of some
// vectors of rows, then come those of the next one.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backends/cpu/kernels/panels.h"

namespace fastops::cpu::CPU_CAPABILITY {

// Panels of numbers in the type that is computed with. What read_panel() and write_panel() ask of such a type:
template <class T>
struct Numbers {
  using Storage = T;
  using Element = Compute<T>;                                    // of a panel
  static constexpr int64_t at_once = 1;                          // the numbers of an element
  static constexpr int64_t columns = Packet<T>::width;           // the numbers that are written at once
  static constexpr bool as_stored = std::is_same_v<Element, T>;  // whether elements are what rows have

  // A square of such.
  static void transpose(const T* rows, int64_t stride, Element* panel, int64_t panel_stride) {
    transpose_square<Element>(rows, stride, panel, panel_stride);
  }
  // A vector of elements of `count` numbers, and the first ones of as many elements as `columns` numbers are.
  static void load(const T* row, int64_t count, Element* elements) { load_converted(row, count).store(elements); }
  static void store(const Element* elements, T* row, int64_t count) {
    Packet<T> packet;
    for (int part = 0; part < Packet<T>::parts; ++part) {
      packet.part[part] = Vec<Element>::Base::loadu(elements + part * Vec<Element>::width);
    }
    packet.store(row, count);
  }
  // The number in its place.
  static void set(Element* panel, int64_t place, T number) { panel[place] = static_cast<Element>(number); }
  static T get(const Element* panel, int64_t place) { return static_cast<T>(panel[place]); }
};

// Features of which so few are copied number by number.
inline constexpr int64_t single_features = 2;

// f(number of a panel, number of a row) for features that are so few.
template <class T, class F>
void for_single_features(const PanelRows& rows, int64_t features, int64_t row_stride, F f) {
  for (int64_t c = 0; c < features; ++c) {
    const int64_t first = c / T::at_once * rows.stride * T::at_once + c % T::at_once;
    for (int64_t r = 0; r < rows.count; ++r) f(first + r * T::at_once, r * row_stride + c);
  }
}

// A panel of rows of a matrix; 0 for the rows beyond them, and behind the last feature in its element.
template <class T>
void read_panel(ConstRows matrix, const PanelRows& rows, int64_t features, typename T::Element* panel) {
  using Storage = typename T::Storage;
  using Element = typename T::Element;
  constexpr int64_t width = Vec<Element>::width;
  constexpr int64_t columns = width * T::at_once;
  const int64_t stride = rows.stride;
  const Storage* const source = row<Storage>(matrix, rows.first);
  if (features <= single_features) {
    const int64_t elements = (features + T::at_once - 1) / T::at_once;
    if (features % T::at_once != 0 || rows.count < stride) std::fill_n(panel, elements * stride, Element(0));
    return for_single_features<T>(rows, features, matrix.stride,
                                  [&](int64_t to, int64_t from) { T::set(panel, to, source[from]); });
  }
  alignas(64) Element square[width * width];
  for (int64_t v = 0; v * width < stride; ++v) {
    const int64_t present = std::clamp<int64_t>(rows.count - v * width, 0, width);
    // A vector that begins in a row ends before the end of the next one.
    const bool has_next = (rows.more || (v + 1) * width < rows.count) && matrix.stride >= columns;
    for (int64_t c = 0; c < features; c += columns) {
      const int64_t count = std::min(columns, features - c);
      const Storage* const from = source + v * width * matrix.stride + c;
      Element* const to = panel + c / T::at_once * stride + v * width;
      if constexpr (T::as_stored) {
        if (present == width && (count == columns || (has_next && count % T::at_once == 0))) {
          T::transpose(from, matrix.stride, to, stride);
          continue;
        }
      }
      for (int64_t r = 0; r < present; ++r) T::load(from + r * matrix.stride, count, square + r * width);
      std::fill(square + present * width, square + width * width, Element(0));
      transpose_square<Element>(square, width, to, stride);
    }
  }
}

// The rows of a matrix from a panel.
template <class T>
void write_panel(const typename T::Element* panel, Rows matrix, const PanelRows& rows, int64_t features) {
  using Storage = typename T::Storage;
  using Element = typename T::Element;
  constexpr int64_t width = Vec<Element>::width;
  constexpr int64_t columns = T::columns;
  constexpr int64_t elements = columns / T::at_once;
  const int64_t stride = rows.stride;
  Storage* const target = row<Storage>(matrix, rows.first);
  if (features <= single_features) {
    return for_single_features<T>(rows, features, matrix.stride,
                                  [&](int64_t from, int64_t to) { target[to] = T::get(panel, from); });
  }
  // Where rows are contiguous, whole vectors are written: what is behind the end of a row is where the next ones come,
  // as the last columns go before the first ones, row after row.
  const bool contiguous = matrix.stride == features;
  alignas(64) Element block[width * elements];
  for (int64_t v = 0; v * width < rows.count; ++v) {
    const int64_t present = std::min(width, rows.count - v * width);
    for (int64_t c = (features - 1) / columns * columns; c >= 0; c -= columns) {
      const int64_t count = std::min(columns, features - c);
      const Element* const from = panel + c / T::at_once * stride + v * width;
      Storage* const to = target + v * width * matrix.stride + c;
      if constexpr (T::as_stored && T::at_once == 1) {
        if (present == width && count == width) {
          transpose_square<Element>(from, stride, to, matrix.stride);
          continue;
        }
      }
      for (int64_t part = 0; part * T::at_once < count; part += width) {
        transpose_square<Element>(from + part * stride, stride, block + part, elements);
      }
      const int64_t rows_written_behind = contiguous ? (columns - count + features - 1) / features : rows.count;
      const int64_t whole = rows.count - rows_written_behind - v * width;
      for (int64_t r = 0; r < present; ++r) {
        T::store(block + r * elements, to + r * matrix.stride, r < whole ? columns : count);
      }
    }
  }
}

// 0 for the rows beyond the last one.
template <class S>
void clear_rest(S* panel, const PanelRows& rows, int64_t features) {
  if (rows.count == rows.stride) return;
  for (int64_t c = 0; c < features; ++c, panel += rows.stride) std::fill(panel + rows.count, panel + rows.stride, S(0));
}

}  // namespace fastops::cpu::CPU_CAPABILITY
