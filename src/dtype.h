// The types of elements that there are kernels for. 16-bit types are computed with, and their sums kept, in float32.
#pragma once

namespace fastops {

enum class Dtype : int { float32, float64, bfloat16, float16 };
inline constexpr int dtype_count = 4;

}  // namespace fastops
