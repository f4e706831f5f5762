// Reading and writing the elements of tensors, a quad at a time.
#pragma once

#include "activations/activations.h"
#include "backends/metal/kernels/arguments.h"
#include "backends/metal/kernels/instances.h"
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

// Where the quad of an elementwise kernel's thread begins in each tensor, and how many elements it has.
template <int operands>
struct QuadPlace {
  long first[operands];
  uint count;
};

// Of tensors with dimensions. What remains behind the first two takes a division for each of its dimensions but the
// last, the others none; an Offset holds the elements between any two of a tensor.
template <class Offset, int operands>
void find_strided(constant ElementwiseArguments& to, uint3 index, thread QuadPlace<operands>& place) {
  Offset first[operands];
  for (int i = 0; i < operands; ++i) {
    first[i] = Offset(index.x * quad) * Offset(to.strides[i][0]) + Offset(index.y) * Offset(to.strides[i][1]);
  }
  uint rest = index.z;
  for (uint d = 2; d < to.dims; ++d) {
    const uint outer = d + 1 < to.dims ? rest / to.sizes[d] : 0;
    const Offset at = Offset(rest - outer * to.sizes[d]);
    for (int i = 0; i < operands; ++i) first[i] += at * Offset(to.strides[i][d]);
    rest = outer;
  }
  for (int i = 0; i < operands; ++i) place.first[i] = long(first[i]);
}

template <int operands>
QuadPlace<operands> place_of(constant ElementwiseArguments& to, uint3 index) {
  QuadPlace<operands> place;
  const ulong first = ulong(index.x) * quad;
  place.count = uint(metal::min(ulong(quad), to.count - first));
  if (to.dims == 0) {
    for (int i = 0; i < operands; ++i) place.first[i] = long(first);
  } else if (to.narrow) {
    find_strided<int>(to, index, place);
  } else {
    find_strided<long>(to, index, place);
  }
  return place;
}

template <class T, int operands>
Quad load(device const T* data, constant ElementwiseArguments& to, int operand,
          thread const QuadPlace<operands>& place) {
  data += place.first[operand];
  const long stride = to.strides[operand][0];
  if (stride == 1) return load(data, place.count, (to.vectors >> operand & 1) != 0);
  Quad result;
  for (uint i = 0; i < uint(quad); ++i) {
    result.v[i] = i < place.count ? Number(float(*data)) : Number(0.0f);
    if (i + 1 < place.count) data += stride;
  }
  return result;
}

template <class T, int operands>
void store(Quad value, device T* data, constant ElementwiseArguments& to, int operand,
           thread const QuadPlace<operands>& place) {
  data += place.first[operand];
  const long stride = to.strides[operand][0];
  if (stride == 1) return store(value, data, place.count, (to.vectors >> operand & 1) != 0);
  for (uint i = 0; i < place.count; ++i) data[long(i) * stride] = T(value.v[i].v);
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
