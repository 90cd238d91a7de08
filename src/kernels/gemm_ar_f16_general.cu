// Instances of the GEMM+AllReduce kernel: f16 inputs, all cases.
#include "kernels/gemm_ar_kernel.cuh"
#include "kernels/gemm_ar_table.h"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN>
constexpr GemmArEntry entry() {
  using C = Config<__half, kN, kAlongN, true>;
  return {gemmArKernel<C>, C::L::kBytes};
}

}  // namespace

const GemmArTable& gemmArF16General() {
  static const GemmArTable table = {{entry<128, false>(), entry<128, true>(), entry<256, false>(), entry<256, true>()}};
  return table;
}

}  // namespace mk::kernels
