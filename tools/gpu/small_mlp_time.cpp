// What src/backends/hip/small_mlp_time.h counts, for model.py.
#include "backends/hip/small_mlp_time.h"

using fastops::hip::is_small_mlp_faster;
using fastops::hip::SmallMlpTime;
using fastops::hip::SmallNetwork;

namespace {

SmallNetwork network(int64_t layers, const int64_t* features, int64_t rows, int64_t item_size,
                     int64_t multiprocessors) {
  using fastops::Dtype;
  SmallNetwork result{.layers = layers, .rows = rows, .multiprocessors = multiprocessors};
  std::copy_n(features, layers + 1, result.features.begin());
  result.dtype = item_size == 8 ? Dtype::float64 : item_size == 4 ? Dtype::float32 : Dtype::bfloat16;
  return result;
}

}  // namespace

extern "C" {

int64_t small_mlp_kernel(int64_t layers, const int64_t* features, int64_t rows, int64_t item_size,
                         int64_t multiprocessors, bool backward) {
  return SmallMlpTime(network(layers, features, rows, item_size, multiprocessors)).kernel(backward);
}

int64_t small_mlp_sums(int64_t layers, const int64_t* features, int64_t rows, int64_t item_size,
                       int64_t multiprocessors) {
  return SmallMlpTime(network(layers, features, rows, item_size, multiprocessors)).sums();
}

bool small_mlp_is_faster(int64_t layers, const int64_t* features, int64_t rows, int64_t item_size,
                         int64_t multiprocessors, bool backward, int64_t steps) {
  return is_small_mlp_faster(network(layers, features, rows, item_size, multiprocessors), backward, steps);
}
}
