// GEMM+ReduceScatter at the host: from checked arguments to a plan.
#pragma once

#include "host/gemm_args.h"
#include "host/gemm_rs_call.h"

namespace mk {

// Throws Error naming the argument, its value and what is legal.
std::shared_ptr<const OpCall> prepareGemmRs(const Comm& comm, const GemmArgs& args);

}  // namespace mk
