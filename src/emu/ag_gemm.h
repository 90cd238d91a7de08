// One AllGather+GEMM launch on the CPU platform.
#pragma once

#include <vector>

#include "emu/launch.h"
#include "sched/ag_gemm.h"

namespace mk::emu {

// Where the whole A goes; unused without `gathered`.
struct GatheredOutput {
  std::vector<char*> bases;  // by local rank; of others only where it lies in a window
  uint64_t stride = 0;       // elements
};

// Runs the launch to its end on this thread.  Success, or the record of why it failed.  operands.a: this rank's shard.
protocol::FailRecord runAgGemm(Agents& agents, const RankMemory& memory, const sched::AgGemmPlan& plan, uint32_t hash,
                               const GemmOperands& operands, const GatheredOutput& gathered);

}  // namespace mk::emu
