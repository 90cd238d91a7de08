// One rank's communicator in a perf program; see session.h.
#include "session.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace mk::perf {
namespace {

void moveToWindow(mkTensor_t* tensor, const Operands& operands) {
  if (!operands.window) return;
  tensor->data = nullptr;
  tensor->window = operands.window;
  tensor->offset = operands.offset;
}

}  // namespace

mkTensor_t matrix(Type type, void* data, int64_t rows, int64_t columns) {
  mkTensor_t tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = info(type).dtype;
  tensor.ndim = 2;
  tensor.dims[0] = rows;
  tensor.dims[1] = columns;
  return tensor;
}

Session::Session(World& world, const Options& options) : world_(world), options_(options) {
  MK_INIT(&tune_, MK_ID_TUNE);
  tune_.chunkTiles = options_.chunkTiles;
  tune_.chunkRows = options_.chunkRows;
  tune_.tileM = options_.tileM;
  tune_.tileN = options_.tileN;
  tune_.exchange = options_.exchange;
}

void Session::require(mkResult_t result, const std::string& call) {
  if (result == mkSuccess) return;
  std::string text = mkGetLastError(nullptr);
  if (text.empty() && comm_) text = mkGetLastError(comm_);
  world_.die(exitLibrary, call + ": " + mkGetErrorString(result) + " (" + std::to_string(result) + "): " + text);
}

void Session::requireAsync(const std::string& what) {
  mkResult_t result = mkSuccess;
  require(mkCommGetAsyncError(comm_, &result), "mkCommGetAsyncError");
  if (result == mkSuccess) return;
  world_.die(exitLibrary,
             what + ": " + mkGetErrorString(result) + " (" + std::to_string(result) + "): " + mkGetLastError(comm_));
}

void Session::connect() {
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

void Session::connectAlone() {
  world_.phase("making a communicator of one rank");
  mkUniqueId_t id;
  memset(&id, 0, sizeof(id));
  require(mkGetUniqueId(&id), "mkGetUniqueId");
  mkConfig_t config;
  MK_INIT(&config, MK_ID_CONFIG);
  if (!options_.platform.empty()) config.platform = options_.platform.c_str();
  require(mkCommInitRankConfig(&comm_, 1, id, 0, &config), "mkCommInitRankConfig, one rank");
}

RunInfo Session::describe(const std::string& device) {
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
  run.smCount = static_cast<uint32_t>(world_.min(static_cast<uint64_t>(comm.smCount)));

  RankLine mine;
  mine.rank = comm.rank;
  mine.node = comm.node;
  mine.localRank = comm.localRank;
  mine.pid = getpid();
  snprintf(mine.host, sizeof(mine.host), "%s", world_.host().c_str());
  snprintf(mine.platform, sizeof(mine.platform), "%s", comm.platform);
  snprintf(mine.transport, sizeof(mine.transport), "%s", comm.transport);
  snprintf(mine.device, sizeof(mine.device), "%s", device.c_str());
  const std::vector<char> all = world_.gather(&mine, sizeof(mine));
  run.lines.resize(static_cast<size_t>(world_.size()));
  memcpy(run.lines.data(), all.data(), all.size());

  return run;
}

template <typename Args>
void Session::fillArguments(Args* args, const Operands& operands, int64_t aRows, int64_t cRows, int64_t n,
                            int64_t k) const {
  const Options& o = options_;
  args->a = matrix(o.in, operands.a, aRows, k);
  args->b = o.transB ? matrix(o.in, operands.b, n, k) : matrix(o.in, operands.b, k, n);
  args->c = matrix(o.out, operands.c, cRows, n);
  if (operands.bias) {
    args->bias = matrix(o.out, operands.bias, n, 0);
    args->bias.ndim = 1;
  }
  args->alpha = &o.alpha;
  args->beta = &o.beta;
  args->bLayout = o.transB ? MK_LAYOUT_NK : MK_LAYOUT_KN;
  args->tune = o.tuned() ? &tune_ : nullptr;
}

mkGemmAllReduceArgs_t Session::arguments(const Operands& operands, int64_t m, int64_t n, int64_t k) const {
  mkGemmAllReduceArgs_t args;
  MK_INIT(&args, MK_ID_GEMM_ALL_REDUCE_ARGS);
  fillArguments(&args, operands, m, m, n, k);
  moveToWindow(&args.c, operands);
  args.wireDtypePlus1 = info(options_.wire).dtype + 1;
  return args;
}

mkGemmReduceScatterArgs_t Session::scatterArguments(const Operands& operands, int64_t m, int64_t rows, int64_t n,
                                                    int64_t k) const {
  mkGemmReduceScatterArgs_t args;
  MK_INIT(&args, MK_ID_GEMM_REDUCE_SCATTER_ARGS);
  fillArguments(&args, operands, m, rows, n, k);
  moveToWindow(&args.c, operands);
  args.wireDtypePlus1 = info(options_.wire).dtype + 1;
  return args;
}

mkAllGatherGemmArgs_t Session::gatherArguments(const Operands& operands, int64_t m, int64_t rows, int64_t n,
                                               int64_t k) const {
  mkAllGatherGemmArgs_t args;
  MK_INIT(&args, MK_ID_ALL_GATHER_GEMM_ARGS);
  fillArguments(&args, operands, rows, m, n, k);
  if (operands.gathered || operands.window) {
    args.gathered = matrix(options_.in, operands.gathered, m, k);
    moveToWindow(&args.gathered, operands);
  }
  return args;
}

void Session::setAgents(const SplitAgents& agents) {
  tune_.computeAgents = agents.compute;
  tune_.receiveAgents = agents.receive;
}

void Session::choose(int op, const void* args, int nodes, Row* row) {
  const mkResult_t legal = mkOpCheck(comm_, op, args);
  if (tune_.computeAgents == 0 && tune_.receiveAgents == 0) {
    require(legal, "mkOpCheck, M " + std::to_string(row->m));
  } else if (!world_.all(legal == mkSuccess)) {
    row->skipped = legal == mkSuccess ? "the library refuses it on another rank" : mkGetLastError(nullptr);
    return;
  }
  mkTune_t tune;
  MK_INIT(&tune, MK_ID_TUNE);
  require(mkTuneQuery(comm_, op, args, &tune), "mkTuneQuery");
  row->exchange = nodes > 1 ? tune.exchange : 0;
  row->tileM = tune.tileM;
  row->tileN = tune.tileN;
  row->chunkTiles = tune.chunkTiles;
  row->chunkRows = tune.chunkRows;
  row->computeAgents = tune.computeAgents;
  row->receiveAgents = tune.receiveAgents;
  row->minSMs = tune.minSMs;
  const bool sums = op == MK_OP_GEMM_ALL_REDUCE;
  const uint32_t first = sums ? MK_EXCHANGE_SWAP : MK_EXCHANGE_DIRECT,
                 last = sums ? MK_EXCHANGE_HOME : MK_EXCHANGE_RING;
  if (nodes > 1 && op != MK_OP_GEMM_REDUCE_SCATTER &&
      (options_.exchange ? tune.exchange != options_.exchange : tune.exchange < first || tune.exchange > last)) {
    world_.die(exitLibrary, "mkTuneQuery: exchange " + std::to_string(tune.exchange) + ", asked for " +
                                std::to_string(options_.exchange));
  }
  size_t workspace = 0;
  require(mkOpWorkspaceSize(comm_, op, args, &workspace), "mkOpWorkspaceSize");
  row->workspaceBytes = world_.max(uint64_t{workspace});
}

void Session::reserve(const Row& row) { require(mkCommReserve(comm_, row.workspaceBytes), "mkCommReserve"); }

Session::Counters Session::counters() {
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

void Session::compareBytes(const RunInfo& run, const Traffic& traffic, const Counters& before, const Counters& after,
                           Row* row) {
  uint64_t mine = after.bytes - before.bytes;
  if (options_.corrupt == Corrupt::bytes && world_.rank() == 0) mine += 16;
  const std::vector<char> all = world_.gather(&mine, sizeof(mine));
  row->netBytesPerRank.resize(static_cast<size_t>(world_.size()));
  memcpy(row->netBytesPerRank.data(), all.data(), all.size());
  for (uint64_t bytes : row->netBytesPerRank) row->netBytes += bytes;
  row->netMessages = static_cast<uint64_t>(world_.sum(static_cast<int64_t>(after.messages - before.messages)));
  row->netBatches = static_cast<uint64_t>(world_.sum(static_cast<int64_t>(after.batches - before.batches)));

  const uint64_t launches = static_cast<uint64_t>(row->launches);
  row->netBytesExpected = traffic.total;
  if (row->netBytes != traffic.total * launches) {
    row->netError = "all ranks sent " + std::to_string(row->netBytes) + " in " + std::to_string(launches) +
                    " launches, the formula says " + std::to_string(traffic.total * launches);
    return;
  }
  for (size_t rank = 0; rank < traffic.perRank.size(); ++rank) {
    const uint64_t expected = traffic.perRank[rank] * launches;
    if (row->netBytesPerRank[rank] == expected) continue;
    row->netError = "rank " + std::to_string(rank) + " sent " + std::to_string(row->netBytesPerRank[rank]) + " in " +
                    std::to_string(launches) + " launches, the formula says " + std::to_string(expected);
    return;
  }
  if (!traffic.perNode) return;
  std::vector<uint64_t> nodes(static_cast<size_t>(run.nodes));
  for (const RankLine& line : run.lines) {
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

void Session::finalize() {
  world_.phase("leaving the communicator");
  require(mkCommFinalize(comm_), "mkCommFinalize");
}

void Session::destroy() {
  const mkComm_t comm = comm_;
  comm_ = nullptr;  // gone, whatever the call returns
  require(mkCommDestroy(comm), "mkCommDestroy");
}

}  // namespace mk::perf
