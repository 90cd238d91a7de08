// Times of the fused kernel beside cuBLAS alone, cuBLAS + NCCL (both found at run time) and the kernel's own product alone.
#include "bench.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace mk::kernels::test {
namespace {

Rank* ranks = nullptr;
std::barrier<> line(kRanks);

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
    for (int i = 0; i < std::min(kRanks, deviceCount()); ++i) {
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

// Products alone: a world of one rank for each GPU, whose memory is the far end of the heap's and words' room.
RankMemory aloneMemory(const World& world, int me) {
  RankMemory m = world.memory(me);
  m.place = sched::Place{};
  m.heaps[0] = ranks[me].heap + kHeapBytes - (1 << 20);
  m.own = ranks[me].own + (1 << 16);
  m.controlLayout = sched::ControlLayout{1, 1};
  m.heapLayout = sched::HeapLayout{m.controlLayout.bytes(), sched::kWorkspaceUnit};
  return m;
}
// tileN 0: as chosen.
sched::KernelChoice launchAlone(const RankMemory& memory, const Problem& p, int me, int set, uint32_t tileN) {
  GemmArOperands op;
  op.k = p.k;
  op.a = ranks[me].a[set];
  op.aStride = op.bStride = p.k;
  op.b = ranks[me].b;
  op.bTransposed = true;
  op.c = ranks[me].c;
  op.cStride = p.n;
  sched::KernelShape s;
  s.m = p.m;
  s.n = p.n;
  s.k = p.k;
  s.turnable = isTurnable(op, memory.place);
  s.tileN = tileN;
  const sched::KernelChoice c = sched::chooseKernel(s);
  sched::GemmArShape g;
  g.m = p.m;
  g.n = p.n;
  if (c.turned) std::swap(g.m, g.n);
  const sched::GemmArPlan plan = sched::planGemmAr(g, clusterChoice(c, {}), 132);
  const std::string why = launchGemmAr(memory, plan, c, 1, op, ranks[me].stream);
  if (!why.empty()) {
    std::printf("FAIL %s\n", why.c_str());
    _exit(1);
  }
  return c;
}

void benchOne(const Blas& blas, const Nccl* nccl, uint64_t b, uint64_t k, bool tune) {
  World fusedWorld(ranks, 1, 2, 640ull << 20);
  Problem p;
  p.m = p.n = b;
  p.k = k;
  const double flops = 2.0 * static_cast<double>(b) * static_cast<double>(b) * static_cast<double>(k);
  const double wireMs = static_cast<double>(b) * static_cast<double>(b) * 2 / 390e6;
  both([&](int me) {
    fill(ranks[me], p);
    CUDA(cudaStreamSynchronize(ranks[me].stream));
  });
  std::vector<RankMemory> alone;
  for (int me = 0; me < kRanks; ++me) alone.push_back(aloneMemory(fusedWorld, me));
  const auto single = [&](uint32_t tileN) {
    return [&, tileN](int me, int set) { launchAlone(alone[static_cast<size_t>(me)], p, me, set, tileN); };
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
      for (const int pace : {0, 1350, 1410, 1470}) {
        for (const int bands : {1, 2}) {
          Problem q = p;
          q.tileN = tileN;
          q.pace = pace;
          q.bands = bands;
          char name[64];
          std::snprintf(name, sizeof(name), "fused tileN %u pace %d bands %d", tileN, pace, bands);
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
  // What has been timed is judged: C poisoned, then launches with both inputs.
  both([&](int me) {
    makeReference(ranks[me], p, 0);
    prepareC(ranks[me], p);
    for (int i = 3; i >= 0; --i) fusedWorld.launch(me, p, i & 1);
    fusedWorld.sync(me);
  });
  const Verdict verdict = judge(ranks, fusedWorld, p, 0);
  const double floor = std::max(ops[0].ms, wireMs);
  const double gemm = std::min(ops[2].ms, ops[3].ms);
  const sched::KernelChoice chosen = fusedWorld.choose(p);
  std::printf(
      "%6llu %6llu | %8.4f %8.4f | %8.4f %8.4f %5.3f | %8.4f %6.0f %5.1f%% %5.2f | tileN %u pace %u host %.1f us | "
      "wrong %llu\n",
      static_cast<unsigned long long>(b), static_cast<unsigned long long>(k), ops[0].ms, ops[1].ms, ops[2].ms,
      ops[3].ms, ops[0].ms / gemm, ops[4].ms, flops / ops[4].ms / 1e9, 100 * floor / ops[4].ms, ops[1].ms / ops[4].ms,
      chosen.tileN, chosen.paceNs, hostUs[0], verdict.wrong + verdict.different + verdict.outside);
  for (int me = 0; me < kRanks; ++me) {
    const protocol::FailRecord& r = *ranks[me].record;
    if (r.kind != 0)
      std::printf(
          "        rank %d: record kind %u stage %s local %d node %d item %llu epoch %llu expected %llx seen %llx\n",
          me, r.kind, protocol::stageName(r.why.stage), r.why.local, r.why.node,
          static_cast<unsigned long long>(r.why.item), static_cast<unsigned long long>(r.epoch),
          static_cast<unsigned long long>(r.expected), static_cast<unsigned long long>(r.seen));
  }
  for (size_t i = 5; i < ops.size(); ++i)
    std::printf("        %-34s %8.4f ms  x%.2f\n", ops[i].name.c_str(), ops[i].ms, ops[1].ms / ops[i].ms);
  std::fflush(stdout);
}

// On one GPU, one launch after another, and the same replayed from a graph.
void aloneOne(const Blas& blas, uint64_t m, uint64_t n, uint64_t k) {
  World world(ranks, 1, 2, 1 << 20);
  Problem p;
  p.m = m;
  p.n = n;
  p.k = k;
  Rank& r = ranks[0];
  CUDA(cudaSetDevice(r.device));
  fill(r, p);
  CUDA(cudaStreamSynchronize(r.stream));
  const RankMemory memory = aloneMemory(world, 0);
  struct Way {
    const char* name;
    std::function<void(int)> run;
    cudaGraphExec_t graph = nullptr;
    std::vector<double> eager = {}, replayed = {};
  };
  std::vector<Way> ways;
  ways.push_back({"cuBLAS", [&](int set) { blas.run(0, p, set); }});
  ways.push_back({"256", [&](int set) { launchAlone(memory, p, 0, set, 256); }});
  ways.push_back({"128", [&](int set) { launchAlone(memory, p, 0, set, 128); }});
  ways.push_back({"chosen", [&](int set) { launchAlone(memory, p, 0, set, 0); }});
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double bytes = 2.0 * static_cast<double>(m * k + n * k + m * n);
  const double guessMs = std::max(std::max(flops / 6e11, bytes / 3e9), 0.01);
  const int count = std::max(2, std::min(50, static_cast<int>(10 / guessMs))) / 2 * 2;
  for (Way& w : ways) {
    for (int i = 0; i < 2; ++i) w.run(i);
    cudaGraph_t graph = nullptr;
    CUDA(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) w.run(i & 1);
    CUDA(cudaStreamEndCapture(r.stream, &graph));
    CUDA(cudaGraphInstantiate(&w.graph, graph, 0));
    CUDA(cudaGraphDestroy(graph));
  }
  const auto timed = [&](const std::function<void()>& run) {
    CUDA(cudaEventRecord(r.begin, r.stream));
    run();
    CUDA(cudaEventRecord(r.end, r.stream));
    CUDA(cudaStreamSynchronize(r.stream));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, r.begin, r.end));
    return ms * 1000 / static_cast<double>(count);
  };
  for (int round = 0; round < 7; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      Way& w = ways[(i * 3 + static_cast<size_t>(round)) % ways.size()];
      w.eager.push_back(timed([&] {
        for (int x = 0; x < count; ++x) w.run(x & 1);
      }));
      w.replayed.push_back(timed([&] { CUDA(cudaGraphLaunch(w.graph, r.stream)); }));
    }
  }
  const auto median = [](std::vector<double>& v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  std::printf("%6llu %6llu %6llu |", static_cast<unsigned long long>(m), static_cast<unsigned long long>(n),
              static_cast<unsigned long long>(k));
  double base[2] = {};
  for (Way& w : ways) {
    const double e = median(w.eager), g = median(w.replayed);
    if (base[0] == 0) {
      base[0] = e;
      base[1] = g;
    }
    std::printf(" %s %.1f %.1f (%.3f %.3f) |", w.name, e, g, base[0] / e, base[1] / g);
    CUDA(cudaGraphExecDestroy(w.graph));
  }
  std::printf(" us; %.0f TFLOP/s, %.0f GB/s\n", flops / median(ways[3].eager) / 1e6,
              bytes / median(ways[3].eager) / 1e3);
  std::fflush(stdout);
}

}  // namespace

bool benchAlone(Rank* worldRanks, const std::vector<std::array<uint64_t, 3>>& shapes) {
  ranks = worldRanks;
  Blas blas;
  if (!blas.load()) {
    std::printf("SKIP: no cuBLAS to compare with\n");
    return false;
  }
  std::printf("     M      N      K | way: us eager, replayed (cuBLAS's time over it)\n");
  for (const auto& [m, n, k] : shapes) aloneOne(blas, m, n, k);
  return true;
}

bool bench(Rank* worldRanks, const std::vector<std::pair<uint64_t, uint64_t>>& shapes, bool tune) {
  ranks = worldRanks;
  static Blas blas;
  static Nccl nccl;
  static const bool haveBlas = blas.load();
  if (!haveBlas) {
    std::printf("SKIP: no cuBLAS to compare with\n");
    return false;
  }
  static const bool haveNccl = nccl.load();
  std::printf("NCCL: %s\n", haveNccl ? "yes" : "no, that column is cuBLAS alone");
  std::printf("     b      K |   cuBLAS    +NCCL | GEMM 256 GEMM 128 ratio |    fused TFLOP/s roof  x     (ms)\n");
  for (const auto& [b, k] : shapes) benchOne(blas, haveNccl ? &nccl : nullptr, b, k, tune);
  return true;
}

}  // namespace mk::kernels::test
