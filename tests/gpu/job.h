// One of the three operations, whichever, with operands of its own: for tests that are the same for all.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ops/ag_world.h"
#include "ops/world.h"

namespace test {

// "reduce", "scatter" or "gather", as an option of a role.
inline int operationOf(const std::string& name) {
  return name == "scatter"  ? MK_OP_GEMM_REDUCE_SCATTER
         : name == "gather" ? MK_OP_ALL_GATHER_GEMM
                            : MK_OP_GEMM_ALL_REDUCE;
}

class Job {
 public:
  // The case says which operation.  AllGather+GEMM: `window` is of the whole A, which is not asked for without.
  Job(const Case& c, const World& world, int rank, mkComm_t comm) : op_(c.op), comm_(comm) {
    if (op_ != MK_OP_ALL_GATHER_GEMM) {
      sum_ = std::make_unique<Operands>(c, world, rank, comm);
      return;
    }
    AgCase g{.m = c.m, .n = c.n, .k = c.k, .in = c.in, .out = c.out, .alpha = c.alpha, .beta = c.beta};
    g.transposed = c.transposed;
    g.gather = c.window ? Gather::window : Gather::none;
    g.tune = c.tune;
    g.seed = c.seed;
    gather_ = std::make_unique<AgOperands>(g, world, rank, comm);
  }

  size_t workspace() const {
    size_t bytes = 0;
    withArgs([&](const auto* args) { expect(mkOpWorkspaceSize(comm_, op_, args, &bytes), "workspace"); });
    return bytes;
  }
  void reserve() const { expect(mkCommReserve(comm_, workspace()), "reserve", comm_); }
  mkTune_t tune() const {
    mkTune_t t;
    MK_INIT(&t, MK_ID_TUNE);
    withArgs([&](const auto* args) { expect(mkTuneQuery(comm_, op_, args, &t), "tune"); });
    return t;
  }
  mkResult_t launch(mkStream_t stream) const {
    if (sum_ != nullptr) return sum_->launch(stream);
    const mkAllGatherGemmArgs_t args = gather_->args();
    return mkAllGatherGemm(comm_, &args, stream);
  }
  void refill(uint64_t seed) { sum_ != nullptr ? sum_->refill(seed) : gather_->refill(seed); }
  void check() const { sum_ != nullptr ? sum_->check() : gather_->check(); }
  std::pair<void*, size_t> deviceBytes(char which) const {
    return sum_ != nullptr ? sum_->deviceBytes(which) : gather_->deviceBytes(which);
  }

 private:
  template <class Call>
  void withArgs(const Call& call) const {
    if (op_ == MK_OP_ALL_GATHER_GEMM) {
      const mkAllGatherGemmArgs_t args = gather_->args();
      call(&args);
    } else if (op_ == MK_OP_GEMM_REDUCE_SCATTER) {
      const mkGemmReduceScatterArgs_t args = sum_->scatterArgs();
      call(&args);
    } else {
      const mkGemmAllReduceArgs_t args = sum_->args();
      call(&args);
    }
  }

  const int op_;
  mkComm_t const comm_;
  std::unique_ptr<Operands> sum_;
  std::unique_ptr<AgOperands> gather_;
};

// Reserves what the job needs and runs it once, checked.
inline void runJob(const Case& c, const World& world, int rank, mkComm_t comm, mkStream_t stream) {
  const Job job(c, world, rank, comm);
  job.reserve();
  expect(job.launch(stream), "launch", comm);
  synchronize(stream);
  mkResult_t async = mkSuccess;
  expect(mkCommGetAsyncError(comm, &async), "async");
  expect(async, "asynchronous error", comm);
  job.check();
}

}  // namespace test
