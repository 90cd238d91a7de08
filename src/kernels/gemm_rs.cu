// Instances of the GEMM+ReduceScatter kernel, of inputs of the type MK_IN; MK_GENERAL: see Config.
#include "kernels/gemm_kernel.cuh"
#include "kernels/instances.cuh"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN, Tiles kTiles = Tiles::byOwner>
constexpr KernelEntry<GemmRsParams> entry() {
  using C = Config<Operation::gemmRs, ElementOf<Type::MK_IN>, kN, kAlongN, MK_GENERAL, kTiles>;
  if constexpr (kInstantiated<C>) {
    return {gemmKernel<C>, C::L::kBytes};
  } else {
    return {};
  }
}

}  // namespace

template <>
const KernelTable<GemmRsParams>& kernelTable<GemmRsParams, Type::MK_IN, MK_GENERAL>() {
  static const KernelTable<GemmRsParams> table = {
      {entry<128, false>(), entry<128, true>(), entry<256, false>(), entry<256, true>(),
       entry<sched::kTurnedCols, false, Tiles::spanning>(), entry<sched::kSpanningCols, false, Tiles::spanning>(),
       entry<sched::kSpanningCols, true, Tiles::spanning>()}};
  return table;
}

}  // namespace mk::kernels
