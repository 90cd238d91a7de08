// The run on the CPU platform of the operations that sum products over the ranks, GEMM+AllReduce and GEMM+ReduceScatter, whichever
// the options name: a scan of M, every result checked, the bytes sent compared with the formula.  Called by gemm_ar.cc and
// gemm_rs.cc.
#pragma once

#include "options.h"
#include "report.h"
#include "session.h"
#include "world.h"

namespace mk::perf {

// The report is rank 0's; the others have none.  Ends the session.
void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report);

}  // namespace mk::perf
