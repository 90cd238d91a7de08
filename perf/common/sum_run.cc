// The run of GEMM+AllReduce and GEMM+ReduceScatter on the CPU platform; see cpu_run.h.
#include "cpu_run.h"

namespace mk::perf {
namespace {

class SumRun final : public CpuRun {
 public:
  using CpuRun::CpuRun;

 private:
  const char* call() const override { return scatters() ? "mkGemmReduceScatter" : "mkGemmAllReduce"; }
  mkResult_t enqueue(int set, int64_t m) override;
  void choose(int64_t m, Row* row) override;
  Traffic traffic(const Row& row) const override {
    return scatters() ? gemmReduceScatterTraffic(options_, row, info_)
                      : gemmAllReduceTraffic(options_, row, info_.nodes);
  }
  int64_t aRows(int64_t m) const override { return m; }
  int64_t kOfB() const override { return partOfK(options_.k, world_.rank(), world_.size()); }
  int64_t cRows(int64_t m) const override { return share(m).rows; }
  int owner() const override { return scatters() ? world_.rank() : -1; }
  const GuardedOutput* shared(const Set& set) const override { return scatters() ? nullptr : &set.c; }
  void describe(const Set& set, int64_t m, GemmCase* problem) override;

  bool scatters() const { return options_.operation == Operation::gemmReduceScatter; }
  // This rank's rows of C.
  RowShare share(int64_t m) const { return scatters() ? rowsOf(m, world_.rank(), world_.size()) : RowShare{0, m}; }
  // Calls call(op, args) with the arguments of the operation.
  template <typename Call>
  auto withArguments(const Set& set, int64_t m, const Call& call) const;
};

template <typename Call>
auto SumRun::withArguments(const Set& set, int64_t m, const Call& call) const {
  Operands operands = operandsOf(set);
  if (window_) operands.offset = offsetInWindow(set.c.data());
  if (scatters()) {
    const auto args = session_.scatterArguments(operands, m, cRows(m), options_.n, kOfB());
    return call(MK_OP_GEMM_REDUCE_SCATTER, &args);
  }
  const auto args = session_.arguments(operands, m, options_.n, kOfB());
  return call(MK_OP_GEMM_ALL_REDUCE, &args);
}

mkResult_t SumRun::enqueue(int set, int64_t m) {
  return withArguments(sets_[set], m, [&](int, const auto* args) { return session_.enqueue(args, stream_); });
}

void SumRun::choose(int64_t m, Row* row) {
  withArguments(sets_[0], m, [&](int op, const auto* args) { session_.choose(op, args, info_.nodes, row); });
}

void SumRun::describe(const Set&, int64_t m, GemmCase* problem) {
  problem->summed = true;
  problem->everywhere = !scatters();
  problem->wire = options_.wire;
  problem->firstRow = share(m).first;
  problem->rows = share(m).rows;
  problem->nodes = info_.nodes;
  problem->ranksPerNode = info_.ranksPerNode;
}

}  // namespace

void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  SumRun(world, options, session, run, report).run();
}

}  // namespace mk::perf
