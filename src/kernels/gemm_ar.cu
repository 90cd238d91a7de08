// Instances of the GEMM+AllReduce kernel, of inputs of the type MK_IN; MK_GENERAL: see Config.
#include "kernels/gemm_kernel.cuh"
#include "kernels/instances.cuh"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN>
constexpr KernelEntry<GemmArParams> entry() {
  using C = Config<Operation::gemmAr, ElementOf<Type::MK_IN>, kN, kAlongN, MK_GENERAL>;
  if constexpr (kInstantiated<C>) {
    return {gemmKernel<C>, C::L::kBytes};
  } else {
    return {};
  }
}

}  // namespace

template <>
const KernelTable<GemmArParams>& kernelTable<GemmArParams, Type::MK_IN, MK_GENERAL>() {
  static const KernelTable<GemmArParams> table = {{entry<128, false>(), entry<128, true>(), entry<256, false>(),
                                                   entry<256, true>(), entry<sched::kTurnedCols, false>()}};
  return table;
}

}  // namespace mk::kernels
