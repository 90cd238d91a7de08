// One GEMM+AllReduce launch on the CPU platform.
#pragma once

#include <vector>

#include "emu/launch.h"
#include "sched/gemm_ar.h"

namespace mk::emu {

// Runs the launch to its end on this thread.  Success, or the record of why it failed.  peerC: by local rank, used when C lies
// in a window.
protocol::FailRecord runGemmAr(Agents& agents, const RankMemory& memory, const sched::GemmArPlan& plan, uint32_t hash,
                               const GemmOperands& operands, const std::vector<char*>& peerC);

}  // namespace mk::emu
