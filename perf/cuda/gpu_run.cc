// See gpu_run.h.
#include "cuda/gpu_run.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/splits.h"
#include "cuda/stopwatch.h"
#include "cuda/work.h"

namespace mk::perf {
namespace {

using Kind = Work::Kind;
constexpr Kind kKinds[] = {Work::fused, Work::ours, Work::blas, Work::unfused};

// For the product alone.
Options optionsAlone(const Options& options) {
  Options alone = options;
  alone.nodes = 0;
  alone.transport.clear();
  alone.bias = false;
  alone.gathered = Gathered::none;
  alone.chunkTiles = alone.chunkRows = alone.exchange = 0;
  alone.sweepSplits.clear();
  return alone;
}

class GpuRun {
 public:
  GpuRun(World& world, const Options& options, Session& session, const RunInfo& run)
      : world_(world),
        options_(options),
        session_(session),
        run_(run),
        aloneOptions_(optionsAlone(options)),
        alone_(world, aloneOptions_) {}
  void run(std::unique_ptr<Report>* report);

 private:
  // A way of launching: one by one, or from graphs.
  struct Way {
    std::string mode;
    int at[Work::kinds] = {-1, -1, -1, -1};  // in operations_; -1: not measured
  };

  void cuda(cudaError_t result, const char* call) { requireCuda(world_, result, call); }
  Gpu gpu() { return {world_, options_, session_, alone_, run_, stream_, blas_.get(), nccl_.get()}; }
  std::string loadBaseline();
  void runShape(const Shape& shape, Report* report);
  void measure(Row row, Report* report);
  void sweep(const Row& blank, Report* report);
  std::vector<Way> addWays();
  void time();
  // Launches are of this split from now on.
  void ask(size_t split) {
    split_ = split;
    if (!swept_.empty()) useSplit(session_, run_, *swept_[split].split);
  }

  // A sweep has the fused operation alone.
  bool timed(Kind kind) const { return work_->measured(kind) && (kind == Work::fused || !options_.sweeps()); }
  void launch(Kind kind, int set);
  Way addEager();
  Way addGraphs();
  std::vector<cudaGraphExec_t> capture(Kind kind);
  Timing timing(const Row& row, const Way& way) const;
  void checkLast(Row* row);
  void checkUnfused(Row* row);
  void checkFresh(const Way& way, bool spoil, Row* row);

  World& world_;
  const Options& options_;
  Session& session_;
  RunInfo run_;
  const Options aloneOptions_;
  Session alone_;
  mkStream_t stream_ = nullptr;
  std::unique_ptr<Cublas> blas_;
  std::unique_ptr<Nccl> nccl_;
  std::unique_ptr<Stopwatch> watch_;

  // Of the shape at hand.
  Shape shape_;
  std::unique_ptr<Work> work_;
  std::vector<TimedOperation> operations_;
  std::vector<cudaGraphExec_t> graphs_;
  int64_t fusedLaunches_ = 0;
  int lastSet_ = 0;
  std::vector<Row> swept_;  // the splits
  size_t split_ = 0;        // that launches ask for
};

void GpuRun::launch(Kind kind, int set) {
  work_->launch(kind, set);
  if (kind != Work::fused) return;
  ++fusedLaunches_;
  lastSet_ = set;
}

GpuRun::Way GpuRun::addEager() {
  Way way;
  way.mode = "eager";
  for (const Kind kind : kKinds) {
    if (!timed(kind)) continue;
    TimedOperation operation;
    operation.name = Work::nameOf(kind);
    operation.call = [this, kind, split = split_](int64_t call) {
      ask(split);
      launch(kind, static_cast<int>(call % Work::kSets));
    };
    way.at[kind] = static_cast<int>(operations_.size());
    operations_.push_back(operation);
  }
  return way;
}

// One graph of so many operations on the sets in turn, or for one operation a graph for each set.
std::vector<cudaGraphExec_t> GpuRun::capture(Kind kind) {
  const int64_t launchesBefore = fusedLaunches_;  // to capture is not to launch
  const int lastBefore = lastSet_;
  std::vector<cudaGraphExec_t> graphs;
  for (int first = 0; first < (options_.graph == 1 ? Work::kSets : 1); ++first) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < options_.graph; ++i) launch(kind, (first + i) % Work::kSets);
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

GpuRun::Way GpuRun::addGraphs() {
  // What libraries set up at their first call does not belong into a capture.
  work_->refill();
  for (const Kind kind : kKinds) {
    if (timed(kind)) launch(kind, 0);
  }
  gpu().sync("the first launches");

  Way way;
  way.mode = "graph";
  for (const Kind kind : kKinds) {
    if (!timed(kind)) continue;
    world_.phase(std::string("capturing ") + Work::nameOf(kind));
    TimedOperation operation;
    operation.name = std::string(Work::nameOf(kind)) + " from a graph";
    operation.perCall = options_.graph;
    const std::vector<cudaGraphExec_t> graphs = capture(kind);
    operation.call = [this, kind, graphs, split = split_](int64_t call) {
      ask(split);
      const size_t which = static_cast<size_t>(call) % graphs.size();
      cuda(cudaGraphLaunch(graphs[which], stream_), "cudaGraphLaunch");
      if (kind != Work::fused) return;
      fusedLaunches_ += options_.graph;
      lastSet_ = (static_cast<int>(which) + options_.graph - 1) % Work::kSets;
    };
    way.at[kind] = static_cast<int>(operations_.size());
    operations_.push_back(operation);
  }
  return way;
}

Timing GpuRun::timing(const Row& row, const Way& way) const {
  const auto time = [&](Kind kind) {
    return way.at[kind] < 0 ? NAN : operations_[static_cast<size_t>(way.at[kind])].us;
  };
  const TimedOperation& operation = operations_[static_cast<size_t>(way.at[Work::fused])];
  Timing t;
  t.mode = way.mode;
  t.m = shape_.m;
  t.n = shape_.n;
  t.k = shape_.k;
  t.kOfRank = work_->kOfRank();
  t.ranks = run_.ranks;
  t.nodes = run_.nodes;
  t.ranksPerNode = run_.ranksPerNode;
  t.rounds = options_.rounds;
  t.launches = operation.launches;
  t.fusedUs = operation.us;
  t.fastestUs = operation.fastestUs;
  t.slowestUs = operation.slowestUs;
  t.oursUs = time(Work::ours);
  t.blasUs = time(Work::blas);
  t.unfusedUs = time(Work::unfused);
  t.nvlinkBytes = work_->nvlinkBytes();
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

// What the last timed launch has left.
void GpuRun::checkLast(Row* row) {
  if (options_.beta != 0) return;  // the old C was the result of the launch before
  world_.phase("checking what was timed");
  work_->judge(lastSet_, row);
}

// The comparison must do the same work.
void GpuRun::checkUnfused(Row* row) {
  if (options_.beta != 0 || !work_->measured(Work::unfused)) return;
  world_.phase("checking cuBLAS + NCCL");
  work_->poisonUnfused(0);
  launch(Work::unfused, 0);
  gpu().sync(Work::nameOf(Work::unfused));
  work_->judgeUnfused(0, row);
}

// New data, poisoned results, and launches back to back.
void GpuRun::checkFresh(const Way& way, bool spoil, Row* row) {
  const TimedOperation& operation = operations_[static_cast<size_t>(way.at[Work::fused])];
  world_.phase("checking fresh data, " + way.mode);
  work_->refill();
  work_->poisonResult();
  cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  world_.barrier();  // a rank's result is ready before another rank stores into it
  // With an old C the graph would have to hold one launch; with none, any number may follow each other.
  const int calls = options_.beta != 0 ? 1 : 3;
  for (int call = 0; call < calls; ++call) operation.call(call);
  gpu().sync(operation.name);
  if (!options_.check) return;
  if (spoil) work_->corrupt();
  work_->judge(lastSet_, row);
}

std::vector<GpuRun::Way> GpuRun::addWays() {
  std::vector<Way> ways = {addEager()};
  if (options_.graph) ways.push_back(addGraphs());
  fusedLaunches_ = 0;
  return ways;
}

void GpuRun::time() {
  watch_->time(
      operations_, options_.rounds, options_.launches, [this] { work_->refill(); },
      [this](const std::string& what) { gpu().sync(what); });
}

void GpuRun::measure(Row row, Report* report) {
  const std::vector<Way> ways = addWays();
  const Session::Counters before = session_.counters();
  time();
  const Session::Counters after = session_.counters();
  row.launches = static_cast<int>(fusedLaunches_);
  session_.compareBytes(run_, work_->traffic(row), before, after, &row);
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
}

// All splits are timed together, in random order, so that a device that warms up does not favour any.  Bytes are those of the
// launches that are checked.
void GpuRun::sweep(const Row& blank, Report* report) {
  swept_ = chooseSplits(world_, options_, session_, run_, blank, [this](Row* row) { work_->chooseSplit(row); });
  // The heap grows only while nothing of the communicator is under way: before the first capture.
  for (const Row& row : swept_) {
    if (row.skipped.empty()) session_.reserve(row);
  }
  std::vector<std::vector<Way>> ways(swept_.size());
  for (size_t i = 0; i < swept_.size(); ++i) {
    if (!swept_[i].skipped.empty()) continue;
    ask(i);
    ways[i] = addWays();
  }
  time();
  if (options_.check) checkLast(&swept_[split_]);
  for (size_t mode = 0; mode < ways[0].size(); ++mode) {
    std::vector<Row> rows;
    for (size_t i = 0; i < swept_.size(); ++i) {
      if (ways[i].empty() && mode == 0) rows.push_back(swept_[i]);
      if (ways[i].empty()) continue;
      Row row = swept_[i];
      fusedLaunches_ = 0;
      const Session::Counters before = session_.counters();
      checkFresh(ways[i][mode], mode == 0, &row);
      const Session::Counters after = session_.counters();
      row.launches = static_cast<int>(fusedLaunches_);
      session_.compareBytes(run_, work_->traffic(row), before, after, &row);
      row.timing = timing(row, ways[i][mode]);
      rows.push_back(row);
    }
    if (report) report->sweep(rows);
  }
  swept_.clear();
  session_.setAgents({});
}

void GpuRun::runShape(const Shape& shape, Report* report) {
  shape_ = shape;
  Row row;
  row.m = shape.m;
  row.n = shape.n;
  row.k = shape.k;
  world_.phase("preparing M " + std::to_string(shape.m));
  const Gpu all = gpu();
  work_ = Work::make(all, shape);
  row.skipped = work_->allocate(&row);
  if (!row.skipped.empty()) {
    if (report) report->row(row);
  } else if (options_.sweeps()) {
    sweep(row, report);
  } else {
    measure(row, report);
  }
  for (cudaGraphExec_t graph : graphs_) cuda(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  graphs_.clear();
  operations_.clear();
  world_.barrier();  // no rank's launch is under way
  work_->release();
  work_.reset();
}

// Returns what there is to compare with.
std::string GpuRun::loadBaseline() {
  if (options_.sweeps()) return "nothing (--sweep-split)";
  if (!options_.baseline) return "nothing (--baseline 0)";
  world_.phase("loading cuBLAS and NCCL");
  blas_ = std::make_unique<Cublas>(stream_);
  const std::string text = blas_->text();
  if (!world_.all(blas_->usable())) {
    blas_.reset();
    return text + "; all ranks need it, and without it NCCL is not timed";
  }
  if (run_.ranks == 1) return text + "; one rank, so no NCCL";
  if (options_.nodes > 1) return text + "; no NCCL, which would not cross the emulated network";
  nccl_ = std::make_unique<Nccl>(world_);
  return text + ", " + nccl_->text();
}

void GpuRun::run(std::unique_ptr<Report>* report) {
  cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  alone_.connectAlone();
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
  alone_.finalize();
  session_.destroy();
  alone_.destroy();
  cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
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

void runOnGpus(World& world, const Options& options, Session& session, const RunInfo& run,
               std::unique_ptr<Report>* report) {
  GpuRun(world, options, session, run).run(report);
}

}  // namespace mk::perf
