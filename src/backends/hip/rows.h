// Steps on the rows of GPU tensors: members of SequentialSteps.
#pragma once

#include "ops/sequential.h"

namespace fastops::hip {

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype);
SequentialSteps::RowGradients steps_on_rows_backward(std::span<const Step> steps, const Tensor& seed, const Tensor& x,
                                                     const Tensor& grad, const Tensor& added,
                                                     const SequentialSteps::Wanted& wanted);

}  // namespace fastops::hip
