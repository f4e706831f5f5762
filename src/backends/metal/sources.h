// The text of kernels/*.metal, each with what it includes: the build puts it into sources.cpp (embed.py).
#pragma once

namespace fastops::mps {

enum class Source : int { activation, activation_backward, bias_act, gated_act, linear_act, column_sums, rows };
inline constexpr int source_count = 7;

const char* source_text(Source source);

}  // namespace fastops::mps
