// Instances of the AllGather+GEMM kernel, of inputs of the type MK_IN; MK_GENERAL: see Config.
#include "kernels/ag_gemm_kernel.cuh"
#include "kernels/instances.cuh"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN>
constexpr KernelEntry<AgGemmParams> entry() {
  using C = Config<Operation::agGemm, ElementOf<Type::MK_IN>, kN, kAlongN, MK_GENERAL>;
  if constexpr (kInstantiated<C>) {
    return {agGemmKernel<C>, C::L::kBytes};
  } else {
    return {};
  }
}

}  // namespace

template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::MK_IN, MK_GENERAL>() {
  static const KernelTable<AgGemmParams> table = {{entry<128, false>(),
                                                   entry<128, true>(),
                                                   entry<256, false>(),
                                                   entry<256, true>(),
                                                   entry<sched::kTurnedCols, false>(),
                                                   entry<sched::kSlimCols, false>(),
                                                   {},
                                                   entry<sched::kMediumCols, false>()}};
  return table;
}

}  // namespace mk::kernels
