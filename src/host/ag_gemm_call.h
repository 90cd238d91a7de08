// One call of mkAllGatherGemm after its arguments have been checked: what a platform launches.
#pragma once

#include <vector>

#include "host/op_call.h"
#include "protocol/operands.h"
#include "sched/ag_gemm.h"
#include "sched/kernel_choice.h"

namespace mk {

struct AgGemmCall final : OpCall {
  uint64_t workspace() const override { return plan.workspace(); }
  mkTune_t tune() const override;
  protocol::FailRecord run(Platform& platform, mkStream_t stream) const override {
    return platform.runAgGemm(*this, stream);
  }

  sched::AgGemmPlan plan;
  sched::KernelChoice kernel;  // of the CUDA platform
  protocol::GemmOperands operands;
  // By local rank: the whole A; only this rank's where it does not lie in a window, null where it is not asked for.
  std::vector<char*> gathered;
  uint64_t gatheredStride = 0;  // elements
};

}  // namespace mk
