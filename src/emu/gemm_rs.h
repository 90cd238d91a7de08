// One GEMM+ReduceScatter launch on the CPU platform.
#pragma once

#include "emu/launch.h"
#include "sched/gemm_rs.h"

namespace mk::emu {

// Runs the launch to its end on this thread.  Success, or the record of why it failed.  operands.c: this rank's rows.
protocol::FailRecord runGemmRs(Agents& agents, const RankMemory& memory, const sched::GemmRsPlan& plan, uint32_t hash,
                               const GemmOperands& operands);

}  // namespace mk::emu
