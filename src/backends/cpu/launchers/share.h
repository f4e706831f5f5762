// The work of a launcher, shared among the caller's threads, and lists in the caller's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <type_traits>

#include "backends/cpu/launchers.h"

namespace fastops::cpu {

// Elements per thread below which sharing costs more than it saves.
inline constexpr int64_t grain_size = 24576;

// f(begin, end) over 0..n.
template <class F>
void share(Caller& caller, int64_t n, int64_t grain, const F& f) {
  if (n > grain) {
    const auto part = [](const void* context, int64_t begin, int64_t end) {
      (*static_cast<const F*>(context))(begin, end);
    };
    caller.parallel_for(n, grain, part, &f);
  } else if (n > 0) {
    f(0, n);
  }
}

// f(begin, end) over 0..n, cut where cache lines end.
template <class F>
void share_elements(Caller& caller, int64_t n, const F& f) {
  constexpr int64_t line = 64;
  const int64_t lines = (n + line - 1) / line;
  share(caller, lines, grain_size / line,
        [&](int64_t begin, int64_t end) { f(begin * line, std::min(n, end * line)); });
}

// f(begin, end) over rows of `columns` elements.
template <class F>
void share_rows(Caller& caller, int64_t rows, int64_t columns, const F& f) {
  if (columns > 0) share(caller, rows, std::max<int64_t>(1, grain_size / columns), f);
}

// f(), under a name in a profile.
template <class F>
void profile(Caller& caller, const char* name, const F& f) {
  caller.profile(name, [](const void* context) { (*static_cast<const F*>(context))(); }, &f);
}

// Up to a number of things that is known beforehand, in the caller's memory.
template <class T>
class List {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  List(Caller& caller, size_t most) : data_(static_cast<T*>(caller.take(static_cast<int64_t>(most * sizeof(T))))) {}
  List(Caller& caller, size_t count, const T& value) : List(caller, count) {
    for (size_t i = 0; i < count; ++i) push_back(value);
  }

  T& push_back(const T& value) { return *new (data_ + size_++) T(value); }
  void clear() { size_ = 0; }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }
  T& back() const { return data_[size_ - 1]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  operator std::span<const T>() const { return {data_, size_}; }

 private:
  T* data_;
  size_t size_ = 0;
};

// From one row of a matrix to another; 16-bit types are stored in 2 bytes.
inline int64_t element_size(Dtype dtype) { return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2; }
inline ConstRows from_row(ConstRows matrix, int64_t row, Dtype dtype) {
  return {static_cast<const char*>(matrix.data) + row * matrix.stride * element_size(dtype), matrix.stride};
}
inline Rows from_row(Rows matrix, int64_t row, Dtype dtype) {
  if (!matrix.data) return matrix;
  return {static_cast<char*>(matrix.data) + row * matrix.stride * element_size(dtype), matrix.stride};
}

}  // namespace fastops::cpu
