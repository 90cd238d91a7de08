// One call of mkGemmAllReduce after its arguments have been checked: what a platform launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/gemm_ar.h"
#include "sched/kernel_choice.h"

namespace mk {

// Strides are in elements; the last stride of every matrix is 1.  Types are mkDataType_t.
struct GemmArOperands {
  uint32_t in = 0, out = 0, wire = 0, biasType = 0;
  uint64_t k = 0;
  const void* a = nullptr;
  uint64_t aStride = 0;
  const void* b = nullptr;
  uint64_t bStride = 0;
  bool bTransposed = false;  // B is (N, K)
  char* c = nullptr;
  uint64_t cStride = 0;
  std::vector<char*> peerC;  // by local rank; used when C lies in a window
  const void* bias = nullptr;
  float alpha = 1, beta = 0;
};

struct GemmArCall {
  sched::GemmArPlan plan;
  sched::KernelChoice kernel;  // of the CUDA platform
  uint32_t minSMs = 0;
  uint32_t hash = 0;  // of the plan and everything else that must agree
  GemmArOperands operands;
  std::string text;  // the arguments, for errors that compare ranks
};

}  // namespace mk
