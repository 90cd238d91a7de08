// The run of AllGather+GEMM on the CPU platform; see cpu_run.h.
#include <cstring>

#include "cpu_run.h"

namespace mk::perf {
namespace {

class GatherRun final : public CpuRun {
 public:
  using CpuRun::CpuRun;

 private:
  const char* call() const override { return "mkAllGatherGemm"; }
  mkResult_t enqueue(int set, int64_t m) override {
    const mkAllGatherGemmArgs_t args = arguments(sets_[set], m);
    return session_.enqueue(&args, stream_);
  }
  void choose(int64_t m, Row* row) override {
    const mkAllGatherGemmArgs_t args = arguments(sets_[0], m);
    session_.choose(MK_OP_ALL_GATHER_GEMM, &args, info_.nodes, row);
  }
  Traffic traffic(const Row& row) const override { return allGatherGemmTraffic(options_, row, info_); }
  int64_t aRows(int64_t m) const override { return rowsOf(m, world_.rank(), world_.size()).rows; }
  int64_t kOfB() const override { return options_.k; }
  int64_t cRows(int64_t m) const override { return m; }
  int owner() const override { return world_.rank(); }
  const GuardedOutput* shared(const Set& set) const override { return gathers() ? &set.gathered : nullptr; }
  void allocateMore(int64_t mMax) override;
  void prepareMore(Set* set, int64_t m) override;
  void describe(const Set& set, int64_t m, GemmCase* problem) override;
  void checkMore(const Set& set, int64_t m, Row* row) override;

  bool gathers() const { return options_.gathered != Gathered::none; }
  size_t aBytes(int64_t rows) const { return static_cast<size_t>(rows * options_.k) * info(options_.in).bytes; }
  mkAllGatherGemmArgs_t arguments(const Set& set, int64_t m) const;
  int64_t differences(const Set& set, int64_t m) const;

  Memory whole_;
};

void GatherRun::allocateMore(int64_t mMax) {
  if (gathers()) allocateOutputs(aBytes(mMax), options_.gathered == Gathered::window, &Set::gathered);
  if (options_.check) whole_ = allocate(aBytes(mMax));
}

mkAllGatherGemmArgs_t GatherRun::arguments(const Set& set, int64_t m) const {
  Operands operands = operandsOf(set);
  if (gathers()) operands.gathered = set.gathered.data();
  if (window_) operands.offset = offsetInWindow(set.gathered.data());
  return session_.gatherArguments(operands, m, aRows(m), options_.n, options_.k);
}

void GatherRun::prepareMore(Set* set, int64_t m) {
  if (!gathers()) return;
  set->gathered.prepare(aBytes(m));
  fillNaN(options_.in, set->gathered.data(), m * options_.k);
}

// A is every rank's rows, made again from their seeds.
void GatherRun::describe(const Set& set, int64_t m, GemmCase* problem) {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const RowShare share = rowsOf(m, rank, world_.size());
    fillUniform(options_.in, static_cast<char*>(whole_.get()) + aBytes(share.first), share.rows * options_.k,
                seedOf(Role::a, m, set.launch, rank));
  }
  problem->a = whole_.get();
}

// Elements of `gathered` that are not A's.
int64_t GatherRun::differences(const Set& set, int64_t m) const {
  const size_t bytes = info(options_.in).bytes;
  const char* const is = set.gathered.data();
  const char* const should = static_cast<const char*>(whole_.get());
  int64_t count = 0;
  for (size_t at = 0; at < aBytes(m); at += bytes) count += memcmp(is + at, should + at, bytes) != 0;
  return count;
}

void GatherRun::checkMore(const Set& set, int64_t m, Row* row) {
  if (!gathers()) return;
  row->outOfBounds += world_.sum(set.gathered.damaged());
  const uint64_t bits = hash(set.gathered.data(), aBytes(m));
  if (world_.min(bits) != world_.max(bits)) row->check.identical = false;
  row->check.wrong += world_.sum(differences(set, m));
}

}  // namespace

void runGatherOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  GatherRun(world, options, session, run, report).run();
}

}  // namespace mk::perf
