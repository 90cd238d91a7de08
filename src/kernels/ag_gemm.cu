// Instances of the AllGather+GEMM kernel, of inputs of the type MK_IN; MK_GENERAL: see Config.
#include "kernels/ag_gemm_kernel.cuh"
#include "kernels/instances.cuh"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN>
constexpr KernelEntry<AgGemmParams> entry() {
  using C = Config<Operation::agGemm, ElementOf<Type::MK_IN>, kN, kAlongN, MK_GENERAL>;
  return {agGemmKernel<C>, C::L::kBytes};
}

// Only plain products have turned tiles.
template <bool kGeneral>
constexpr KernelEntry<AgGemmParams> turned() {
  if constexpr (kGeneral) {
    return {};
  } else {
    return entry<sched::kTurnedCols, false>();
  }
}

}  // namespace

template <>
const KernelTable<AgGemmParams>& kernelTable<AgGemmParams, Type::MK_IN, MK_GENERAL>() {
  static const KernelTable<AgGemmParams> table = {
      {entry<128, false>(), entry<128, true>(), entry<256, false>(), entry<256, true>(), turned<MK_GENERAL>()}};
  return table;
}

}  // namespace mk::kernels
