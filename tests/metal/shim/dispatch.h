// The table of kernels that translate.py makes, and how one is called with what a GPU thread sees.
#pragma once

namespace metal_shim {

enum Kind {
  k_buffer,
  k_thread_position_in_grid,
  k_thread_position_in_threadgroup,
  k_threadgroup_position_in_grid,
  k_threads_per_threadgroup,
  k_threads_per_grid,
  k_thread_index_in_threadgroup,
  k_thread_index_in_simdgroup,
  k_simdgroup_index_in_threadgroup,
  k_count
};

struct Argument {
  Kind kind;
  int index;  // of a buffer
};

struct ThreadState {
  void* const* buffers;
  unsigned values[k_count][3];
};

struct KernelEntry {
  const char* name;
  void (*invoke)(void* function, const Argument*, const ThreadState*);
  void* function;
  Argument arguments[24];
  int argument_count;
  int collective;
};

// Adds a translation unit's kernels to the table.
struct Register {
  Register(const KernelEntry* entries, int count);
};

// The value of a kernel's parameter.
template <typename T>
struct Get;
template <typename T>
struct Get<T*> {
  static T* get(const Argument& a, const ThreadState& s) { return (T*)s.buffers[a.index]; }
};
template <typename T>
struct Get<T&> {
  static T& get(const Argument& a, const ThreadState& s) { return *(T*)s.buffers[a.index]; }
};
template <>
struct Get<unsigned> {
  static unsigned get(const Argument& a, const ThreadState& s) { return s.values[a.kind][0]; }
};
template <typename T>
struct Get<metal::vec<T, 2>> {
  static metal::vec<T, 2> get(const Argument& a, const ThreadState& s) {
    return metal::vec<T, 2>(T(s.values[a.kind][0]), T(s.values[a.kind][1]));
  }
};
template <typename T>
struct Get<metal::vec<T, 3>> {
  static metal::vec<T, 3> get(const Argument& a, const ThreadState& s) {
    return metal::vec<T, 3>(T(s.values[a.kind][0]), T(s.values[a.kind][1]), T(s.values[a.kind][2]));
  }
};

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  typedef Indices<I...> type;
};

template <typename F>
struct Invoke;
template <typename... A>
struct Invoke<void (*)(A...)> {
  template <int... I>
  static void call(void* function, const Argument* a, const ThreadState& s, Indices<I...>) {
    ((void (*)(A...))function)(Get<A>::get(a[I], s)...);
  }
  static void go(void* function, const Argument* a, const ThreadState* s) {
    call(function, a, *s, typename MakeIndices<sizeof...(A)>::type());
  }
};

}  // namespace metal_shim
