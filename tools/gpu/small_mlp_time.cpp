// What src/backends/hip/small_mlp_time.h and product_time.h count, for model.py.
#include "backends/hip/small_mlp_time.h"

using fastops::hip::is_small_mlp_faster;
using fastops::hip::SmallMlpTime;
using fastops::hip::SmallNetwork;

namespace {

fastops::Dtype dtype_of(int64_t item_size) {
  using fastops::Dtype;
  return item_size == 8 ? Dtype::float64 : item_size == 4 ? Dtype::float32 : Dtype::bfloat16;
}

SmallNetwork network(int64_t layers, const int64_t* features, int64_t rows, int64_t item_size,
                     int64_t multiprocessors) {
  SmallNetwork result{.layers = layers, .rows = rows, .dtype = dtype_of(item_size), .multiprocessors = multiprocessors};
  std::copy_n(features, layers + 1, result.features.begin());
  return result;
}

fastops::hip::Product product(const int64_t* sizes, int64_t item_size, int64_t multiprocessors) {
  return {.rows = sizes[1],
          .columns = sizes[2],
          .depth = sizes[3],
          .dtype = dtype_of(item_size),
          .multiprocessors = multiprocessors};
}

}  // namespace

extern "C" {

// Of products: kind, rows, columns, depth and the steps that are kernels besides PyTorch's products.
bool own_products_are_faster(int64_t count, const int64_t* products, int64_t item_size, int64_t multiprocessors) {
  fastops::hip::ProductTimes times = fastops::hip::times_of_choice(dtype_of(item_size), /*in_graph=*/false);
  for (const int64_t* p = products; p < products + 5 * count; p += 5) {
    times.add(product(p, item_size, multiprocessors), static_cast<fastops::hip::ProductKind>(p[0]), p[4]);
  }
  return times.own_are_faster();
}

int64_t library_product(const int64_t* sizes, int64_t item_size) {
  return library_product_time(product(sizes, item_size, 1), static_cast<fastops::hip::ProductKind>(sizes[0]));
}

int64_t own_product(const int64_t* sizes, int64_t item_size, int64_t multiprocessors) {
  return product_time(product(sizes, item_size, multiprocessors), static_cast<fastops::hip::ProductKind>(sizes[0]));
}

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
