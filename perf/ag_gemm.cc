// mk_ag_gemm_perf: runs mkAllGatherGemm over a scan of M on the ranks of an MPI job, checks every rank's result against a
// reference in double and the gathered A bit by bit, compares the bytes each rank sent over the network with the formula, and
// prints a table as nccl-tests does.  perf/README.md explains the columns.  CPU platform.
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

namespace mk::perf {
namespace {

// Launches that are prepared, enqueued back to back, and then waited for together.
constexpr int kInFlight = 2;
constexpr size_t kGuardBytes = 256;  // around every output, to see writes out of bounds
constexpr int kGuardByte = 0x5c;

// An output between guards.
struct Output {
  char* memory = nullptr;
  size_t bytes = 0;  // of the output at hand

  char* data() const { return memory + kGuardBytes; }
  static size_t room(size_t bytes) { return (bytes + 63) / 64 * 64 + 2 * kGuardBytes; }
  void prepare(size_t size) {
    bytes = size;
    memset(memory, kGuardByte, room(size));
  }
  int64_t damaged() const {
    const auto spoilt = [](const char* begin, const char* end) {
      return std::any_of(begin, end, [](char c) { return c != kGuardByte; });
    };
    return spoilt(memory, data()) + spoilt(data() + bytes, memory + room(bytes));
  }
};

class AllGatherGemmPerf {
 public:
  // The report is rank 0's; the others have none.
  AllGatherGemmPerf(World& world, const Options& options, Session& session, const RunInfo& run, Report* report)
      : world_(world), options_(options), session_(session), info_(run), report_(report) {}
  void run();

 private:
  // Buffers of one launch in flight.
  struct Set {
    Memory a, b, bias, cMemory, gatheredMemory;
    Output c, gathered;
    int64_t launch = 0;
  };

  void allocateBuffers();
  mkAllGatherGemmArgs_t arguments(const Set& set, int64_t m) const;
  void fill(Set& set, int64_t m, int64_t launch);
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  void corrupt(const Set& set) const;
  void wholeA(int64_t m, int64_t launch);
  int64_t differences(const Set& set, int64_t m) const;
  void checkOne(Set& set, int64_t m, bool last, Row* row);
  Row runRow(int64_t m);
  void disconnect();

  size_t aBytes(int64_t rows) const { return static_cast<size_t>(rows * options_.k) * info(options_.in).bytes; }
  size_t cBytes(int64_t m) const { return static_cast<size_t>(m * options_.n) * info(options_.out).bytes; }
  bool gathers() const { return options_.gathered != Gathered::none; }

  World& world_;
  const Options& options_;
  Session& session_;
  const RunInfo& info_;
  Report* const report_;
  mkStream_t stream_ = nullptr;
  mkWindow_t window_ = nullptr;
  void* windowMemory_ = nullptr;
  Memory oldC_, whole_;
  Set sets_[kInFlight];
};

void AllGatherGemmPerf::allocateBuffers() {
  world_.phase("allocating buffers");
  const Options& o = options_;
  const std::vector<int64_t> scan = o.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(o.in).bytes, gathered = Output::room(aBytes(mMax));
  if (o.gathered == Gathered::window) {
    session_.require(mkMemAlloc(&windowMemory_, gathered * kInFlight), "mkMemAlloc");
    session_.require(mkCommWindowRegister(session_.comm(), windowMemory_, gathered * kInFlight, &window_),
                     "mkCommWindowRegister");
  }
  for (int i = 0; i < kInFlight; ++i) {
    Set& set = sets_[i];
    set.a = allocate(aBytes(rowsOf(mMax, 0, world_.size()).rows));
    set.b = allocate(static_cast<size_t>(o.k * o.n) * inBytes);
    if (o.bias) set.bias = allocate(static_cast<size_t>(o.n) * info(o.out).bytes);
    set.cMemory = allocate(Output::room(cBytes(mMax)));
    set.c.memory = static_cast<char*>(set.cMemory.get());
    if (windowMemory_) {
      set.gathered.memory = static_cast<char*>(windowMemory_) + static_cast<size_t>(i) * gathered;
    } else if (gathers()) {
      set.gatheredMemory = allocate(gathered);
      set.gathered.memory = static_cast<char*>(set.gatheredMemory.get());
    }
  }
  if (o.beta != 0) oldC_ = allocate(cBytes(mMax));
  if (o.check) whole_ = allocate(aBytes(mMax));
}

mkAllGatherGemmArgs_t AllGatherGemmPerf::arguments(const Set& set, int64_t m) const {
  const Options& o = options_;
  mkAllGatherGemmArgs_t args;
  MK_INIT(&args, MK_ID_ALL_GATHER_GEMM_ARGS);
  args.a = matrix(o.in, set.a.get(), rowsOf(m, world_.rank(), world_.size()).rows, o.k);
  args.b = o.transB ? matrix(o.in, set.b.get(), o.n, o.k) : matrix(o.in, set.b.get(), o.k, o.n);
  args.c = matrix(o.out, set.c.data(), m, o.n);
  if (gathers()) args.gathered = matrix(o.in, set.gathered.data(), m, o.k);
  if (window_) {
    args.gathered.data = nullptr;
    args.gathered.window = window_;
    args.gathered.offset = static_cast<uint64_t>(set.gathered.data() - static_cast<char*>(windowMemory_));
  }
  if (o.bias) {
    args.bias = matrix(o.out, set.bias.get(), o.n, 0);
    args.bias.ndim = 1;
  }
  args.alpha = &o.alpha;
  args.beta = &o.beta;
  args.bLayout = o.transB ? MK_LAYOUT_NK : MK_LAYOUT_KN;
  args.tune = session_.tune();
  return args;
}

void AllGatherGemmPerf::fill(Set& set, int64_t m, int64_t launch) {
  const Options& o = options_;
  const int rank = world_.rank();
  set.launch = launch;
  fillUniform(o.in, set.a.get(), rowsOf(m, rank, world_.size()).rows * o.k, seedOf(Role::a, m, launch, rank));
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

void AllGatherGemmPerf::corrupt(const Set& set) const {
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
void AllGatherGemmPerf::wholeA(int64_t m, int64_t launch) {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const RowShare share = rowsOf(m, rank, world_.size());
    fillUniform(options_.in, static_cast<char*>(whole_.get()) + aBytes(share.first), share.rows * options_.k,
                seedOf(Role::a, m, launch, rank));
  }
}

// Elements of `gathered` that are not A's.
int64_t AllGatherGemmPerf::differences(const Set& set, int64_t m) const {
  const size_t bytes = info(options_.in).bytes;
  const char* const is = set.gathered.data();
  const char* const should = static_cast<const char*>(whole_.get());
  int64_t count = 0;
  for (size_t at = 0; at < aBytes(m); at += bytes) count += memcmp(is + at, should + at, bytes) != 0;
  return count;
}

void AllGatherGemmPerf::checkOne(Set& set, int64_t m, bool last, Row* row) {
  const Options& o = options_;
  world_.phase("checking M " + std::to_string(m));
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
  row->checked = true;
}

void AllGatherGemmPerf::launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row) {
  for (int done = 0; done < count; done += kInFlight) {
    const int now = std::min(kInFlight, count - done);
    const std::string what = "mkAllGatherGemm, M " + std::to_string(m);
    world_.phase(what);
    for (int i = 0; i < now; ++i) fill(sets_[i], m, firstLaunch + done + i);
    for (int i = 0; i < now; ++i) {
      const mkAllGatherGemmArgs_t args = arguments(sets_[i], m);
      session_.require(mkAllGatherGemm(session_.comm(), &args, stream_), what);
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

Row AllGatherGemmPerf::runRow(int64_t m) {
  Row row;
  row.m = m;
  row.n = options_.n;
  row.k = options_.k;
  row.launches = options_.launches;
  world_.phase("preparing M " + std::to_string(m));
  const mkAllGatherGemmArgs_t args = arguments(sets_[0], m);
  session_.choose(MK_OP_ALL_GATHER_GEMM, &args, info_.nodes, &row);
  session_.reserve(row);

  launchAll(m, options_.warmup, 0, false, &row);
  const Session::Counters before = session_.counters();
  launchAll(m, options_.launches, options_.warmup, true, &row);
  const Session::Counters after = session_.counters();
  session_.compareBytes(info_, allGatherGemmTraffic(options_, row, info_), before, after, &row);
  return row;
}

void AllGatherGemmPerf::disconnect() {
  session_.finalize();
  if (window_) session_.require(mkCommWindowDeregister(session_.comm(), window_), "mkCommWindowDeregister");
  session_.require(mkCpuStreamDestroy(stream_), "mkCpuStreamDestroy");
  session_.destroy();
  session_.require(mkMemFree(windowMemory_), "mkMemFree");
}

void AllGatherGemmPerf::run() {
  session_.require(mkCpuStreamCreate(&stream_), "mkCpuStreamCreate");
  allocateBuffers();
  for (const int64_t m : options_.scan()) {
    const Row row = runRow(m);
    if (report_) report_->row(row);
  }
  disconnect();
}

void runOnCpu(World& world, const Options& options, Session& session, const RunInfo& run, Report* report) {
  AllGatherGemmPerf(world, options, session, run, report).run();
}

}  // namespace
}  // namespace mk::perf

int main(int argc, char** argv) {
  mk::perf::Program program;
  program.operation = mk::perf::Operation::allGatherGemm;
  program.cpu = mk::perf::runOnCpu;
  return mk::perf::runProgram(argc, argv, program);
}
