// The run of mk_gemm_ar_perf on GPUs; see gemm_ar_cuda.h.
#include "cuda/gemm_ar_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mk::perf {
namespace {

constexpr int64_t kGuardBytes = 256;  // around every C, to see writes out of bounds
constexpr int kGuardByte = 0x5c;
constexpr const char* kNames[] = {"fused", "ours alone", "cuBLAS", "cuBLAS + NCCL"};

std::string sizeText(double bytes) {
  char text[32];
  const bool large = bytes >= 0x1p30;
  snprintf(text, sizeof(text), "%.1f %s", bytes / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB");
  return text;
}

int64_t freeBytes(World& world) {
  size_t free = 0, total = 0;
  requireCuda(world, cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

// Empty if every rank has room; the same on all ranks.
std::string whyNoRoom(World& world, int64_t needed) {
  const uint64_t most = world.max(static_cast<uint64_t>(std::max<int64_t>(needed, 0)));
  const uint64_t least = world.min(static_cast<uint64_t>(freeBytes(world)));
  if (static_cast<double>(most) <= 0.95 * static_cast<double>(least)) return "";
  return "needs " + sizeText(static_cast<double>(most)) + " more on each GPU, " + sizeText(static_cast<double>(least)) +
         " are free";
}

Options optionsAlone(const Options& options) {
  Options alone = options;
  alone.nodes = 0;
  alone.transport.clear();
  alone.bias = false;
  alone.chunkTiles = alone.exchange = 0;
  return alone;
}

}  // namespace

bool useLocalDevice(World& world, const Options& options, std::string* device) {
  const char* const fromEnvironment = getenv("MKERNEL_PLATFORM");
  const std::string platform = options.platform.empty() && fromEnvironment ? fromEnvironment : options.platform;
  if (!platform.empty() && platform != "cuda") return false;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  if (world.localSize() > count) {
    world.die(exitUsage, std::to_string(world.localSize()) + " ranks on " + world.host() + ", which has " +
                             std::to_string(count) + " GPUs: one GPU per rank is legal (--platform cpu needs none)");
  }
  const int ordinal = world.localRank();
  requireCuda(world, cudaSetDevice(ordinal), "cudaSetDevice");
  cudaDeviceProp properties = {};
  requireCuda(world, cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  *device = std::to_string(ordinal) + " (" + properties.name + ")";
  return true;
}

char* GemmAllReduceCuda::Result::c() const { return static_cast<char*>(memory) + kGuardBytes; }

GemmAllReduceCuda::GemmAllReduceCuda(World& world, const Options& options, Session& session, const RunInfo& run)
    : world_(world), options_(options), session_(session), run_(run), aloneOptions_(optionsAlone(options)) {}

GemmAllReduceCuda::~GemmAllReduceCuda() = default;

void GemmAllReduceCuda::sync(const std::string& what) {
  cuda(cudaStreamSynchronize(stream_), what.c_str());
  session_.requireAsync(what);
  alone_->requireAsync(what);
}

int64_t GemmAllReduceCuda::resultBytes() const {
  return shape_.m * shape_.n * static_cast<int64_t>(info(options_.out).bytes);
}

void GemmAllReduceCuda::allocateResult(Session& session, Result* result) {
  const size_t bytes = static_cast<size_t>(slotBytes());
  result->session = &session;
  result->fromLibrary = options_.window == 1;
  if (result->fromLibrary) {
    session.require(mkMemAlloc(&result->memory, bytes), "mkMemAlloc");
    session.require(mkCommWindowRegister(session.comm(), result->memory, bytes, &result->window),
                    "mkCommWindowRegister");
  } else {
    cuda(cudaMalloc(&result->memory, bytes), "cudaMalloc");
  }
  cuda(cudaMemsetAsync(result->memory, kGuardByte, bytes, stream_), "cudaMemsetAsync");
}

void GemmAllReduceCuda::freeResult(Result* result) {
  if (!result->memory) return;
  if (result->window) {
    result->session->require(mkCommWindowDeregister(result->session->comm(), result->window), "mkCommWindowDeregister");
  }
  if (result->fromLibrary) {
    result->session->require(mkMemFree(result->memory), "mkMemFree");
  } else {
    cuda(cudaFree(result->memory), "cudaFree");
  }
  *result = Result();
}

Operands GemmAllReduceCuda::operands(const Result& result, int set, bool bias) const {
  Operands operands;
  operands.a = a_[set].get();
  operands.b = b_.get();
  if (bias) operands.bias = bias_.get();
  operands.c = result.c();
  operands.window = result.window;
  if (result.window) operands.offset = kGuardBytes;
  return operands;
}

// Returns why the shape is skipped; empty if it is not.
std::string GemmAllReduceCuda::allocate(Row* row) {
  const Options& o = options_;
  if (shape_.m == 0 || shape_.n == 0) return "nothing to time in an empty result";
  k_ = partOfK(shape_.k, world_.rank(), world_.size());
  const int64_t input = static_cast<int64_t>(info(o.in).bytes), output = static_cast<int64_t>(info(o.out).bytes);
  const int64_t inputs = (kSets * shape_.m + shape_.n) * k_ * input;
  std::string why = whyNoRoom(world_, inputs + 2 * slotBytes() + Verifier::bytes(o, shape_, world_.size()));
  if (!why.empty()) return why;
  for (DeviceMemory& a : a_) a = allocateDevice(world_, shape_.m * k_ * input);
  b_ = allocateDevice(world_, shape_.n * k_ * input);
  if (o.bias) bias_ = allocateDevice(world_, shape_.n * output);
  verifier_ = std::make_unique<Verifier>(world_, o, run_, shape_, stream_);
  allocateResult(session_, &fused_);
  allocateResult(*alone_, &plain_);
  for (int set = 0; set < kSets; ++set) {
    fusedArgs_[set] = session_.arguments(operands(fused_, set, o.bias), shape_.m, shape_.n, k_);
    aloneArgs_[set] = alone_->arguments(operands(plain_, set, false), shape_.m, shape_.n, k_);
  }

  session_.choose(MK_OP_GEMM_ALL_REDUCE, &fusedArgs_[0], run_.nodes, row);
  Row alone;
  alone.m = shape_.m;
  alone_->choose(MK_OP_GEMM_ALL_REDUCE, &aloneArgs_[0], 1, &alone);
  mkCommInfo_t comm;
  MK_INIT(&comm, MK_ID_COMM_INFO);
  session_.require(mkCommQuery(session_.comm(), &comm), "mkCommQuery");
  const int64_t growth = static_cast<int64_t>(row->workspaceBytes) - static_cast<int64_t>(comm.heapBytes);
  why = whyNoRoom(world_, growth + static_cast<int64_t>(alone.workspaceBytes));
  if (!why.empty()) return why;
  session_.reserve(*row);
  alone_->reserve(alone);
  const auto seed = [&](Role role) { return seedOf(role, shape_.m, 0, role == Role::b ? world_.rank() : -1); };
  fillNormal(o.in, b_.get(), shape_.n * k_, seed(Role::b), stream_);
  if (o.bias) fillNormal(o.out, bias_.get(), shape_.n, seed(Role::bias), stream_);
  return "";
}

void GemmAllReduceCuda::release() {
  for (cudaGraphExec_t graph : graphs_) cuda(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  graphs_.clear();
  operations_.clear();
  world_.barrier();  // no rank's launch is under way
  freeResult(&fused_);
  freeResult(&plain_);
  verifier_.reset();
  for (DeviceMemory& a : a_) a.reset();
  b_.reset();
  bias_.reset();
}

// New inputs for all sets; two fills are never the same.
void GemmAllReduceCuda::refill() {
  for (int set = 0; set < kSets; ++set) {
    fillOf_[set] = ++fill_;
    fillNormal(options_.in, a_[set].get(), shape_.m * k_, seedOf(Role::a, shape_.m, fillOf_[set], world_.rank()),
               stream_);
  }
  cuda(cudaGetLastError(), "filling the inputs");
}

LaunchSeeds GemmAllReduceCuda::seeds(int set) const {
  LaunchSeeds seeds;
  for (int rank = 0; rank < world_.size(); ++rank) {
    seeds.a.push_back(seedOf(Role::a, shape_.m, fillOf_[set], rank));
    seeds.b.push_back(seedOf(Role::b, shape_.m, 0, rank));
  }
  seeds.oldC = seedOf(Role::oldC, shape_.m, 0, -1);
  seeds.bias = seedOf(Role::bias, shape_.m, 0, -1);
  return seeds;
}

void GemmAllReduceCuda::launch(Kind kind, int set) {
  if (kind == fused || kind == ours) {
    Session& session = kind == fused ? session_ : *alone_;
    const mkResult_t result =
        mkGemmAllReduce(session.comm(), kind == fused ? &fusedArgs_[set] : &aloneArgs_[set], stream_);
    if (result != mkSuccess) session.require(result, std::string("mkGemmAllReduce, ") + kNames[kind]);
    if (kind == fused) {
      ++fusedLaunches_;
      lastSet_ = set;
    }
    return;
  }
  const float beta = kind == unfused && world_.rank() ? 0 : options_.beta;
  int status = blas_->multiply(options_, a_[set].get(), b_.get(), plain_.c(), shape_.m, shape_.n, k_, beta);
  if (status != 0) world_.die(exitSystem, "cublasGemmEx: status " + std::to_string(status));
  if (kind == blas) return;
  status = nccl_->allReduce(options_.out, plain_.c(), shape_.m * shape_.n, stream_);
  if (status != 0) world_.die(exitSystem, "ncclAllReduce: result " + std::to_string(status));
}

bool GemmAllReduceCuda::measured(Kind kind) const {
  if (kind == blas) return blas_ != nullptr;
  if (kind == unfused) return blas_ && nccl_ && nccl_->usable();
  return true;
}

GemmAllReduceCuda::Way GemmAllReduceCuda::addEager() {
  Way way;
  way.mode = "eager";
  for (const Kind kind : {fused, ours, blas, unfused}) {
    if (!measured(kind)) continue;
    TimedOperation operation;
    operation.name = kNames[kind];
    operation.call = [this, kind](int64_t call) { launch(kind, static_cast<int>(call % kSets)); };
    way.at[kind] = static_cast<int>(operations_.size());
    operations_.push_back(operation);
  }
  return way;
}

// One graph of so many operations on the sets in turn, or for one operation a graph for each set.
std::vector<cudaGraphExec_t> GemmAllReduceCuda::capture(Kind kind) {
  const int64_t launchesBefore = fusedLaunches_;  // to capture is not to launch
  const int lastBefore = lastSet_;
  std::vector<cudaGraphExec_t> graphs;
  for (int first = 0; first < (options_.graph == 1 ? kSets : 1); ++first) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < options_.graph; ++i) launch(kind, (first + i) % kSets);
    cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cuda(cudaGraphUpload(ready, stream_), "cudaGraphUpload");
    graphs.push_back(ready);
    graphs_.push_back(ready);
  }
  fusedLaunches_ = launchesBefore;
  lastSet_ = lastBefore;
  return graphs;
}

GemmAllReduceCuda::Way GemmAllReduceCuda::addGraphs() {
  // What libraries set up at their first call does not belong into a capture.
  refill();
  for (const Kind kind : {fused, ours, blas, unfused}) {
    if (measured(kind)) launch(kind, 0);
  }
  sync("the first launches");

  Way way;
  way.mode = "graph";
  for (const Kind kind : {fused, ours, blas, unfused}) {
    if (!measured(kind)) continue;
    world_.phase(std::string("capturing ") + kNames[kind]);
    TimedOperation operation;
    operation.name = std::string(kNames[kind]) + " from a graph";
    operation.perCall = options_.graph;
    const std::vector<cudaGraphExec_t> graphs = capture(kind);
    operation.call = [this, kind, graphs](int64_t call) {
      const size_t which = static_cast<size_t>(call) % graphs.size();
      cuda(cudaGraphLaunch(graphs[which], stream_), "cudaGraphLaunch");
      if (kind != fused) return;
      fusedLaunches_ += options_.graph;
      lastSet_ = (static_cast<int>(which) + options_.graph - 1) % kSets;
    };
    way.at[kind] = static_cast<int>(operations_.size());
    operations_.push_back(operation);
  }
  return way;
}

Timing GemmAllReduceCuda::timing(const Row& row, const Way& way) const {
  const auto time = [&](Kind kind) {
    return way.at[kind] < 0 ? NAN : operations_[static_cast<size_t>(way.at[kind])].us;
  };
  const TimedOperation& operation = operations_[static_cast<size_t>(way.at[fused])];
  Timing t;
  t.mode = way.mode;
  t.m = shape_.m;
  t.n = shape_.n;
  t.k = shape_.k;
  t.ranks = run_.ranks;
  t.nodes = run_.nodes;
  t.ranksPerNode = run_.ranksPerNode;
  t.rounds = options_.rounds;
  t.launches = operation.launches;
  t.fusedUs = operation.us;
  t.fastestUs = operation.fastestUs;
  t.slowestUs = operation.slowestUs;
  t.oursUs = time(ours);
  t.blasUs = time(blas);
  t.unfusedUs = time(unfused);
  t.nvlinkBytes = nvlinkBytes(t.m, t.n, t.ranksPerNode, info(options_.wire).bytes, info(options_.out).bytes);
  uint64_t busiest = 0;
  for (const uint64_t bytes : row.netBytesPerRank) busiest = std::max(busiest, bytes);
  t.nicBytes = static_cast<double>(busiest) / row.launches;
  t.nicGBps = options_.nicGBps;
  t.tileM = row.tileM;
  t.tileN = row.tileN;
  t.computeAgents = row.computeAgents;
  t.receiveAgents = row.receiveAgents;
  t.minSMs = row.minSMs;
  return t;
}

void GemmAllReduceCuda::judge(Row* row) {
  row->outOfBounds += world_.sum(verifier_->changed(fused_.memory, kGuardBytes, kGuardByte) != 0) +
                      world_.sum(verifier_->changed(fused_.c() + resultBytes(),
                                                    slotBytes() - kGuardBytes - resultBytes(), kGuardByte) != 0);
  verifier_->check(fused_.c(), seeds(lastSet_), Verifier::Route::fused, &row->check);
  row->checked = true;
  row->checkedRows = verifier_->rows();
}

// What the last timed launch has left.
void GemmAllReduceCuda::checkLast(Row* row) {
  if (options_.beta != 0) return;  // the old C was the result of the launch before
  world_.phase("checking what was timed");
  judge(row);
}

// The comparison must do the same work.
void GemmAllReduceCuda::checkUnfused(Row* row) {
  if (options_.beta != 0 || !measured(unfused)) return;
  world_.phase("checking cuBLAS + NCCL");
  poison(options_.out, plain_.c(), shape_.m * shape_.n, stream_);
  launch(unfused, 0);
  sync(kNames[unfused]);
  CheckResult result;
  verifier_->check(plain_.c(), seeds(0), Verifier::Route::unfused, &result);
  row->unfusedWrong = result.wrong;
}

// New data, a poisoned C, and launches back to back.
void GemmAllReduceCuda::checkFresh(const Way& way, bool spoil, Row* row) {
  const TimedOperation& operation = operations_[static_cast<size_t>(way.at[fused])];
  world_.phase("checking fresh data, " + way.mode);
  refill();
  if (options_.beta != 0) {
    fillNormal(options_.out, fused_.c(), shape_.m * shape_.n, seedOf(Role::oldC, shape_.m, 0, -1), stream_);
  } else {
    poison(options_.out, fused_.c(), shape_.m * shape_.n, stream_);
  }
  cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  world_.barrier();  // a rank's C is ready before another rank stores into it
  // With an old C the graph would have to hold one launch; with none, any number may follow each other.
  const int calls = options_.beta != 0 ? 1 : 3;
  for (int call = 0; call < calls; ++call) operation.call(call);
  sync(operation.name);
  if (spoil) corrupt();
  judge(row);
}

void GemmAllReduceCuda::corrupt() {
  const int64_t bytes = static_cast<int64_t>(info(options_.out).bytes);
  char* const middle = fused_.c() + (shape_.m / 2 * shape_.n + shape_.n / 2) * bytes;
  const auto flip = [&](char* at, int bit) {
    char value = 0;
    cuda(cudaMemcpy(&value, at, 1, cudaMemcpyDeviceToHost), "cudaMemcpy");
    value = static_cast<char>(value ^ bit);
    cuda(cudaMemcpy(at, &value, 1, cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  switch (options_.corrupt) {
    case Corrupt::element:
      flip(middle + bytes - 1, 0x40);  // the exponent's highest bit
      break;
    case Corrupt::rank:
      if (world_.rank() == world_.size() - 1) flip(middle, 1);
      break;
    case Corrupt::zero:
      cuda(cudaMemset(fused_.c(), 0, static_cast<size_t>(resultBytes())), "cudaMemset");
      break;
    case Corrupt::guard:
      flip(fused_.c() + resultBytes(), 1);
      break;
    case Corrupt::bytes:
    case Corrupt::nothing:
      break;
  }
}

void GemmAllReduceCuda::runShape(const Shape& shape, Report* report) {
  shape_ = shape;
  Row row;
  row.m = shape.m;
  row.n = shape.n;
  row.k = shape.k;
  world_.phase("preparing M " + std::to_string(shape.m));
  row.skipped = allocate(&row);
  if (row.skipped.empty()) {
    std::vector<Way> ways = {addEager()};
    if (options_.graph) ways.push_back(addGraphs());
    fusedLaunches_ = 0;
    const Session::Counters before = session_.counters();
    watch_->time(
        operations_, options_.rounds, options_.launches, [this] { refill(); },
        [this](const std::string& what) { sync(what); });
    const Session::Counters after = session_.counters();
    row.launches = static_cast<int>(fusedLaunches_);
    session_.compareBytes(run_, gemmAllReduceTraffic(options_, row, run_.nodes), before, after, &row);
    if (options_.check) {
      checkLast(&row);
      checkUnfused(&row);
    }
    for (size_t i = 0; i < ways.size(); ++i) {
      Row one = row;
      if (options_.check) checkFresh(ways[i], i == 0, &one);
      one.timing = timing(row, ways[i]);
      if (report) report->row(one);
    }
  } else if (report) {
    report->row(row);
  }
  release();
}

// Returns what there is to compare with.
std::string GemmAllReduceCuda::loadBaseline() {
  if (!options_.baseline) return "nothing (--baseline 0)";
  world_.phase("loading cuBLAS and NCCL");
  blas_ = std::make_unique<Cublas>(stream_);
  const std::string text = blas_->text();
  if (!world_.all(blas_->usable())) {
    blas_.reset();
    return text + "; all ranks need it, and without it NCCL is not timed";
  }
  if (run_.ranks == 1) return text + "; nothing to reduce on one rank";
  if (options_.nodes > 1) return text + "; no NCCL, which would not cross the emulated network";
  nccl_ = std::make_unique<Nccl>(world_);
  return text + ", " + nccl_->text();
}

void GemmAllReduceCuda::run(std::unique_ptr<Report>* report) {
  cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  alone_ = std::make_unique<Session>(world_, aloneOptions_);
  alone_->connectAlone();
  watch_ = std::make_unique<Stopwatch>(world_, stream_);
  run_.baseline = loadBaseline();
  if (world_.rank() == 0) {
    *report = std::make_unique<Report>(options_);
    (*report)->header(run_);
  }
  for (const Shape& shape : options_.shapes(world_.size())) runShape(shape, report->get());

  world_.phase("leaving NCCL and cuBLAS");
  nccl_.reset();
  blas_.reset();
  watch_.reset();
  session_.finalize();
  alone_->finalize();
  session_.destroy();
  alone_->destroy();
  cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

}  // namespace mk::perf
