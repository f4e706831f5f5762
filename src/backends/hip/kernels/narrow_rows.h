// Kernels for the steps that most networks have between two products, on few rows (narrow_rows.hip).
#pragma once

#include <initializer_list>

#include "backends/hip/kernels.h"

namespace fastops::hip {

// Whether the steps are a norm with or without an activation after it, on few rows of up to 1,024 columns, a multiple
// of four.
bool may_be_narrow(const RowsCall&);

// And all tensors, but for absent ones, of one dtype.
bool is_narrow(const RowsCall&, std::initializer_list<Numbers> tensors);

Error narrow_forward(const RowsCall&, Numbers x, Numbers y);

// As rows_backward, with sums for each row.
Error narrow_backward(const RowsCall&, Numbers x, Numbers grad, Numbers dx, Numbers value, float* sums);

}  // namespace fastops::hip
