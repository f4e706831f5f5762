// What makes kernels of the templates of a file: the macros that it names, for FASTOPS_ONLY, which the host defines as
// it needs a kernel; by default all of them, for every activation and element type, by FASTOPS_KERNELS(name, A, T).
#pragma once

#include "activations/table.h"

#ifndef FASTOPS_EACH_TYPE
#define FASTOPS_EACH_TYPE(name, A, ...)        \
  FASTOPS_KERNELS(name, activations::A, float) \
  FASTOPS_KERNELS(name, activations::A, half)  \
  FASTOPS_KERNELS(name, activations::A, bfloat)
#endif
#ifndef FASTOPS_ONLY
#define FASTOPS_ONLY FASTOPS_ACTIVATIONS(FASTOPS_EACH_TYPE)
#endif

#define FASTOPS_KERNEL(host_name_, ...) template [[host_name(host_name_)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
