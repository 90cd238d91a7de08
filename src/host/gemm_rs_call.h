// One call of mkGemmReduceScatter after its arguments have been checked: what a platform launches.
#pragma once

#include "host/op_call.h"
#include "protocol/operands.h"
#include "sched/gemm_rs.h"
#include "sched/kernel_choice.h"

namespace mk {

struct GemmRsCall final : OpCall {
  uint64_t workspace() const override { return plan.workspace(); }
  mkTune_t tune() const override;
  protocol::FailRecord run(Platform& platform, mkStream_t stream) const override {
    return platform.runGemmRs(*this, stream);
  }

  sched::GemmRsPlan plan;
  sched::KernelChoice kernel;       // of the CUDA platform
  protocol::GemmOperands operands;  // c: this rank's rows
};

}  // namespace mk
