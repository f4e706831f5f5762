#include "ops/product.h"

namespace fastops {
namespace {

TryProduct& registered() {
  static TryProduct product = nullptr;
  return product;
}

}  // namespace

at::Tensor try_product(const at::Tensor& a, const at::Tensor& b) {
  return registered() ? registered()(a, b) : at::Tensor();
}

RegisterProduct::RegisterProduct(TryProduct product) { registered() = product; }

}  // namespace fastops
