// Instances of the GEMM+AllReduce kernel: bf16 inputs, plain products on one node (see Config).
#include "kernels/gemm_ar_kernel.cuh"
#include "kernels/gemm_ar_table.h"

namespace mk::kernels {

namespace {

template <int kN, bool kAlongN>
constexpr GemmArEntry entry() {
  using C = Config<__nv_bfloat16, kN, kAlongN, false>;
  return {gemmArKernel<C>, C::L::kBytes};
}

}  // namespace

const GemmArTable& gemmArBf16Lean() {
  static const GemmArTable table = {{entry<128, false>(), entry<128, true>(), entry<256, false>(), entry<256, true>()}};
  return table;
}

}  // namespace mk::kernels
