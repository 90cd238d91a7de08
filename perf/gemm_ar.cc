// mk_gemm_ar_perf: runs mkGemmAllReduce over a scan of M on the ranks of an MPI job, checks every result against a
// reference in double, compares the bytes sent over the network with the formula, and prints a table as nccl-tests does.
// perf/README.md explains the columns.  This file holds the run on the CPU platform; cuda/gemm_ar_cuda.cc that on GPUs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/data.h"
#include "common/options.h"
#include "common/program.h"
#include "common/report.h"
#include "common/session.h"
#include "common/traffic.h"
#include "common/world.h"
#include "mkernel.h"
#ifdef MK_PERF_CUDA
#include "cuda/gemm_ar_cuda.h"
#endif

namespace mk::perf {
namespace {

// Launches that are prepared, enqueued back to back, and then waited for together.
constexpr int kInFlight = 2;
constexpr size_t kGuardBytes = 256;  // around every C, to see writes out of bounds
constexpr int kGuardByte = 0x5c;

class GemmAllReducePerf {
 public:
  // On the CPU platform.  The report is rank 0's; the others have none.
  GemmAllReducePerf(World& world, const Options& options, Session& session, const RunInfo& run, Report* report)
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
  mkGemmAllReduceArgs_t arguments(const Set& set, int64_t m) const;
  void fill(Set& set, int64_t m, int64_t launch);
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  void checkOne(Set& set, int64_t m, bool last, Row* row);
  int64_t damagedGuards(const Set& set, int64_t m) const;
  void corrupt(Set& set, int64_t m);
  Row runRow(int64_t m);
  void disconnect();

  size_t cBytes(int64_t m) const { return static_cast<size_t>(m * options_.n) * info(options_.out).bytes; }
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

void GemmAllReducePerf::allocateBuffers() {
  world_.phase("allocating buffers");
  const std::vector<int64_t> scan = options_.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(options_.in).bytes;
  const size_t slot = slotBytes(mMax);
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
  if (options_.beta != 0) oldC_ = allocate(cBytes(mMax));
}

mkGemmAllReduceArgs_t GemmAllReducePerf::arguments(const Set& set, int64_t m) const {
  Operands operands;
  operands.a = set.a.get();
  operands.b = set.b.get();
  operands.bias = set.bias.get();
  operands.c = set.c();
  operands.window = window_;
  if (window_) operands.offset = static_cast<uint64_t>(set.c() - static_cast<char*>(windowMemory_));
  return session_.arguments(operands, m, options_.n, k_);
}

void GemmAllReducePerf::fill(Set& set, int64_t m, int64_t launch) {
  const Options& o = options_;
  set.launch = launch;
  fillUniform(o.in, set.a.get(), m * k_, seedOf(Role::a, m, launch, world_.rank()));
  fillUniform(o.in, set.b.get(), k_ * o.n, seedOf(Role::b, m, launch, world_.rank()));
  if (o.bias) fillUniform(o.out, set.bias.get(), o.n, seedOf(Role::bias, m, launch, -1));
  memset(set.slot, kGuardByte, slotBytes(m));
  if (o.beta != 0) {
    fillUniform(o.out, set.c(), m * o.n, seedOf(Role::oldC, m, launch, -1));
  } else {
    fillNaN(o.out, set.c(), m * o.n);
  }
}

int64_t GemmAllReducePerf::damagedGuards(const Set& set, int64_t m) const {
  const auto spoiled = [](const char* begin, const char* end) {
    return std::any_of(begin, end, [](char c) { return c != kGuardByte; });
  };
  return spoiled(set.slot, set.c()) + spoiled(set.c() + cBytes(m), set.slot + slotBytes(m));
}

void GemmAllReducePerf::corrupt(Set& set, int64_t m) {
  const size_t bytes = info(options_.out).bytes;
  char* const middle = set.c() + static_cast<size_t>(m * options_.n / 2) * bytes;
  switch (options_.corrupt) {
    case Corrupt::element:
      if (m * options_.n > 0) middle[bytes - 1] ^= 0x40;  // the exponent's highest bit (little endian)
      break;
    case Corrupt::rank:
      if (m * options_.n > 0 && world_.rank() == world_.size() - 1) middle[0] ^= 1;
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

void GemmAllReducePerf::checkOne(Set& set, int64_t m, bool last, Row* row) {
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
  if (o.beta != 0) {
    fillUniform(o.out, oldC_.get(), m * o.n, seedOf(Role::oldC, m, set.launch, -1));
    problem.oldC = oldC_.get();
  }
  if (o.bias) problem.bias = set.bias.get();
  problem.alpha = static_cast<double>(o.alpha);
  problem.beta = static_cast<double>(o.beta);
  problem.nodes = info_.nodes;
  problem.ranksPerNode = info_.ranksPerNode;
  checkGemm(world_, problem, &row->check);
  row->checkedRows = m;
  row->checked = true;
}

void GemmAllReducePerf::launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row) {
  for (int done = 0; done < count; done += kInFlight) {
    const int now = std::min(kInFlight, count - done);
    const std::string what = "mkGemmAllReduce, M " + std::to_string(m);
    world_.phase(what);
    for (int i = 0; i < now; ++i) fill(sets_[i], m, firstLaunch + done + i);
    for (int i = 0; i < now; ++i) {
      const mkGemmAllReduceArgs_t args = arguments(sets_[i], m);
      session_.require(mkGemmAllReduce(session_.comm(), &args, stream_), what);
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

Row GemmAllReducePerf::runRow(int64_t m) {
  Row row;
  row.m = m;
  row.n = options_.n;
  row.k = options_.k;
  row.launches = options_.launches;
  world_.phase("preparing M " + std::to_string(m));
  const mkGemmAllReduceArgs_t args = arguments(sets_[0], m);
  session_.choose(MK_OP_GEMM_ALL_REDUCE, &args, info_.nodes, &row);
  session_.reserve(row);

  launchAll(m, options_.warmup, 0, false, &row);
  const Session::Counters before = session_.counters();
  launchAll(m, options_.launches, options_.warmup, true, &row);
  const Session::Counters after = session_.counters();
  session_.compareBytes(info_, gemmAllReduceTraffic(options_, row, info_.nodes), before, after, &row);
  return row;
}

void GemmAllReducePerf::disconnect() {
  session_.finalize();
  if (window_) session_.require(mkCommWindowDeregister(session_.comm(), window_), "mkCommWindowDeregister");
  session_.require(mkCpuStreamDestroy(stream_), "mkCpuStreamDestroy");
  session_.destroy();
  session_.require(mkMemFree(windowMemory_), "mkMemFree");
}

void GemmAllReducePerf::run() {
  k_ = partOfK(options_.k, world_.rank(), world_.size());
  session_.require(mkCpuStreamCreate(&stream_), "mkCpuStreamCreate");
  allocateBuffers();
  for (const int64_t m : options_.scan()) {
    const Row row = runRow(m);
    if (report_) report_->row(row);
  }
  disconnect();
}

void runOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  GemmAllReducePerf(world, options, session, run, report).run();
}

#ifdef MK_PERF_CUDA
void runOnGpus(World& world, const Options& options, Session& session, const RunInfo& run,
               std::unique_ptr<Report>* report) {
  GemmAllReduceCuda(world, options, session, run).run(report);
}
#endif

}  // namespace
}  // namespace mk::perf

int main(int argc, char** argv) {
  mk::perf::Program program;
  program.operation = mk::perf::Operation::gemmAllReduce;
  program.cpu = mk::perf::runOnCpu;
#ifdef MK_PERF_CUDA
  program.gpu = mk::perf::runOnGpus;
  program.chooseDevice = mk::perf::useLocalDevice;
#endif
  return mk::perf::runProgram(argc, argv, program);
}
