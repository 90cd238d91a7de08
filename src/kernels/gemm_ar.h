// One GEMM+AllReduce launch on the GPU.  Called by the communicator; no CUDA type but the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/launch.h"
#include "kernels/rank_memory.h"
#include "protocol/operands.h"
#include "sched/gemm_ar.h"
#include "sched/kernel_choice.h"

namespace mk::kernels {

struct GemmArOperands : protocol::GemmOperands {
  char* peerC[kMaxLocals] = {};  // by local rank; used when C lies in a window
};

// Enqueues one launch on the current device.  `hash`: of the plan and everything else that must agree.  "" or what failed.
std::string launchGemmAr(const RankMemory& memory, const sched::GemmArPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const GemmArOperands& operands, cudaStream_t stream);

}  // namespace mk::kernels
