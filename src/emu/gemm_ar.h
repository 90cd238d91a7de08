// One GEMM+AllReduce launch on the CPU platform.
#pragma once

#include <vector>

#include "emu/fibre.h"
#include "emu/platform.h"
#include "emu/tile_engine.h"
#include "sched/gemm_ar.h"

namespace mk::emu {

// What the agents of one communicator keep between launches.
struct Agents {
  explicit Agents(uint32_t count) : pool(count), waits(count), engines(count) {}
  AgentPool pool;
  WaitBoard waits;
  std::vector<TileEngine> engines;
};

// Runs the launch to its end on this thread.  Success, or the record of why it failed.
protocol::FailRecord runGemmAr(Agents& agents, const RankMemory& memory, const sched::GemmArPlan& plan, uint32_t hash,
                               const GemmArOperands& operands);

}  // namespace mk::emu
