// The kernels by type of inputs, width of tiles and layout of B; each file of instances fills a table.
#pragma once

#include "kernels/gemm_ar.h"

namespace mk::kernels {

struct GemmArEntry {
  void (*kernel)(GemmArParams) = nullptr;
  uint32_t sharedBytes = 0;
};
// By 2 * (tileN is 256) + (B has N contiguous).
struct GemmArTable {
  GemmArEntry entries[4];
};

const GemmArTable& gemmArBf16Lean();
const GemmArTable& gemmArBf16General();
const GemmArTable& gemmArF16Lean();
const GemmArTable& gemmArF16General();

}  // namespace mk::kernels
