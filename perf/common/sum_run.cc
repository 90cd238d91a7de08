// The run of GEMM+AllReduce and GEMM+ReduceScatter on the CPU platform; see sum_run.h.
#include "sum_run.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "data.h"
#include "mkernel.h"
#include "traffic.h"

namespace mk::perf {
namespace {

// Launches that are prepared, enqueued back to back, and then waited for together.
constexpr int kInFlight = 2;
constexpr size_t kGuardBytes = 256;  // around every C, to see writes out of bounds
constexpr int kGuardByte = 0x5c;

class SumRun {
 public:
  SumRun(World& world, const Options& options, Session& session, const RunInfo& run, Report* report)
      : world_(world), options_(options), session_(session), info_(run), report_(report) {}
  void run();

 private:
  // Buffers of one launch in flight.
  struct Set {
    Memory a, b, bias;
    char* slot = nullptr;  // guard, C, guard
    int64_t launch = 0;
    char* c() const { return slot + kGuardBytes; }
  };

  void allocateBuffers();
  bool scatters() const { return options_.operation == Operation::gemmReduceScatter; }
  // This rank's rows of C, and whose bias and old C it has (-1: the same as all).
  RowShare rowsOfC(int64_t m) const;
  int owner() const { return scatters() ? world_.rank() : -1; }
  // Calls call(op, args) with the arguments of the operation.
  template <typename Call>
  auto withArguments(const Set& set, int64_t m, const Call& call) const;
  void fill(Set& set, int64_t m, int64_t launch);
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  void checkOne(Set& set, int64_t m, bool last, Row* row);
  int64_t damagedGuards(const Set& set, int64_t m) const;
  void corrupt(Set& set, int64_t m);
  Row runRow(int64_t m);
  void disconnect();

  int64_t cElements(int64_t m) const { return rowsOfC(m).rows * options_.n; }
  size_t cBytes(int64_t m) const { return static_cast<size_t>(cElements(m)) * info(options_.out).bytes; }
  size_t slotBytes(int64_t m) const { return (cBytes(m) + 63) / 64 * 64 + 2 * kGuardBytes; }

  World& world_;
  const Options& options_;
  Session& session_;
  const RunInfo& info_;
  Report* const report_;
  int64_t k_ = 0;  // this rank's part
  mkStream_t stream_ = nullptr;
  mkWindow_t window_ = nullptr;
  void* windowMemory_ = nullptr;
  Memory plainMemory_;
  Memory oldC_;
  Set sets_[kInFlight];
};

void SumRun::allocateBuffers() {
  world_.phase("allocating buffers");
  const std::vector<int64_t> scan = options_.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(options_.in).bytes;
  // A rank may have fewer rows of a larger result.
  size_t cMax = 0, slot = 0;
  for (const int64_t m : scan) {
    cMax = std::max(cMax, cBytes(m));
    slot = std::max(slot, slotBytes(m));
  }
  char* slots = nullptr;
  if (options_.window) {
    session_.require(mkMemAlloc(&windowMemory_, slot * kInFlight), "mkMemAlloc");
    session_.require(mkCommWindowRegister(session_.comm(), windowMemory_, slot * kInFlight, &window_),
                     "mkCommWindowRegister");
    slots = static_cast<char*>(windowMemory_);
  } else {
    plainMemory_ = allocate(slot * kInFlight);
    slots = static_cast<char*>(plainMemory_.get());
  }
  for (int i = 0; i < kInFlight; ++i) {
    sets_[i].a = allocate(static_cast<size_t>(mMax * k_) * inBytes);
    sets_[i].b = allocate(static_cast<size_t>(k_ * options_.n) * inBytes);
    if (options_.bias) sets_[i].bias = allocate(static_cast<size_t>(options_.n) * info(options_.out).bytes);
    sets_[i].slot = slots + static_cast<size_t>(i) * slot;
  }
  if (options_.beta != 0) oldC_ = allocate(cMax);
}

RowShare SumRun::rowsOfC(int64_t m) const {
  return scatters() ? rowsOf(m, world_.rank(), world_.size()) : RowShare{0, m};
}

template <typename Call>
auto SumRun::withArguments(const Set& set, int64_t m, const Call& call) const {
  Operands operands;
  operands.a = set.a.get();
  operands.b = set.b.get();
  operands.bias = set.bias.get();
  operands.c = set.c();
  operands.window = window_;
  if (window_) operands.offset = static_cast<uint64_t>(set.c() - static_cast<char*>(windowMemory_));
  if (scatters()) {
    const auto args = session_.scatterArguments(operands, m, rowsOfC(m).rows, options_.n, k_);
    return call(MK_OP_GEMM_REDUCE_SCATTER, &args);
  }
  const auto args = session_.arguments(operands, m, options_.n, k_);
  return call(MK_OP_GEMM_ALL_REDUCE, &args);
}

mkResult_t enqueue(mkComm_t comm, const mkGemmAllReduceArgs_t* args, mkStream_t stream) {
  return mkGemmAllReduce(comm, args, stream);
}
mkResult_t enqueue(mkComm_t comm, const mkGemmReduceScatterArgs_t* args, mkStream_t stream) {
  return mkGemmReduceScatter(comm, args, stream);
}

void SumRun::fill(Set& set, int64_t m, int64_t launch) {
  const Options& o = options_;
  set.launch = launch;
  fillUniform(o.in, set.a.get(), m * k_, seedOf(Role::a, m, launch, world_.rank()));
  fillUniform(o.in, set.b.get(), k_ * o.n, seedOf(Role::b, m, launch, world_.rank()));
  if (o.bias) fillUniform(o.out, set.bias.get(), o.n, seedOf(Role::bias, m, launch, owner()));
  memset(set.slot, kGuardByte, slotBytes(m));
  if (o.beta != 0) {
    fillUniform(o.out, set.c(), cElements(m), seedOf(Role::oldC, m, launch, owner()));
  } else {
    fillNaN(o.out, set.c(), cElements(m));
  }
}

int64_t SumRun::damagedGuards(const Set& set, int64_t m) const {
  const auto spoiled = [](const char* begin, const char* end) {
    return std::any_of(begin, end, [](char c) { return c != kGuardByte; });
  };
  return spoiled(set.slot, set.c()) + spoiled(set.c() + cBytes(m), set.slot + slotBytes(m));
}

void SumRun::corrupt(Set& set, int64_t m) {
  const size_t bytes = info(options_.out).bytes;
  char* const middle = set.c() + static_cast<size_t>(cElements(m) / 2) * bytes;
  switch (options_.corrupt) {
    case Corrupt::element:
      if (cElements(m) > 0) middle[bytes - 1] ^= 0x40;  // the exponent's highest bit (little endian)
      break;
    case Corrupt::rank:
      if (cElements(m) > 0 && world_.rank() == world_.size() - 1) middle[0] ^= 1;
      break;
    case Corrupt::zero:
      memset(set.c(), 0, cBytes(m));
      break;
    case Corrupt::guard:
      set.c()[cBytes(m)] ^= 1;
      break;
    case Corrupt::bytes:
    case Corrupt::nothing:
      break;
  }
}

void SumRun::checkOne(Set& set, int64_t m, bool last, Row* row) {
  const Options& o = options_;
  world_.phase("checking M " + std::to_string(m));
  if (last) corrupt(set, m);
  row->outOfBounds += world_.sum(damagedGuards(set, m));
  GemmCase problem;
  problem.m = m;
  problem.n = o.n;
  problem.k = k_;
  problem.kTotal = o.k;
  problem.in = o.in;
  problem.out = o.out;
  problem.wire = o.wire;
  problem.a = set.a.get();
  problem.b = set.b.get();
  problem.bTransposed = o.transB;
  problem.c = set.c();
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
  row->checked = true;
}

void SumRun::launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row) {
  for (int done = 0; done < count; done += kInFlight) {
    const int now = std::min(kInFlight, count - done);
    const std::string what =
        std::string(scatters() ? "mkGemmReduceScatter" : "mkGemmAllReduce") + ", M " + std::to_string(m);
    world_.phase(what);
    for (int i = 0; i < now; ++i) fill(sets_[i], m, firstLaunch + done + i);
    for (int i = 0; i < now; ++i) {
      session_.require(
          withArguments(sets_[i], m, [&](int, const auto* args) { return enqueue(session_.comm(), args, stream_); }),
          what);
    }
    session_.require(mkCpuStreamSynchronize(stream_), "mkCpuStreamSynchronize");
    session_.requireAsync(what);
    if (!measured) continue;
    for (int i = 0; i < now; ++i) {
      const bool last = done + i == count - 1;
      if (options_.check > 1 || (options_.check == 1 && last)) checkOne(sets_[i], m, last, row);
    }
  }
}

Row SumRun::runRow(int64_t m) {
  Row row;
  row.m = m;
  row.n = options_.n;
  row.k = options_.k;
  row.launches = options_.launches;
  world_.phase("preparing M " + std::to_string(m));
  withArguments(sets_[0], m, [&](int op, const auto* args) { session_.choose(op, args, info_.nodes, &row); });
  session_.reserve(row);

  launchAll(m, options_.warmup, 0, false, &row);
  const Session::Counters before = session_.counters();
  launchAll(m, options_.launches, options_.warmup, true, &row);
  const Session::Counters after = session_.counters();
  const Traffic traffic =
      scatters() ? gemmReduceScatterTraffic(options_, row, info_) : gemmAllReduceTraffic(options_, row, info_.nodes);
  session_.compareBytes(info_, traffic, before, after, &row);
  return row;
}

void SumRun::disconnect() {
  session_.finalize();
  if (window_) session_.require(mkCommWindowDeregister(session_.comm(), window_), "mkCommWindowDeregister");
  session_.require(mkCpuStreamDestroy(stream_), "mkCpuStreamDestroy");
  session_.destroy();
  session_.require(mkMemFree(windowMemory_), "mkMemFree");
}

void SumRun::run() {
  k_ = partOfK(options_.k, world_.rank(), world_.size());
  session_.require(mkCpuStreamCreate(&stream_), "mkCpuStreamCreate");
  allocateBuffers();
  for (const int64_t m : options_.scan()) {
    const Row row = runRow(m);
    if (report_) report_->row(row);
  }
  disconnect();
}

}  // namespace

void runSumOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  SumRun(world, options, session, run, report).run();
}

}  // namespace mk::perf
