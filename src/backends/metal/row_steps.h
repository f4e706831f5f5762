// Steps on the rows of tensors of Apple's GPUs: members of SequentialSteps.
#pragma once

#include "ops/sequential.h"

namespace fastops::mps {

Tensor steps_on_rows(std::span<const Step> steps, const Tensor& seed, const Tensor& x, const Tensor& added,
                     at::ScalarType dtype);
SequentialSteps::RowGradients steps_on_rows_backward(std::span<const Step> steps, const Tensor& seed, const Tensor& x,
                                                     const Tensor& grad, const Tensor& added,
                                                     const SequentialSteps::Wanted& wanted);

}  // namespace fastops::mps
