// The matrix products of every dtype: 16-bit types are converted while they are packed.
#include "backends/cpu/kernels/gemm.h"

namespace fastops::cpu::CPU_CAPABILITY {
namespace {

template <class Storage>
void convert(ConstRows source, int64_t rows, int64_t columns, Rows target) {
  for (int64_t r = 0; r < rows; ++r) {
    convert_row<Compute<Storage>, Storage>(row<Storage>(source, r), columns, row<Compute<Storage>>(target, r), columns);
  }
}

template <class Storage>
void store(const void* arguments, const Block& block) {
  const auto& to = *static_cast<const StoreArguments*>(arguments);
  for_each_sum<Storage>(block, [&](auto sum, auto load, auto store, auto) {
    const auto value = sum(0);
    store(to.add ? apply<Storage>([](auto a, auto b) { return a + b; }, load(constant(to.result)), value) : value,
          to.result);
  });
}

template <class Storage>
void add(GemmKernels& entry) {
  using S = Compute<Storage>;
  entry = {panel_columns<S>, pack<S, Storage>, pack_transposed<S, Storage>, pack_tiles<S, Storage>, convert<Storage>,
           multiply<S>,      store<Storage>};
}

}  // namespace

void add_gemm_kernels(KernelTable& table) {
  add<float>(table.gemm[static_cast<int>(Dtype::float32)]);
  add<double>(table.gemm[static_cast<int>(Dtype::float64)]);
  add<c10::BFloat16>(table.gemm[static_cast<int>(Dtype::bfloat16)]);
  add<c10::Half>(table.gemm[static_cast<int>(Dtype::float16)]);
}

}  // namespace fastops::cpu::CPU_CAPABILITY
