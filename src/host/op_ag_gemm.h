// AllGather+GEMM at the host: from checked arguments to a plan.
#pragma once

#include "host/ag_gemm_call.h"
#include "host/gemm_args.h"

namespace mk {

// Throws Error naming the argument, its value and what is legal.
std::shared_ptr<const OpCall> prepareAgGemm(const Comm& comm, const GemmArgs& args);

}  // namespace mk
