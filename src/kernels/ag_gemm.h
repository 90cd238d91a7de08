// One AllGather+GEMM launch on the GPU.  Called by the communicator; no CUDA type but the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/launch.h"
#include "kernels/rank_memory.h"
#include "protocol/operands.h"
#include "sched/ag_gemm.h"
#include "sched/kernel_choice.h"

namespace mk::kernels {

struct AgGemmOperands : protocol::GemmOperands {
  // The whole A, if it is asked for: of every local rank where it lies in a window, else of this rank alone.
  char* gathered[kMaxLocals] = {};
  uint64_t gatheredStride = 0;  // elements
};

// Enqueues one launch on the current device.  `hash`: of the plan and everything else that must agree.  "" or what failed.
std::string launchAgGemm(const RankMemory& memory, const sched::AgGemmPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const AgGemmOperands& operands, cudaStream_t stream);

}  // namespace mk::kernels
