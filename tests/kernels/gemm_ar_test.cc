// GEMM+AllReduce on two GPUs: correctness in many shapes, as one node and as two, graphs, failures, and a table of times.
//   gemm_ar_test [first] [check] [network] [many] [graph] [fail] [bench [b K]...] [tune [b K]...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench.h"
#include "world.h"

namespace mk::kernels::test {
namespace {

Rank ranks[kMostRanks];
int failures = 0;

#define EXPECT(condition, ...)                                \
  do {                                                        \
    if (!(condition)) {                                       \
      ++failures;                                             \
      std::printf("FAIL %s line %d: ", #condition, __LINE__); \
      std::printf(__VA_ARGS__);                               \
      std::printf("\n");                                      \
      std::fflush(stdout);                                    \
    }                                                         \
  } while (0)

void printRecord(int me) {
  const protocol::FailRecord& r = *ranks[me].record;
  if (r.kind == 0) return;
  std::printf(
      "  rank %d: record kind %u role %u stage '%s' local %d node %d item %llu epoch %llu expected %llx seen %llx\n",
      me, r.kind, r.role, protocol::stageName(r.why.stage), r.why.local, r.why.node,
      static_cast<unsigned long long>(r.why.item), static_cast<unsigned long long>(r.epoch),
      static_cast<unsigned long long>(r.expected), static_cast<unsigned long long>(r.seen));
  std::fflush(stdout);
}

// Poisoned C and banks, then back-to-back launches with alternating inputs; the last one is judged.
bool checkOne(World& world, const Problem& p, int launches = 4) {
  if (p.beta != 0) launches = 1;
  const auto prepare = [&](int me) {
    fill(ranks[me], p);
    makeReference(ranks[me], p, 0);
    prepareC(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  };
  both(prepare, world.count());
  world.poisonBanks();
  bool ran[kMostRanks] = {true, true, true, true};
  const auto run = [&](int me) {
    for (int i = launches - 1; i >= 0; --i) world.launch(me, p, i & 1);
    ran[me] = world.sync(me);
  };
  both(run, world.count());
  if (!ran[0] || !ran[1] || !ran[2] || !ran[3]) {
    EXPECT(false, "%s did not complete", p.name().c_str());
    for (int me = 0; me < world.count(); ++me) printRecord(me);
    world.reset();
    return false;
  }
  const Verdict v = judge(ranks, world, p, 0);
  EXPECT(v.good(), "%s: %llu wrong, %llu different, %llu outside, worst %.3f", p.name().c_str(), v.wrong, v.different,
         v.outside, v.worst);
  if (v.good()) std::printf("ok   %s (worst %.3f)\n", p.name().c_str(), v.worst);
  std::fflush(stdout);
  return v.good();
}

Problem shape(uint64_t m, uint64_t n, uint64_t k) {
  Problem p;
  p.m = m;
  p.n = n;
  p.k = k;
  return p;
}

std::vector<Problem> problems(bool network) {
  std::vector<Problem> all;
  for (const uint32_t tileN : {128u, 256u}) {
    for (const uint64_t m : {0, 1, 63, 127, 129, 300, 1000}) {
      Problem p = shape(m, m % 2 != 0 ? 520 : 1024, m == 129 ? 136 : 512);
      p.tileN = tileN;
      p.pad = m == 300 ? 24 : 0;
      all.push_back(p);
    }
    for (const Type in : {Type::bf16, Type::f16}) {
      for (const bool transposed : {true, false}) {
        for (const int types : {0, 1, 2}) {  // out, wire: narrow both, narrow and wide, wide both
          for (const bool staged : {false, true}) {
            Problem p = shape(777, 1288, 328);
            p.tileN = tileN;
            p.in = in;
            p.out = types == 2 ? Type::f32 : in;
            p.wire = types == 0 ? in : Type::f32;
            p.bTransposed = transposed;
            p.staged = staged;
            p.alpha = types == 1 ? 0.75f : 1.0f;
            p.beta = types == 2 && !staged ? -0.5f : 0.0f;
            p.bias = transposed != staged;
            all.push_back(p);
          }
        }
      }
    }
    Problem none = shape(256, 512, 0);
    none.tileN = tileN;
    none.bias = true;
    all.push_back(none);
    Problem few = shape(2048, 2048, 256);
    few.tileN = tileN;
    few.clusters = 3;
    all.push_back(few);
  }
  // Tiles of the product transposed.  K: whole steps; a last one with nothing or a part of its second half; more than the stages.
  for (const Type in : {Type::bf16, Type::f16}) {
    for (const uint64_t m : {0, 1, 8, 17, 40, 64}) {
      for (const uint64_t n : {8, 136, 520, 3000}) {
        Problem p = shape(m, n, m == 1 ? 136 : m == 8 ? 1096 : m == 17 ? 328 : m == 40 ? 8 : 512);
        p.in = p.out = p.wire = in;
        p.pad = m == 17 ? 24 : 0;
        p.clusters = n == 3000 && m == 64 ? 3 : 0;
        all.push_back(p);
      }
    }
  }
  Problem nothing = shape(33, 264, 0);
  all.push_back(nothing);
  if (network) {
    const size_t base = all.size();
    for (size_t i = 0; i < base; ++i) {
      all[i].chunkTiles = static_cast<uint32_t>(i % 4);
      all[i].exchange = static_cast<uint32_t>(i % 3);
    }
  }
  return all;
}

void runChecks(uint32_t nodes, uint32_t locals, bool large) {
  World world(ranks, nodes, locals, 64 << 20);
  std::vector<std::unique_ptr<Pump>> pumps;
  if (nodes > 1)
    for (int me = 0; me < world.count(); ++me) pumps.push_back(std::make_unique<Pump>(ranks, world, me));
  std::printf("-- %u nodes x %u\n", nodes, locals);
  for (const Problem& p : problems(nodes > 1)) checkOne(world, p);
  if (!large) return;
  // The last is bound by the link, so that the moving warps lag behind the ring of tasks.
  for (const auto& s :
       {shape(2048, 2048, 128), shape(2048, 2048, 1024), shape(4096, 4096, 512), shape(4096, 4096, 256)}) {
    for (int i = 0; i < 5; ++i) checkOne(world, s, 60);
  }
}

// ---- Graphs: replays with inputs that change, mixed with eager launches.
void runGraph() {
  World world(ranks, 1, 2, 64 << 20);
  const Problem p = shape(1000, 1024, 512);
  both([&](int me) {
    fill(ranks[me], p);
    makeReference(ranks[me], p, 0);
    makeReference(ranks[me], p, 1);
    prepareC(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });
  cudaGraphExec_t graphs[kRanks];
  both([&](int me) {
    Rank& r = ranks[me];
    CUDA(cudaSetDevice(r.device));
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
    world.launch(me, p, 2);
    CUDA(cudaStreamEndCapture(r.stream, &graph));
    CUDA(cudaGraphInstantiate(&graphs[me], graph, 0));
    CUDA(cudaGraphDestroy(graph));
  });
  int bad = 0;
  for (int round = 0; round < 10; ++round) {
    const int last = round % 2;
    bool ran[kRanks];
    both([&](int me) {
      Rank& r = ranks[me];
      CUDA(cudaSetDevice(r.device));
      for (int i = 99; i >= 0; --i) {
        const int set = (last + i) % 2;
        if (i % 10 == 3) world.launch(me, p, set);
        CUDA(cudaMemcpyAsync(r.work, r.a[set], p.m * p.k * 2, cudaMemcpyDeviceToDevice, r.stream));
        CUDA(cudaGraphLaunch(graphs[me], r.stream));
      }
      ran[me] = world.sync(me);
    });
    if (!ran[0] || !ran[1] || !judge(ranks, world, p, last).good()) ++bad;
  }
  // The judge must see the difference between the sets.
  EXPECT(!judge(ranks, world, p, 0).good(), "results of one set of inputs pass for the other's");
  EXPECT(bad == 0, "%d of 10 rounds of 100 replays are wrong", bad);
  printRecord(0);
  printRecord(1);
  if (bad == 0) std::printf("ok   1000 graph replays, 100 eager launches between\n");
  for (auto& g : graphs) CUDA(cudaGraphExecDestroy(g));
}

// ---- Failures.
void expectRecord(int me, uint32_t kind, protocol::Stage stage, const char* what) {
  const protocol::FailRecord& r = *ranks[me].record;
  EXPECT(r.kind == kind && r.why.stage == stage, "%s: rank %d has kind %u, stage '%s'", what, me, r.kind,
         protocol::stageName(r.why.stage));
  if (r.kind == kind && r.why.stage == stage) std::printf("ok   %s: rank %d\n", what, me);
  std::fflush(stdout);
}
void runFailures() {
  using protocol::FailRecord;
  using protocol::Stage;
  const Problem p = shape(2048, 2048, 1024);
  World world(ranks, 1, 2, 64 << 20);
  world.timeoutNs = 200'000'000;
  both([&](int me) {
    fill(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });

  world.launch(0, p, 0);  // a peer that never enters
  EXPECT(!world.sync(0, 500), "a launch without its peer has ended");
  // Whichever warp sees it first.
  const Stage seen = ranks[0].record->why.stage;
  expectRecord(0, FailRecord::revoked, seen == Stage::partial ? seen : Stage::entered,
               "revoked while the peer does not enter");
  world.launch(0, p, 0);  // on a revoked communicator
  world.sync(0, 500);
  world.reset();

  both([&](int me) { world.launch(me, p, 0, 1000 + static_cast<uint32_t>(me)); });
  both([&](int me) { world.sync(me, 1000); });
  for (int me = 0; me < 2; ++me) expectRecord(me, FailRecord::mismatch, Stage::entered, "different arguments");
  world.reset();

  // A peer that enters and then does nothing.
  {
    const RankMemory m = world.memory(0);
    const uint64_t entered = sched::enteredWord(1, world.plan(p, 0).hash().value()), one = 1;
    CUDA(cudaSetDevice(0));
    CUDA(cudaMemcpy(ranks[0].heap + m.controlLayout.enteredLocal(1, 1), &entered, 8, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(ranks[0].heap + m.controlLayout.railEntered(1), &one, 8, cudaMemcpyHostToDevice));
    world.launch(0, p, 0);
    EXPECT(!world.sync(0, 3000), "a launch with a stalled peer has ended");
    expectRecord(0, FailRecord::timeout, Stage::partial, "a peer that stalls");
    printRecord(0);
  }
  world.reset();
  // The same, revoked in mid-wait.
  world.timeoutNs = 20'000'000'000;
  {
    const RankMemory m = world.memory(0);
    const uint64_t entered = sched::enteredWord(1, world.plan(p, 0).hash().value()), one = 1;
    CUDA(cudaSetDevice(0));
    CUDA(cudaMemcpy(ranks[0].heap + m.controlLayout.enteredLocal(1, 1), &entered, 8, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(ranks[0].heap + m.controlLayout.railEntered(1), &one, 8, cudaMemcpyHostToDevice));
    world.launch(0, p, 0);
    EXPECT(!world.sync(0, 300), "a launch with a stalled peer has ended");
    expectRecord(0, FailRecord::revoked, Stage::partial, "revoked in mid-wait");
  }
  world.reset();
  checkOne(world, p);  // and all is usable
}

}  // namespace
}  // namespace mk::kernels::test

int main(int argc, char** argv) {
  using namespace mk::kernels;
  using namespace mk::kernels::test;
  const int devices = deviceCount();
  if (devices < 1) {
    std::printf("SKIP: needs a GPU, there is none\n");
    return 77;
  }
  if (devices < kRanks) std::printf("NOTE: one GPU, that the ranks share; times mean nothing\n");
  for (int i = 0; i < devices; ++i) {
    const std::string why = unsupported(i);
    if (!why.empty()) {
      std::printf("SKIP: %s\n", why.c_str());
      return 77;
    }
  }
  makeRanks(ranks);
  for (int i = 0; i < devices; ++i) {
    CUDA(cudaSetDevice(i));
    KernelDevice device;
    const std::string why = loadKernels(&device);
    std::printf("device %d: %u clusters %s\n", i, device.clusters, why.c_str());
    if (!why.empty()) return 1;
  }
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) args = {"check", "network", "graph", "fail"};
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "first") {
      World world(ranks, 1, 2, 64 << 20);
      for (const uint32_t tileN : {128u, 256u}) {
        Problem p = shape(1024, 1024, 512);
        p.tileN = tileN;
        if (!checkOne(world, p, 1)) break;
        checkOne(world, p);
      }
    } else if (args[i] == "check") {
      runChecks(1, 1, false);
      runChecks(1, 2, true);
    } else if (args[i] == "network") {
      runChecks(2, 1, false);
    } else if (args[i] == "many") {  // four ranks, two on each GPU
      runChecks(1, 4, false);
      runChecks(2, 2, false);
      runChecks(4, 1, false);
    } else if (args[i] == "graph") {
      runGraph();
    } else if (args[i] == "fail") {
      runFailures();
    } else if (args[i] == "alone") {  // M N K ...
      std::vector<std::array<uint64_t, 3>> shapes;
      for (; i + 3 < args.size() && isdigit(args[i + 1][0]) != 0; i += 3)
        shapes.push_back({strtoull(args[i + 1].c_str(), nullptr, 10), strtoull(args[i + 2].c_str(), nullptr, 10),
                          strtoull(args[i + 3].c_str(), nullptr, 10)});
      benchAlone(ranks, shapes);
    } else if (devices == kRanks && (args[i] == "bench" || args[i] == "tune")) {
      const bool tune = args[i] == "tune";
      std::vector<std::pair<uint64_t, uint64_t>> shapes;
      while (i + 2 < args.size() && isdigit(args[i + 1][0]) != 0) {
        shapes.emplace_back(strtoull(args[i + 1].c_str(), nullptr, 10), strtoull(args[i + 2].c_str(), nullptr, 10));
        i += 2;
      }
      if (shapes.empty())
        for (const uint64_t b : {2048, 4096, 8192, 16384})
          for (const uint64_t part : {16, 2}) shapes.emplace_back(b, b / part);
      bench(ranks, shapes, tune);
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
