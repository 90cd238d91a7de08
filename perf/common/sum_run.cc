// The run of GEMM+AllReduce and GEMM+ReduceScatter on the CPU platform; see cpu_run.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu_run.h"

namespace mk::perf {
namespace {

class SumRun final : public CpuRun {
 public:
  using CpuRun::CpuRun;

 private:
  // Buffers of one launch in flight.
  struct Set {
    Memory a, b, bias;
    GuardedOutput c;
    int64_t launch = 0;
  };

  void allocateBuffers() override;
  void fill(int number, int64_t m, int64_t launch) override;
  mkResult_t enqueue(int set, int64_t m) override;
  void choose(int64_t m, Row* row) override;
  Traffic traffic(const Row& row) const override {
    return scatters() ? gemmReduceScatterTraffic(options_, row, info_)
                      : gemmAllReduceTraffic(options_, row, info_.nodes);
  }
  void check(int number, int64_t m, bool last, Row* row) override;
  const char* call() const override { return scatters() ? "mkGemmReduceScatter" : "mkGemmAllReduce"; }

  bool scatters() const { return options_.operation == Operation::gemmReduceScatter; }
  int64_t k() const { return partOfK(options_.k, world_.rank(), world_.size()); }
  // This rank's rows of C, and whose bias and old C it has (-1: the same as all).
  RowShare rowsOfC(int64_t m) const { return scatters() ? rowsOf(m, world_.rank(), world_.size()) : RowShare{0, m}; }
  int owner() const { return scatters() ? world_.rank() : -1; }
  int64_t cElements(int64_t m) const { return rowsOfC(m).rows * options_.n; }
  size_t cBytes(int64_t m) const { return static_cast<size_t>(cElements(m)) * info(options_.out).bytes; }
  // Calls call(op, args) with the arguments of the operation.
  template <typename Call>
  auto withArguments(const Set& set, int64_t m, const Call& call) const;
  void corrupt(const Set& set) const;

  Memory plainMemory_;
  Memory oldC_;
  Set sets_[kInFlight];
};

void SumRun::allocateBuffers() {
  const std::vector<int64_t> scan = options_.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(options_.in).bytes;
  // A rank may have fewer rows of a larger result.
  size_t cMax = 0;
  for (const int64_t m : scan) cMax = std::max(cMax, cBytes(m));
  const size_t slot = GuardedOutput::room(cMax);
  char* slots = nullptr;
  if (options_.window) {
    slots = makeWindow(slot * kInFlight);
  } else {
    plainMemory_ = allocate(slot * kInFlight);
    slots = static_cast<char*>(plainMemory_.get());
  }
  for (int i = 0; i < kInFlight; ++i) {
    sets_[i].a = allocate(static_cast<size_t>(mMax * k()) * inBytes);
    sets_[i].b = allocate(static_cast<size_t>(k() * options_.n) * inBytes);
    if (options_.bias) sets_[i].bias = allocate(static_cast<size_t>(options_.n) * info(options_.out).bytes);
    sets_[i].c.memory = slots + static_cast<size_t>(i) * slot;
  }
  if (options_.beta != 0) oldC_ = allocate(cMax);
}

template <typename Call>
auto SumRun::withArguments(const Set& set, int64_t m, const Call& call) const {
  Operands operands;
  operands.a = set.a.get();
  operands.b = set.b.get();
  operands.bias = set.bias.get();
  operands.c = set.c.data();
  operands.window = window_;
  if (window_) operands.offset = offsetInWindow(set.c.data());
  if (scatters()) {
    const auto args = session_.scatterArguments(operands, m, rowsOfC(m).rows, options_.n, k());
    return call(MK_OP_GEMM_REDUCE_SCATTER, &args);
  }
  const auto args = session_.arguments(operands, m, options_.n, k());
  return call(MK_OP_GEMM_ALL_REDUCE, &args);
}

void SumRun::choose(int64_t m, Row* row) {
  withArguments(sets_[0], m, [&](int op, const auto* args) { session_.choose(op, args, info_.nodes, row); });
}

mkResult_t SumRun::enqueue(int set, int64_t m) {
  return withArguments(sets_[set], m, [&](int, const auto* args) { return session_.enqueue(args, stream_); });
}

void SumRun::fill(int number, int64_t m, int64_t launch) {
  const Options& o = options_;
  Set& set = sets_[number];
  set.launch = launch;
  fillUniform(o.in, set.a.get(), m * k(), seedOf(Role::a, m, launch, world_.rank()));
  fillUniform(o.in, set.b.get(), k() * o.n, seedOf(Role::b, m, launch, world_.rank()));
  if (o.bias) fillUniform(o.out, set.bias.get(), o.n, seedOf(Role::bias, m, launch, owner()));
  set.c.prepare(cBytes(m));
  if (o.beta != 0) {
    fillUniform(o.out, set.c.data(), cElements(m), seedOf(Role::oldC, m, launch, owner()));
  } else {
    fillNaN(o.out, set.c.data(), cElements(m));
  }
}

void SumRun::corrupt(const Set& set) const {
  const size_t bytes = info(options_.out).bytes;
  char* const middle = set.c.data() + set.c.bytes / bytes / 2 * bytes;
  switch (options_.corrupt) {
    case Corrupt::element:
      if (set.c.bytes > 0) middle[bytes - 1] ^= 0x40;  // the exponent's highest bit (little endian)
      break;
    case Corrupt::rank:
      if (set.c.bytes > 0 && world_.rank() == world_.size() - 1) middle[0] ^= 1;
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

void SumRun::check(int number, int64_t m, bool last, Row* row) {
  const Options& o = options_;
  const Set& set = sets_[number];
  if (last) corrupt(set);
  row->outOfBounds += world_.sum(set.c.damaged());
  GemmCase problem;
  problem.m = m;
  problem.n = o.n;
  problem.k = k();
  problem.kTotal = o.k;
  problem.in = o.in;
  problem.out = o.out;
  problem.wire = o.wire;
  problem.a = set.a.get();
  problem.b = set.b.get();
  problem.bTransposed = o.transB;
  problem.c = set.c.data();
  problem.firstRow = rowsOfC(m).first;
  problem.rows = rowsOfC(m).rows;
  problem.everywhere = !scatters();
  if (o.beta != 0) {
    fillUniform(o.out, oldC_.get(), cElements(m), seedOf(Role::oldC, m, set.launch, owner()));
    problem.oldC = oldC_.get();
  }
  if (o.bias) problem.bias = set.bias.get();
  problem.alpha = static_cast<double>(o.alpha);
  problem.beta = static_cast<double>(o.beta);
  problem.nodes = info_.nodes;
  problem.ranksPerNode = info_.ranksPerNode;
  checkGemm(world_, problem, &row->check);
  row->compared = !scatters();
  row->checkedRows = m;
}

}  // namespace

void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  SumRun(world, options, session, run, report).run();
}

}  // namespace mk::perf
