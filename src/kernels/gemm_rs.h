// One GEMM+ReduceScatter launch on the GPU.  Called by the communicator; no CUDA type but the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/launch.h"
#include "kernels/rank_memory.h"
#include "protocol/operands.h"
#include "sched/gemm_rs.h"
#include "sched/kernel_choice.h"

namespace mk::kernels {

// Enqueues one launch on the current device.  `hash`: of the plan and everything else that must agree.  "" or what failed.
std::string launchGemmRs(const RankMemory& memory, const sched::GemmRsPlan& plan, const sched::KernelChoice& choice,
                         uint32_t hash, const protocol::GemmOperands& operands, cudaStream_t stream);

}  // namespace mk::kernels
