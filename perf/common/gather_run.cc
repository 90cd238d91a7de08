// The run of AllGather+GEMM on the CPU platform; see cpu_run.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu_run.h"

namespace mk::perf {
namespace {

class GatherRun final : public CpuRun {
 public:
  using CpuRun::CpuRun;

 private:
  // Buffers of one launch in flight.
  struct Set {
    Memory a, b, bias, cMemory, gatheredMemory;
    GuardedOutput c, gathered;
    int64_t launch = 0;
  };

  void allocateBuffers() override;
  void fill(int number, int64_t m, int64_t launch) override;
  mkResult_t enqueue(int set, int64_t m) override;
  void choose(int64_t m, Row* row) override;
  Traffic traffic(const Row& row) const override { return allGatherGemmTraffic(options_, row, info_); }
  void check(int number, int64_t m, bool last, Row* row) override;
  const char* call() const override { return "mkAllGatherGemm"; }

  mkAllGatherGemmArgs_t arguments(const Set& set, int64_t m) const;
  void corrupt(const Set& set) const;
  void wholeA(int64_t m, int64_t launch);
  int64_t differences(const Set& set, int64_t m) const;

  int64_t rows(int64_t m) const { return rowsOf(m, world_.rank(), world_.size()).rows; }
  size_t aBytes(int64_t rows) const { return static_cast<size_t>(rows * options_.k) * info(options_.in).bytes; }
  size_t cBytes(int64_t m) const { return static_cast<size_t>(m * options_.n) * info(options_.out).bytes; }
  bool gathers() const { return options_.gathered != Gathered::none; }

  Memory oldC_, whole_;
  Set sets_[kInFlight];
};

void GatherRun::allocateBuffers() {
  const Options& o = options_;
  const std::vector<int64_t> scan = o.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(o.in).bytes, gathered = GuardedOutput::room(aBytes(mMax));
  char* const windows = o.gathered == Gathered::window ? makeWindow(gathered * kInFlight) : nullptr;
  for (int i = 0; i < kInFlight; ++i) {
    Set& set = sets_[i];
    set.a = allocate(aBytes(rowsOf(mMax, 0, world_.size()).rows));
    set.b = allocate(static_cast<size_t>(o.k * o.n) * inBytes);
    if (o.bias) set.bias = allocate(static_cast<size_t>(o.n) * info(o.out).bytes);
    set.cMemory = allocate(GuardedOutput::room(cBytes(mMax)));
    set.c.memory = static_cast<char*>(set.cMemory.get());
    if (windows != nullptr) {
      set.gathered.memory = windows + static_cast<size_t>(i) * gathered;
    } else if (gathers()) {
      set.gatheredMemory = allocate(gathered);
      set.gathered.memory = static_cast<char*>(set.gatheredMemory.get());
    }
  }
  if (o.beta != 0) oldC_ = allocate(cBytes(mMax));
  if (o.check) whole_ = allocate(aBytes(mMax));
}

mkAllGatherGemmArgs_t GatherRun::arguments(const Set& set, int64_t m) const {
  Operands operands;
  operands.a = set.a.get();
  operands.b = set.b.get();
  operands.bias = set.bias.get();
  operands.c = set.c.data();
  if (gathers()) operands.gathered = set.gathered.data();
  operands.window = window_;
  if (window_) operands.offset = offsetInWindow(set.gathered.data());
  return session_.gatherArguments(operands, m, rows(m), options_.n, options_.k);
}

void GatherRun::choose(int64_t m, Row* row) {
  const mkAllGatherGemmArgs_t args = arguments(sets_[0], m);
  session_.choose(MK_OP_ALL_GATHER_GEMM, &args, info_.nodes, row);
}

mkResult_t GatherRun::enqueue(int set, int64_t m) {
  const mkAllGatherGemmArgs_t args = arguments(sets_[set], m);
  return session_.enqueue(&args, stream_);
}

void GatherRun::fill(int number, int64_t m, int64_t launch) {
  const Options& o = options_;
  const int rank = world_.rank();
  Set& set = sets_[number];
  set.launch = launch;
  fillUniform(o.in, set.a.get(), rows(m) * o.k, seedOf(Role::a, m, launch, rank));
  fillUniform(o.in, set.b.get(), o.k * o.n, seedOf(Role::b, m, launch, rank));
  if (o.bias) fillUniform(o.out, set.bias.get(), o.n, seedOf(Role::bias, m, launch, rank));
  set.c.prepare(cBytes(m));
  if (o.beta != 0) {
    fillUniform(o.out, set.c.data(), m * o.n, seedOf(Role::oldC, m, launch, rank));
  } else {
    fillNaN(o.out, set.c.data(), m * o.n);
  }
  if (!gathers()) return;
  set.gathered.prepare(aBytes(m));
  fillNaN(o.in, set.gathered.data(), m * o.k);
}

void GatherRun::corrupt(const Set& set) const {
  const size_t bytes = info(options_.out).bytes, middle = set.c.bytes / bytes / 2 * bytes;
  switch (options_.corrupt) {
    case Corrupt::element:
      if (set.c.bytes) set.c.data()[middle + bytes - 1] ^= 0x40;  // the exponent's highest bit (little endian)
      break;
    case Corrupt::rank:
      if (set.gathered.bytes && world_.rank() == world_.size() - 1) set.gathered.data()[0] ^= 1;
      break;
    case Corrupt::zero:
      memset(set.c.data(), 0, set.c.bytes);
      break;
    case Corrupt::guard:
      set.c.data()[set.c.bytes] ^= 1;
      break;
    case Corrupt::bytes:
    case Corrupt::nothing:
      break;
  }
}

// Every rank's rows, made again from their seeds.
void GatherRun::wholeA(int64_t m, int64_t launch) {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const RowShare share = rowsOf(m, rank, world_.size());
    fillUniform(options_.in, static_cast<char*>(whole_.get()) + aBytes(share.first), share.rows * options_.k,
                seedOf(Role::a, m, launch, rank));
  }
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

void GatherRun::check(int number, int64_t m, bool last, Row* row) {
  const Options& o = options_;
  const Set& set = sets_[number];
  if (last) corrupt(set);
  row->outOfBounds += world_.sum(set.c.damaged() + (gathers() ? set.gathered.damaged() : 0));
  wholeA(m, set.launch);
  GemmCase problem;
  problem.m = m;
  problem.n = o.n;
  problem.k = problem.kTotal = o.k;
  problem.in = o.in;
  problem.out = problem.wire = o.out;
  problem.a = whole_.get();
  problem.b = set.b.get();
  problem.bTransposed = o.transB;
  problem.c = set.c.data();
  if (o.beta != 0) {
    fillUniform(o.out, oldC_.get(), m * o.n, seedOf(Role::oldC, m, set.launch, world_.rank()));
    problem.oldC = oldC_.get();
  }
  if (o.bias) problem.bias = set.bias.get();
  problem.alpha = static_cast<double>(o.alpha);
  problem.beta = static_cast<double>(o.beta);
  problem.summed = false;
  checkGemm(world_, problem, &row->check);
  if (gathers()) {
    const uint64_t bits = hash(set.gathered.data(), aBytes(m));
    if (world_.min(bits) != world_.max(bits)) row->check.identical = false;
    row->check.wrong += world_.sum(differences(set, m));
  }
  row->compared = gathers();
  row->checkedRows = m;
}

}  // namespace

void runGatherOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  GatherRun(world, options, session, run, report).run();
}

}  // namespace mk::perf
