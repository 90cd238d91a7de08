// One call of mkGemmAllReduce after its arguments have been checked: what a platform launches.
#pragma once

#include <vector>

#include "host/op_call.h"
#include "protocol/operands.h"
#include "sched/gemm_ar.h"
#include "sched/kernel_choice.h"

namespace mk {

struct GemmArCall final : OpCall {
  uint64_t workspace() const override { return plan.workspace(); }
  mkTune_t tune() const override;
  protocol::FailRecord run(Platform& platform, mkStream_t stream) const override {
    return platform.runGemmAr(*this, stream);
  }

  sched::GemmArPlan plan;
  sched::KernelChoice kernel;  // of the CUDA platform
  protocol::GemmOperands operands;
  std::vector<char*> peerC;  // by local rank; used when C lies in a window
};

}  // namespace mk
