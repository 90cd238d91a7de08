// GEMM+AllReduce at the host: checks the arguments, makes the plan, and turns both into a launch.
#pragma once

#include "host/comm.h"
#include "host/gemm_ar_call.h"
#include "mkernel.h"

namespace mk {

// Throws Error naming the argument, its value and what is legal.  args: already read with readStruct; tune: likewise, or null.
GemmArCall prepareGemmAr(const Comm& comm, const mkGemmAllReduceArgs_t& args, const mkTune_t* tune);

// The choices made, for mkTuneQuery.
mkTune_t describeTune(const GemmArCall& call);

// Launches; throws mkErrorNotReserved if the heap is too small.
void launchGemmAr(Comm& comm, GemmArCall call, mkStream_t stream);

}  // namespace mk
