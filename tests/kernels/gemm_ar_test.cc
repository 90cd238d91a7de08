// GEMM+AllReduce on two GPUs: correctness in many shapes, as one node and as two, graphs, failures, and a table of times.
//   gemm_ar_test [check] [network] [graph] [fail] [bench [b K]...] [tune b K]
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "world.h"

namespace mk::kernels::test {
namespace {

Rank ranks[kRanks];
int failures = 0;
std::barrier<> line(kRanks);

#define EXPECT(condition, ...)                           \
  do {                                                   \
    if (!(condition)) {                                  \
      ++failures;                                        \
      std::printf("FAIL %s line %d: ", #condition, __LINE__); \
      std::printf(__VA_ARGS__);                          \
      std::printf("\n");                                 \
      std::fflush(stdout);                               \
    }                                                    \
  } while (0)

void printRecord(int me) {
  const protocol::FailRecord& r = *ranks[me].record;
  if (r.kind == 0) return;
  std::printf("  rank %d: record kind %u role %u stage '%s' local %d node %d item %llu epoch %llu expected %llx seen %llx\n",
              me, r.kind, r.role, protocol::stageName(r.why.stage), r.why.local, r.why.node,
              static_cast<unsigned long long>(r.why.item), static_cast<unsigned long long>(r.epoch),
              static_cast<unsigned long long>(r.expected), static_cast<unsigned long long>(r.seen));
  std::fflush(stdout);
}

// Poisoned C and banks, then back-to-back launches with alternating inputs; the last one is judged.
bool checkOne(World& world, const Problem& p, int launches = 4) {
  if (p.beta != 0) launches = 1;
  both([&](int me) {
    fill(ranks[me], p);
    makeReference(ranks[me], p, 0);
    prepareC(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });
  world.poisonBanks();
  bool ran[kRanks];
  both([&](int me) {
    for (int i = launches - 1; i >= 0; --i) world.launch(me, p, i & 1);
    ran[me] = world.sync(me);
  });
  if (!ran[0] || !ran[1]) {
    EXPECT(false, "%s did not complete", p.name().c_str());
    printRecord(0);
    printRecord(1);
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
    for (int me = 0; me < kRanks; ++me) pumps.push_back(std::make_unique<Pump>(ranks, world, me));
  std::printf("-- %u nodes x %u\n", nodes, locals);
  for (const Problem& p : problems(nodes > 1)) checkOne(world, p);
  if (!large) return;
  for (const auto& s : {shape(2048, 2048, 1024), shape(4096, 4096, 512)}) {
    for (int i = 0; i < 5; ++i) checkOne(world, s, 20);
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
  expectRecord(0, FailRecord::revoked, Stage::entered, "revoked while the peer does not enter");
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

// ---- Times.
struct Blas {
  void* handles[kRanks] = {};
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
              void*, int, int, int, int) = nullptr;
  bool load() {
    void* lib = dlopen("libcublas.so.13", RTLD_NOW);
    if (lib == nullptr) lib = dlopen("libcublas.so.12", RTLD_NOW);
    if (lib == nullptr) return false;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(lib, "cublasCreate_v2"));
    const auto setStream = reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(lib, "cublasSetStream_v2"));
    gemm = reinterpret_cast<decltype(gemm)>(dlsym(lib, "cublasGemmEx"));
    for (int i = 0; i < kRanks; ++i) {
      CUDA(cudaSetDevice(i));
      if (create == nullptr || create(&handles[i]) != 0 || setStream(handles[i], ranks[i].stream) != 0) return false;
    }
    return gemm != nullptr;
  }
  // Row-major C = A B^T as column-major C^T = B A^T; bf16 with fp32 sums.
  void run(int me, const Problem& p, int set) const {
    const float one = 1, zero = 0;
    const Rank& r = ranks[me];
    const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    const int status = gemm(handles[me], 1, 0, n, m, k, &one, r.b, CUDA_R_16BF, k, r.a[set], CUDA_R_16BF, k, &zero, r.c,
                            CUDA_R_16BF, n, 68, -1);
    if (status != 0) {
      std::printf("FAIL cuBLAS %d\n", status);
      _exit(1);
    }
  }
};
struct Nccl {
  struct Id {
    char bytes[128];
  };
  void* comms[kRanks] = {};
  int (*allReduce)(const void*, void*, size_t, int, int, void*, cudaStream_t) = nullptr;
  bool load() {
    void* lib = nullptr;
    for (const char* name : {getenv("NCCL_LIBRARY"), const_cast<char*>("libnccl.so.2")}) {
      if (lib == nullptr && name != nullptr) lib = dlopen(name, RTLD_NOW);
    }
    if (lib == nullptr) return false;
    const auto getId = reinterpret_cast<int (*)(Id*)>(dlsym(lib, "ncclGetUniqueId"));
    const auto init = reinterpret_cast<int (*)(void**, int, Id, int)>(dlsym(lib, "ncclCommInitRank"));
    allReduce = reinterpret_cast<decltype(allReduce)>(dlsym(lib, "ncclAllReduce"));
    Id id;
    if (getId == nullptr || init == nullptr || allReduce == nullptr || getId(&id) != 0) return false;
    bool ok[kRanks];
    both([&](int me) {
      CUDA(cudaSetDevice(me));
      ok[me] = init(&comms[me], kRanks, id, me) == 0;
    });
    return ok[0] && ok[1];
  }
};

using Op = std::function<void(int me, int set)>;
struct Timed {
  std::string name;
  Op op;
  double ms = 0;
};

// Median of rounds in random order; the slower GPU counts; inputs alternate.
void timeAll(std::vector<Timed>& ops, double guessMs, int rounds) {
  const int count = std::max(2, std::min(60, static_cast<int>(12 / guessMs)));
  std::vector<std::vector<double>> times(ops.size());
  double ms[kRanks];
  both([&](int me) {
    CUDA(cudaSetDevice(me));
    Rank& r = ranks[me];
    uint64_t seed = 12345;
    for (int round = 0; round < rounds; ++round) {
      std::vector<size_t> order(ops.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (size_t i = order.size() - 1; i > 0; --i) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i], order[(seed >> 33) % (i + 1)]);
      }
      for (const size_t o : order) {
        for (int i = 0; i < 2; ++i) ops[o].op(me, i);
        CUDA(cudaStreamSynchronize(r.stream));
        line.arrive_and_wait();
        CUDA(cudaEventRecord(r.begin, r.stream));
        for (int i = 0; i < count; ++i) ops[o].op(me, i & 1);
        CUDA(cudaEventRecord(r.end, r.stream));
        CUDA(cudaStreamSynchronize(r.stream));
        float t = 0;
        CUDA(cudaEventElapsedTime(&t, r.begin, r.end));
        ms[me] = t / static_cast<float>(count);
        line.arrive_and_wait();
        if (me == 0) times[o].push_back(std::max(ms[0], ms[1]));
        line.arrive_and_wait();
      }
    }
  });
  for (size_t o = 0; o < ops.size(); ++o) {
    std::sort(times[o].begin(), times[o].end());
    ops[o].ms = times[o][times[o].size() / 2];
  }
}

void benchOne(const Blas& blas, const Nccl* nccl, uint64_t b, uint64_t k, bool tune) {
  World fusedWorld(ranks, 1, 2, 640ull << 20);
  Problem p = shape(b, b, k);
  const double flops = 2.0 * static_cast<double>(b) * static_cast<double>(b) * static_cast<double>(k);
  const double wireMs = static_cast<double>(b) * static_cast<double>(b) * 2 / 390e6;
  both([&](int me) {
    fill(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });
  // Alone: a world of one rank for each GPU, whose memory is the far end of the heap's and words' room.
  std::vector<RankMemory> alone(2);
  for (int me = 0; me < kRanks; ++me) {
    RankMemory m = fusedWorld.memory(me);
    m.place = sched::Place{};
    m.heaps[0] = ranks[me].heap + kHeapBytes - (1 << 20);
    m.own = ranks[me].own + (1 << 16);
    m.controlLayout = sched::ControlLayout{1, 1};
    m.heapLayout = sched::HeapLayout{m.controlLayout.bytes(), sched::kWorkspaceUnit};
    alone[static_cast<size_t>(me)] = m;
  }
  const auto single = [&](uint32_t tileN) {
    return [&, tileN](int me, int set) {
      sched::KernelShape s;
      s.m = s.n = b;
      s.k = k;
      s.tileN = tileN;
      const sched::KernelChoice c = sched::chooseKernel(s);
      sched::GemmArShape g;
      g.m = g.n = b;
      const sched::GemmArPlan plan = sched::planGemmAr(g, gemmArChoice(c, {}), 132);
      GemmArOperands op;
      op.k = k;
      op.a = ranks[me].a[set];
      op.aStride = op.bStride = k;
      op.b = ranks[me].b;
      op.bTransposed = true;
      op.c = ranks[me].c;
      op.cStride = b;
      const std::string why = launchGemmAr(alone[static_cast<size_t>(me)], plan, c, 1, op, ranks[me].stream);
      if (!why.empty()) {
        std::printf("FAIL %s\n", why.c_str());
        _exit(1);
      }
    };
  };
  std::vector<Timed> ops;
  ops.push_back({"cuBLAS", [&](int me, int set) { blas.run(me, p, set); }});
  ops.push_back({"cuBLAS + NCCL", [&](int me, int set) {
                   blas.run(me, p, set);
                   if (nccl != nullptr)
                     nccl->allReduce(ranks[me].c, ranks[me].c, b * b, 9, 0, nccl->comms[me], ranks[me].stream);
                 }});
  ops.push_back({"GEMM alone 256", single(256)});
  ops.push_back({"GEMM alone 128", single(128)});
  ops.push_back({"fused", [&](int me, int set) { fusedWorld.launch(me, p, set); }});
  if (tune) {
    for (const uint32_t tileN : {128u, 256u}) {
      for (const int pace : {0, 1450, 1600}) {
        for (const int early : {1, 4}) {
          Problem q = p;
          q.tileN = tileN;
          q.pace = pace;
          q.early = early;
          char name[64];
          std::snprintf(name, sizeof(name), "fused tileN %u pace %d early %d", tileN, pace, early);
          ops.push_back({name, [&fusedWorld, q](int me, int set) { fusedWorld.launch(me, q, set); }});
        }
      }
    }
  }
  timeAll(ops, std::max(flops / 7e11, wireMs), b >= 16384 ? 3 : 5);
  double hostUs[kRanks];
  both([&](int me) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) fusedWorld.launch(me, p, i & 1);
    hostUs[me] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 20;
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });
  const double floor = std::max(ops[0].ms, wireMs);
  const double gemm = std::min(ops[2].ms, ops[3].ms);
  const sched::KernelChoice chosen = fusedWorld.choose(p);
  std::printf("%6llu %6llu | %8.4f %8.4f | %8.4f %8.4f %5.3f | %8.4f %6.0f %5.1f%% %5.2f | tileN %u pace %u host %.1f us\n",
              static_cast<unsigned long long>(b), static_cast<unsigned long long>(k), ops[0].ms, ops[1].ms, ops[2].ms,
              ops[3].ms, ops[0].ms / gemm, ops[4].ms, flops / ops[4].ms / 1e9, 100 * floor / ops[4].ms,
              ops[1].ms / ops[4].ms, chosen.tileN, chosen.paceNs, hostUs[0]);
  for (size_t i = 5; i < ops.size(); ++i)
    std::printf("        %-34s %8.4f ms  x%.2f\n", ops[i].name.c_str(), ops[i].ms, ops[1].ms / ops[i].ms);
  std::fflush(stdout);
  for (int me = 0; me < kRanks; ++me) printRecord(me);
}

}  // namespace
}  // namespace mk::kernels::test

int main(int argc, char** argv) {
  using namespace mk::kernels;
  using namespace mk::kernels::test;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    std::printf("SKIP: needs two GPUs, there are %d\n", devices);
    return 77;
  }
  for (int i = 0; i < kRanks; ++i) {
    const std::string why = gemmArUnsupported(i);
    if (!why.empty()) {
      std::printf("SKIP: %s\n", why.c_str());
      return 77;
    }
  }
  makeRanks(ranks);
  for (int i = 0; i < kRanks; ++i) {
    CUDA(cudaSetDevice(i));
    GemmArDevice device;
    const std::string why = loadGemmAr(&device);
    std::printf("device %d: %u clusters %s\n", i, device.clusters, why.c_str());
    if (!why.empty()) return 1;
  }
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) args = {"check", "network", "graph", "fail"};
  Blas blas;
  Nccl nccl;
  bool loaded = false, haveNccl = false;
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
    } else if (args[i] == "graph") {
      runGraph();
    } else if (args[i] == "fail") {
      runFailures();
    } else if (args[i] == "bench" || args[i] == "tune") {
      const bool tune = args[i] == "tune";
      if (!loaded) {
        loaded = true;
        if (!blas.load()) {
          std::printf("SKIP times: no cuBLAS\n");
          break;
        }
        haveNccl = nccl.load();
        std::printf("NCCL: %s\n", haveNccl ? "yes" : "no, that column is cuBLAS alone");
        std::printf("     b      K |   cuBLAS    +NCCL | GEMM 256 GEMM 128 ratio |    fused TFLOP/s roof  x     (ms)\n");
      }
      std::vector<std::pair<uint64_t, uint64_t>> shapes;
      while (i + 2 < args.size() && isdigit(args[i + 1][0]) != 0) {
        shapes.emplace_back(strtoull(args[i + 1].c_str(), nullptr, 10), strtoull(args[i + 2].c_str(), nullptr, 10));
        i += 2;
      }
      if (shapes.empty())
        for (const uint64_t b : {2048, 4096, 8192, 16384})
          for (const uint64_t part : {16, 2}) shapes.emplace_back(b, b / part);
      for (const auto& [b, k] : shapes) benchOne(blas, haveNccl ? &nccl : nullptr, b, k, tune);
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
