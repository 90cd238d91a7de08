// mk_gemm_ar_perf: runs mkGemmAllReduce over a scan of M on the ranks of an MPI job, checks every result against a
// reference in double, compares the bytes sent over the network with the formula, and prints a table as nccl-tests does.
// perf/README.md explains the columns.
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/data.h"
#include "common/options.h"
#include "common/report.h"
#include "common/traffic.h"
#include "common/world.h"
#include "mkernel.h"

namespace mk::perf {
namespace {

// Launches that are prepared, enqueued back to back, and then waited for together.
constexpr int kInFlight = 2;
constexpr size_t kGuardBytes = 256;  // around every C, to see writes out of bounds
constexpr int kGuardByte = 0x5c;

class GemmAllReducePerf {
 public:
  GemmAllReducePerf(World& world, const Options& options) : world_(world), options_(options) {
    MK_INIT(&tune_, MK_ID_TUNE);
  }
  int run();

 private:
  // Buffers of one launch in flight.
  struct Set {
    Memory a, b, bias;
    char* slot = nullptr;  // guard, C, guard
    int64_t launch = 0;
    char* c() const { return slot + kGuardBytes; }
  };
  struct Counters {
    uint64_t bytes = 0, messages = 0, batches = 0;
  };

  void require(mkResult_t result, const std::string& call);
  void requireAsync(const std::string& what);
  void connect();
  RunInfo describe();
  void allocateBuffers();
  mkGemmAllReduceArgs_t arguments(const Set& set, int64_t m) const;
  void fill(Set& set, int64_t m, int64_t launch);
  void launchAll(int64_t m, int count, int64_t firstLaunch, bool measured, Row* row);
  void checkOne(Set& set, int64_t m, bool last, Row* row);
  int64_t damagedGuards(const Set& set, int64_t m) const;
  void corrupt(Set& set, int64_t m);
  Counters counters();
  void compareBytes(int64_t m, const Counters& before, const Counters& after, Row* row);
  Row runRow(int64_t m);
  void disconnect();

  size_t cBytes(int64_t m) const { return static_cast<size_t>(m * options_.n) * info(options_.out).bytes; }
  size_t slotBytes(int64_t m) const { return (cBytes(m) + 63) / 64 * 64 + 2 * kGuardBytes; }

  World& world_;
  const Options& options_;
  int64_t k_ = 0;  // this rank's part
  mkComm_t comm_ = nullptr;
  mkStream_t stream_ = nullptr;
  mkWindow_t window_ = nullptr;
  void* windowMemory_ = nullptr;
  Memory plainMemory_;
  Memory oldC_;
  Set sets_[kInFlight];
  RunInfo info_;
  mkTune_t tune_ = {};
};

void GemmAllReducePerf::require(mkResult_t result, const std::string& call) {
  if (result == mkSuccess) return;
  std::string text = mkGetLastError(nullptr);
  if (text.empty() && comm_) text = mkGetLastError(comm_);
  world_.die(exitLibrary, call + ": " + mkGetErrorString(result) + " (" + std::to_string(result) + "): " + text);
}

void GemmAllReducePerf::requireAsync(const std::string& what) {
  mkResult_t result = mkSuccess;
  require(mkCommGetAsyncError(comm_, &result), "mkCommGetAsyncError");
  if (result == mkSuccess) return;
  world_.die(exitLibrary,
             what + ": " + mkGetErrorString(result) + " (" + std::to_string(result) + "): " + mkGetLastError(comm_));
}

void GemmAllReducePerf::connect() {
  world_.phase("joining the communicator");
  mkUniqueId_t id;
  memset(&id, 0, sizeof(id));
  if (world_.rank() == 0) require(mkGetUniqueId(&id), "mkGetUniqueId");
  world_.broadcast(&id, sizeof(id));

  mkConfig_t config;
  MK_INIT(&config, MK_ID_CONFIG);
  std::string hostId;
  if (options_.nodes) {
    hostId = world_.host() + "/" + std::to_string(world_.rank() / (world_.size() / options_.nodes));
    config.hostId = hostId.c_str();
  }
  if (!options_.platform.empty()) config.platform = options_.platform.c_str();
  if (!options_.transport.empty()) config.transport = options_.transport.c_str();
  require(mkCommInitRankConfig(&comm_, world_.size(), id, world_.rank(), &config), "mkCommInitRankConfig");
}

RunInfo GemmAllReducePerf::describe() {
  RunInfo run;
  require(mkGetVersion(&run.version), "mkGetVersion");
  mkBuildInfo_t build;
  MK_INIT(&build, MK_ID_BUILD_INFO);
  require(mkGetBuildInfo(&build), "mkGetBuildInfo");
  run.cudaVersion = build.cudaVersion;
  run.transportAbiMajor = build.transportAbiMajor;
  run.transportAbiMinor = build.transportAbiMinor;
  run.revision = build.revision;
  run.compiler = build.compiler;
  run.platforms = build.platforms;

  mkCommInfo_t comm;
  MK_INIT(&comm, MK_ID_COMM_INFO);
  require(mkCommQuery(comm_, &comm), "mkCommQuery");
  run.platform = comm.platform;
  run.transport = comm.transport;
  run.ranks = comm.nranks;
  run.nodes = comm.nnodes;
  run.ranksPerNode = comm.ranksPerNode;

  RankLine mine;
  mine.rank = comm.rank;
  mine.node = comm.node;
  mine.localRank = comm.localRank;
  mine.pid = getpid();
  snprintf(mine.host, sizeof(mine.host), "%s", world_.host().c_str());
  snprintf(mine.platform, sizeof(mine.platform), "%s", comm.platform);
  snprintf(mine.transport, sizeof(mine.transport), "%s", comm.transport);
  const std::vector<char> all = world_.gather(&mine, sizeof(mine));
  run.lines.resize(static_cast<size_t>(world_.size()));
  memcpy(run.lines.data(), all.data(), all.size());

  if (run.platform != "cpu") {
    world_.die(exitUsage, "platform " + run.platform + ": this program drives the CPU platform only, so far " +
                              "(--platform cpu)");
  }
  return run;
}

void GemmAllReducePerf::allocateBuffers() {
  world_.phase("allocating buffers");
  const std::vector<int64_t> scan = options_.scan();
  const int64_t mMax = *std::max_element(scan.begin(), scan.end());
  const size_t inBytes = info(options_.in).bytes;
  const size_t slot = slotBytes(mMax);
  char* slots = nullptr;
  if (options_.window) {
    require(mkMemAlloc(&windowMemory_, slot * kInFlight), "mkMemAlloc");
    require(mkCommWindowRegister(comm_, windowMemory_, slot * kInFlight, &window_), "mkCommWindowRegister");
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
  const auto matrix = [](Type type, void* data, int64_t rows, int64_t columns) {
    mkTensor_t tensor;
    memset(&tensor, 0, sizeof(tensor));
    tensor.data = data;
    tensor.dtype = info(type).dtype;
    tensor.ndim = 2;
    tensor.dims[0] = rows;
    tensor.dims[1] = columns;
    return tensor;
  };
  const Options& o = options_;
  mkGemmAllReduceArgs_t args;
  MK_INIT(&args, MK_ID_GEMM_ALL_REDUCE_ARGS);
  args.a = matrix(o.in, set.a.get(), m, k_);
  args.b = o.transB ? matrix(o.in, set.b.get(), o.n, k_) : matrix(o.in, set.b.get(), k_, o.n);
  args.c = matrix(o.out, set.c(), m, o.n);
  if (o.window) {
    args.c.data = nullptr;
    args.c.window = window_;
    args.c.offset = static_cast<uint64_t>(set.c() - static_cast<char*>(windowMemory_));
  }
  if (o.bias) {
    args.bias = matrix(o.out, set.bias.get(), o.n, 0);
    args.bias.ndim = 1;
  }
  args.alpha = &o.alpha;
  args.beta = &o.beta;
  args.bLayout = o.transB ? MK_LAYOUT_NK : MK_LAYOUT_KN;
  args.wireDtypePlus1 = info(o.wire).dtype + 1;
  if (o.tuned()) args.tune = &tune_;
  return args;
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
  checkGemmAllReduce(world_, problem, &row->check);
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
      require(mkGemmAllReduce(comm_, &args, stream_), what);
    }
    require(mkCpuStreamSynchronize(stream_), "mkCpuStreamSynchronize");
    requireAsync(what);
    if (!measured) continue;
    for (int i = 0; i < now; ++i) {
      const bool last = done + i == count - 1;
      if (options_.check > 1 || (options_.check == 1 && last)) checkOne(sets_[i], m, last, row);
    }
  }
}

GemmAllReducePerf::Counters GemmAllReducePerf::counters() {
  // After the barrier every rank's launches have ended, so every payload has arrived and was handed over before that; the
  // proxies may still be about to add it up.
  world_.barrier();
  Counters last;
  for (int same = 0, reads = 0; same < 3 && reads < 500; ++reads) {
    mkCommInfo_t comm;
    MK_INIT(&comm, MK_ID_COMM_INFO);
    require(mkCommQuery(comm_, &comm), "mkCommQuery");
    same = comm.netBytesSent == last.bytes && reads ? same + 1 : 0;
    last = {comm.netBytesSent, comm.netMessagesSent, comm.netBatches};
    usleep(2000);
  }
  world_.barrier();
  return last;
}

void GemmAllReducePerf::compareBytes(int64_t m, const Counters& before, const Counters& after, Row* row) {
  uint64_t mine = after.bytes - before.bytes;
  if (options_.corrupt == Corrupt::bytes && world_.rank() == 0) mine += 16;
  const std::vector<char> all = world_.gather(&mine, sizeof(mine));
  row->netBytesPerRank.resize(static_cast<size_t>(world_.size()));
  memcpy(row->netBytesPerRank.data(), all.data(), all.size());
  for (uint64_t bytes : row->netBytesPerRank) row->netBytes += bytes;
  row->netMessages = static_cast<uint64_t>(world_.sum(static_cast<int64_t>(after.messages - before.messages)));
  row->netBatches = static_cast<uint64_t>(world_.sum(static_cast<int64_t>(after.batches - before.batches)));

  const Traffic traffic = gemmAllReduceTraffic(m, options_.n, info_.nodes, row->exchange, info(options_.wire).bytes,
                                               info(options_.out).bytes);
  const uint64_t launches = static_cast<uint64_t>(options_.launches);
  row->netBytesExpected = traffic.total;
  if (row->netBytes != traffic.total * launches) {
    row->netError = "all ranks sent " + std::to_string(row->netBytes) + " in " + std::to_string(launches) +
                    " launches, the formula says " + std::to_string(traffic.total * launches);
    return;
  }
  if (!traffic.perNode) return;
  std::vector<uint64_t> nodes(static_cast<size_t>(info_.nodes));
  for (const RankLine& line : info_.lines) {
    nodes[static_cast<size_t>(line.node)] += row->netBytesPerRank[static_cast<size_t>(line.rank)];
  }
  for (size_t node = 0; node < nodes.size(); ++node) {
    const uint64_t expected = traffic.total / nodes.size() * launches;
    if (nodes[node] == expected) continue;
    row->netError = "node " + std::to_string(node) + " sent " + std::to_string(nodes[node]) + " in " +
                    std::to_string(launches) + " launches, the formula says " + std::to_string(expected);
    return;
  }
}

Row GemmAllReducePerf::runRow(int64_t m) {
  Row row;
  row.m = m;
  world_.phase("preparing M " + std::to_string(m));
  MK_INIT(&tune_, MK_ID_TUNE);
  tune_.chunkTiles = options_.chunkTiles;
  tune_.tileM = options_.tileM;
  tune_.tileN = options_.tileN;
  tune_.exchange = options_.exchange;
  const mkGemmAllReduceArgs_t args = arguments(sets_[0], m);
  require(mkOpCheck(comm_, MK_OP_GEMM_ALL_REDUCE, &args), "mkOpCheck, M " + std::to_string(m));
  mkTune_t tune;
  MK_INIT(&tune, MK_ID_TUNE);
  require(mkTuneQuery(comm_, MK_OP_GEMM_ALL_REDUCE, &args, &tune), "mkTuneQuery");
  row.exchange = info_.nodes > 1 ? tune.exchange : 0;
  row.tileM = tune.tileM;
  row.tileN = tune.tileN;
  row.chunkTiles = tune.chunkTiles;
  row.computeAgents = tune.computeAgents;
  row.receiveAgents = tune.receiveAgents;
  row.minSMs = tune.minSMs;
  if (info_.nodes > 1 && (options_.exchange ? tune.exchange != options_.exchange
                                            : tune.exchange != MK_EXCHANGE_SWAP && tune.exchange != MK_EXCHANGE_HOME)) {
    world_.die(exitLibrary, "mkTuneQuery: exchange " + std::to_string(tune.exchange) + ", asked for " +
                                std::to_string(options_.exchange));
  }
  size_t workspace = 0;
  require(mkOpWorkspaceSize(comm_, MK_OP_GEMM_ALL_REDUCE, &args, &workspace), "mkOpWorkspaceSize");
  row.workspaceBytes = world_.max(uint64_t{workspace});
  require(mkCommReserve(comm_, row.workspaceBytes), "mkCommReserve");

  launchAll(m, options_.warmup, 0, false, &row);
  const Counters before = counters();
  launchAll(m, options_.launches, options_.warmup, true, &row);
  const Counters after = counters();
  compareBytes(m, before, after, &row);
  return row;
}

void GemmAllReducePerf::disconnect() {
  world_.phase("leaving the communicator");
  require(mkCommFinalize(comm_), "mkCommFinalize");
  if (window_) require(mkCommWindowDeregister(comm_, window_), "mkCommWindowDeregister");
  require(mkCpuStreamDestroy(stream_), "mkCpuStreamDestroy");
  const mkComm_t comm = comm_;
  comm_ = nullptr;  // gone, whatever the call returns
  require(mkCommDestroy(comm), "mkCommDestroy");
  require(mkMemFree(windowMemory_), "mkMemFree");
}

int GemmAllReducePerf::run() {
  std::unique_ptr<Report> report;
  if (world_.rank() == 0) report = std::make_unique<Report>(options_);
  k_ = partOfK(options_.k, world_.rank(), world_.size());
  connect();
  info_ = describe();
  require(mkCpuStreamCreate(&stream_), "mkCpuStreamCreate");
  allocateBuffers();
  if (report) report->header(info_);
  for (const int64_t m : options_.scan()) {
    const Row row = runRow(m);
    if (report) report->row(row);
  }
  disconnect();
  // Only rank 0 has seen everything; the others wait for its verdict, so that all end with the same status.
  const bool good = world_.all(report ? report->footer() : true);
  return good ? exitGood : exitWrong;
}

int runProgram(int argc, char** argv) {
  World world;
  Options options;
  try {
    options = parseOptions(argc, argv, world.size());
    if (options.help) {
      if (world.rank() == 0) printf("%s", helpText());
      return exitGood;
    }
  } catch (const UsageError& error) {
    if (world.rank() == 0) fprintf(stderr, "mk_gemm_ar_perf: %s\n", error.what());
    return exitUsage;
  }
  world.setDeadline(options.timeoutSeconds);
  try {
    return GemmAllReducePerf(world, options).run();
  } catch (const std::exception& error) {
    world.die(exitSystem, error.what());
  }
}

}  // namespace
}  // namespace mk::perf

int main(int argc, char** argv) {
  int provided = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return mk::perf::exitSystem;
  const int code = mk::perf::runProgram(argc, argv);
  MPI_Finalize();
  return code;
}
