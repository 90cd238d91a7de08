// GEMM+AllReduce at the host: checks the arguments, makes the plan, and turns both into a launch.
#pragma once

#include <string>

#include "emu/tile_engine.h"
#include "host/comm.h"
#include "mkernel.h"
#include "sched/gemm_ar.h"

namespace mk {

struct GemmArCall {
  sched::GemmArPlan plan;
  uint32_t hash = 0;
  emu::GemmArOperands operands;
  std::string text;  // the arguments, for errors that compare ranks
};

// Throws Error naming the argument, its value and what is legal.  args: already read with readStruct; tune: likewise, or null.
GemmArCall prepareGemmAr(const Comm& comm, const mkGemmAllReduceArgs_t& args, const mkTune_t* tune);

// The choices of a plan, for mkTuneQuery.
mkTune_t describeTune(const sched::GemmArPlan& plan);

// Launches; throws mkErrorNotReserved if the heap is too small.
void launchGemmAr(Comm& comm, GemmArCall call, mkStream_t stream);

}  // namespace mk
