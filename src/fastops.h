// What a backend in another package needs: the ops and what a device does for them (ops/device.h), the activations'
// formulas and the composites. CMake: find_package(fastops), target fastops::fastops. docs/backend.md is the guide.
//
//   #include <fastops/fastops.h>
//   TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m) { fastops::impl_ops<MyDevice>(m); }
//
// Whatever is not registered runs through PyTorch's ops. Meta kernels, autograd, autocast and vmap are there for
// every device. <fastops/backends/cpu/kernels.h> has the CPU kernels on raw pointers, for memory that the host can
// read.
#pragma once

#include "activations/activations.h"
#include "activations/derivative.h"
#include "activations/jet.h"
#include "activations/table.h"
#include "ops/activation.h"
#include "ops/activation_spec.h"
#include "ops/bias_act.h"
#include "ops/checks.h"
#include "ops/device.h"
#include "ops/gated_act.h"
#include "ops/gated_mlp.h"
#include "ops/matrix.h"
#include "ops/mlp.h"
