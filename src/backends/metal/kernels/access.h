// Reading and writing the elements of tensors, a quad at a time.
#pragma once

#include "activations/activations.h"
#include "backends/metal/kernels/arguments.h"
#include "backends/metal/kernels/number.h"

namespace fastops {
namespace mps {

struct Quad {
  Number v[quad];
};

// `count` elements from `data` on, which with `vectors` is aligned; what lies beyond them is 0.
template <class T>
Quad load(device const T* data, uint count, bool vectors) {
  Quad result;
  if (vectors && count == uint(quad)) {
    const metal::vec<T, quad> elements = *reinterpret_cast<device const metal::vec<T, quad>*>(data);
    result.v[0] = Number(float(elements.x));
    result.v[1] = Number(float(elements.y));
    result.v[2] = Number(float(elements.z));
    result.v[3] = Number(float(elements.w));
  } else {
    for (uint i = 0; i < uint(quad); ++i) result.v[i] = i < count ? Number(float(data[i])) : Number(0.0f);
  }
  return result;
}

template <class T>
void store(Quad value, device T* data, uint count, bool vectors) {
  if (vectors && count == uint(quad)) {
    *reinterpret_cast<device metal::vec<T, quad>*>(data) =
        metal::vec<T, quad>(T(value.v[0].v), T(value.v[1].v), T(value.v[2].v), T(value.v[3].v));
  } else {
    for (uint i = 0; i < count; ++i) data[i] = T(value.v[i].v);
  }
}

// The place of element `index` of an elementwise kernel's tensor.
inline long place(constant ElementwiseArguments& to, int operand, uint index) {
  long result = 0;
  for (uint d = 0; d < to.dims; ++d) {
    result += long(index % to.sizes[d]) * to.strides[operand][d];
    index /= to.sizes[d];
  }
  return result;
}

template <class T>
Quad load(device const T* data, constant ElementwiseArguments& to, int operand, ulong first, uint count) {
  if (to.dims == 0) return load(data + first, count, to.vectors);
  Quad result;
  for (uint i = 0; i < uint(quad); ++i) {
    result.v[i] = i < count ? Number(float(data[place(to, operand, uint(first) + i)])) : Number(0.0f);
  }
  return result;
}

template <class T>
void store(Quad value, device T* data, constant ElementwiseArguments& to, int operand, ulong first, uint count) {
  if (to.dims == 0) return store(value, data + first, count, to.vectors);
  for (uint i = 0; i < count; ++i) data[place(to, operand, uint(first) + i)] = T(value.v[i].v);
}

// The gradient formula of an activation as a function object, for Number and for Jet.
template <class A, bool has_gradient_from_output = A::has_gradient_from_output>
struct Gradient {
  Params<float> params;
  bool from_output;

  template <class T>
  T operator()(Number g, T at) const {
    return A::template gradient<T>(g, at, params);
  }
};
template <class A>
struct Gradient<A, true> {
  Params<float> params;
  bool from_output;

  template <class T>
  T operator()(Number g, T at) const {
    return from_output ? A::template gradient_from_output<T>(g, at, params) : A::template gradient<T>(g, at, params);
  }
};

}  // namespace mps
}  // namespace fastops

// What instantiates the kernels of a file: FASTOPS_KERNELS(name, A, T) for the activation and element type of
// FASTOPS_ONLY, which the host defines as it needs a kernel; by default for all of them.
#define FASTOPS_EACH_TYPE(name, A, ...)        \
  FASTOPS_KERNELS(name, activations::A, float) \
  FASTOPS_KERNELS(name, activations::A, half)  \
  FASTOPS_KERNELS(name, activations::A, bfloat)
#ifndef FASTOPS_ONLY
#define FASTOPS_ONLY FASTOPS_ACTIVATIONS(FASTOPS_EACH_TYPE)
#endif

#define FASTOPS_KERNEL(host_name_, ...) template [[host_name(host_name_)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
