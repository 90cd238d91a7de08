// What is each operation's own on the GPU: GEMM+ReduceScatter, AllGather+GEMM, activations, and all three operations in turn on
// one communicator.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "gpu/crews.h"
#include "gpu/device.h"
#include "ops/ag_world.h"
#include "process/crew.h"
#include "support/catch_compat.h"

using test::AgCase;
using test::AgOperands;
using test::Case;
using test::expect;
using test::Gather;
using test::newStream;
using test::Operands;
using test::requireCrew;
using test::requireGood;
using test::World;

namespace {

constexpr int kScatter = MK_OP_GEMM_REDUCE_SCATTER;
constexpr uint32_t kActivations[] = {MK_ACTIVATION_NONE, MK_ACTIVATION_RELU, MK_ACTIVATION_GELU, MK_ACTIVATION_SILU};

mkTune_t tuneOf(uint32_t tileN, uint32_t computeAgents, uint32_t receiveAgents) {
  mkTune_t t = {};
  t.tileN = tileN;
  t.computeAgents = computeAgents;
  t.receiveAgents = receiveAgents;
  return t;
}

std::vector<Case> scatterCases(bool network) {
  std::vector<Case> all;
  const auto add = [&](Case c) {
    c.op = kScatter;
    all.push_back(c);
  };
  add({.m = 512, .n = 512, .k = 256});
  add({.m = 1024, .n = 640, .k = 512, .window = true});
  add({.m = 1000, .n = 776, .k = 528, .bias = true, .alpha = 0.5f, .beta = -1});
  add({.m = 257, .n = 136, .k = 64, .in = mkFloat16, .out = mkFloat16, .transposed = true});
  add({.m = 601, .n = 264, .k = 200, .out = mkFloat32, .window = true, .beta = 2});
  add({.m = 255, .n = 520, .k = 128, .wireF32 = true, .padding = 8});
  add({.m = 770,
       .n = 136,
       .k = 72,
       .in = mkFloat16,
       .out = mkFloat32,
       .transposed = true,
       .bias = true,
       .padding = 16});
  // Fewer rows than ranks, one for each, a second rank with fewer or none.
  add({.m = 1, .n = 8, .k = 8});
  add({.m = 2, .n = 264, .k = 48, .bias = true, .beta = 1});
  add({.m = 3, .n = 128, .k = 64, .window = true});
  add({.m = 0, .n = 128, .k = 64});
  add({.m = 64, .n = 0, .k = 64});
  add({.m = 130, .n = 128, .k = 0, .bias = true, .beta = 1});
  // One rank has all of K.
  add({.m = 300, .n = 136, .k = 8});
  // Few rows a shard: spanning tiles, whose parts end with a block's rows, with a warp's, and in between; many tiles a cluster.
  for (const bool transposed : {false, true}) {
    add({.m = 256, .n = 1024, .k = 256, .transposed = transposed});
    add({.m = 224, .n = 264, .k = 72, .in = mkFloat16, .out = mkFloat16, .transposed = transposed});
    add({.m = 201, .n = 3000, .k = 136, .transposed = transposed, .padding = 8});
    add({.m = 330, .n = 520, .k = 64, .transposed = transposed});
  }
  // Turned ones.
  add({.m = 64, .n = 1024, .k = 512, .transposed = true});
  add({.m = 64, .n = 3000, .k = 72, .transposed = true, .padding = 8});
  add({.m = 37, .n = 264, .k = 1096, .in = mkFloat16, .out = mkFloat16, .transposed = true});
  add({.m = 8, .n = 8200, .k = 136, .transposed = true});
  add({.m = 1, .n = 72, .k = 328, .transposed = true});
  // A B too large for the cache: of turned tiles, two for some clusters, and of narrow ones.
  for (const bool transposed : {false, true}) {
    if (!network) add({.m = transposed ? 8 : 200, .n = transposed ? 8712 : 6000, .k = 8208, .transposed = transposed});
  }
  add({.m = 64, .n = 256, .k = 0, .transposed = true});
  Case tuned{.m = 1300, .n = 600, .k = 96};
  for (const uint32_t tileN : {128u, 256u}) {
    tuned.tune = tuneOf(tileN, 6, 2);
    if (network) tuned.tune.chunkTiles = tileN == 128 ? 1 : 3;
    add(tuned);
  }
  return all;
}

std::vector<AgCase> gatherCases(bool network) {
  std::vector<AgCase> all;
  for (const Gather gather : {Gather::none, Gather::memory, Gather::window}) {
    const auto add = [&](AgCase c) {
      c.gather = gather;
      if (gather == Gather::none) c.inPlace = false;
      all.push_back(c);
    };
    add({.m = 512, .n = 512, .k = 256});
    add({.m = 1000, .n = 264, .nStep = 136, .k = 528, .bias = true, .alpha = 0.5f, .beta = -1});
    add({.m = 257, .n = 136, .k = 64, .in = mkFloat16, .out = mkFloat16, .transposed = true, .inPlace = true});
    add({.m = 601, .n = 264, .k = 200, .out = mkFloat32, .beta = 2, .padding = 8});
    add({.m = 770,
         .n = 128,
         .k = 72,
         .in = mkFloat16,
         .out = mkFloat32,
         .transposed = true,
         .inPlace = true,
         .padding = 16});
    add({.m = 1, .n = 8, .k = 8});
    add({.m = 3, .n = 264, .k = 48, .bias = true, .inPlace = true});
    add({.m = 0, .n = 128, .k = 64});
    add({.m = 130, .n = 0, .nStep = 128, .k = 64});
    add({.m = 130, .n = 128, .k = 0, .bias = true, .beta = 1});
    // Few rows a shard, so that tiles span shards of one node: chunks of 32 rows and of 16 in slices by boxes, of 8 in slices row
    // by row; the largest there are with two ranks, and shards that end within a chunk.
    add({.m = 256, .n = 264, .k = 1096, .inPlace = true, .padding = 8});
    add({.m = 91, .n = 520, .nStep = 8, .k = 2056, .transposed = true, .bias = true, .beta = 1});
    add({.m = 32, .n = 136, .k = 2048, .in = mkFloat16, .out = mkFloat16, .inPlace = true});
    add({.m = 13, .n = 264, .k = 5000, .transposed = true, .padding = 8});
    add({.m = 64, .n = 128, .k = 64, .inPlace = true});
    // Turned ones: one tile a cluster and several, A of fewer rows than ranks, of no columns.
    add({.m = 64, .n = 1032, .nStep = 128, .k = 2056, .transposed = true, .inPlace = true});
    add({.m = 50, .n = 3000, .k = 136, .in = mkFloat16, .out = mkFloat16, .transposed = true, .padding = 8});
    add({.m = 2, .n = 72, .k = 328, .transposed = true});
    add({.m = 8, .n = 8200, .k = 4104, .transposed = true, .inPlace = true});
    add({.m = 30, .n = 264, .k = 0, .transposed = true});
    // Of fewer columns each, on one rank or all, once and in two rounds; on an H200 80, 96 and 112, and there of two parts of K too.
    add({.m = 64, .n = 5120, .k = 264, .transposed = true, .inPlace = true, .padding = 8});
    add({.m = 13, .n = 12288, .nStep = 8, .k = 136, .in = mkFloat16, .out = mkFloat16, .transposed = true});
    add({.m = 50, .n = 7168, .nStep = 7168, .k = 72, .transposed = true, .padding = 24});
    add({.m = 33, .n = 3584, .k = 2056, .transposed = true, .inPlace = true});
    // And of more rows than a tile has; on a rank with more columns not.
    add({.m = 256, .n = 264, .k = 1096, .transposed = true, .inPlace = true});
    add({.m = 201, .n = 136, .nStep = 12800, .k = 328, .transposed = true});
    // Few columns, so that clusters share tiles, each with a part of K: turned, of rows of several ranks and of one, with a
    // warpgroup and a block that have no rows, and more than one chunk that waits for a buffer.
    add({.m = 64, .n = 256, .k = 8192, .transposed = true});
    add({.m = 17, .n = 1000, .k = 5000, .in = mkFloat16, .out = mkFloat16, .transposed = true, .inPlace = true});
    add({.m = 256, .n = 200, .nStep = 128, .k = 8192});
    add({.m = 40, .n = 264, .k = 4104, .inPlace = true});
    add({.m = 300, .n = 520, .k = 4160, .out = mkFloat32, .transposed = true, .bias = true, .alpha = 0.5f, .beta = -1});
    add({.m = 1100, .n = 128, .k = 3000, .in = mkFloat16, .out = mkFloat16, .transposed = true, .padding = 8});
    AgCase three{.m = 256, .n = 128, .k = 6000};  // parts, of three clusters
    three.tune.computeAgents = 6;
    add(three);
    AgCase named{.m = 200, .n = 520, .k = 136, .transposed = true};
    named.tune.tileM = 64;
    if (!network) add(named);
    for (const uint32_t cols : {80u, 96u, 112u}) {
      AgCase low{.m = 70, .n = 3 * cols, .nStep = 8 * cols, .k = 1096, .transposed = true, .padding = 8};
      low.tune.tileM = 64;
      low.tune.tileN = cols;
      if (!network) add(low);
    }
    // Tiles of 224 columns, by name, whose last chunk begins within the one before: whole, and that end within any of the
    // chunks.
    for (const int64_t n : {224, 424, 400, 320, 8}) {
      AgCase medium{.m = 520, .n = n, .nStep = 8, .k = 328, .transposed = true, .inPlace = true, .padding = 8};
      medium.tune.tileN = 224;
      if (!network) add(medium);
    }
    // Of 112 likewise, and with parts of K.
    for (const int64_t n : {112, 200, 160, 280, 8}) {
      AgCase slim{.m = 300, .n = n, .nStep = 8, .k = 3208, .transposed = true, .inPlace = true, .padding = 8};
      slim.tune.tileN = 112;
      if (!network) add(slim);
    }
    // Several of them a cluster.
    AgCase more{.m = 1300, .n = 1200, .k = 200, .in = mkFloat16, .out = mkFloat16, .transposed = true};
    more.tune.tileN = 224;
    more.tune.computeAgents = 4;
    if (!network) add(more);
    more.tune.tileN = 112;
    if (!network) add(more);
    for (const uint32_t exchange : {0u, MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING}) {
      if (exchange != 0 && !network) continue;
      AgCase tuned{.m = 1300, .n = 600, .k = 96};
      tuned.tune = tuneOf(exchange == MK_EXCHANGE_RING ? 256 : 128, 6, 2);
      tuned.tune.chunkRows = exchange == MK_EXCHANGE_DIRECT ? 16 : 100;
      tuned.tune.exchange = exchange;
      add(tuned);
    }
  }
  // A B too large for the cache, of narrow tiles.
  for (const bool transposed : {false, true}) {
    if (!network) all.push_back({.m = 200, .n = 6000, .k = 4104, .transposed = transposed});
  }
  AgCase some{.m = 700, .n = 264, .k = 136, .gather = Gather::someRanks};
  all.push_back(some);
  some.m = 100;
  all.push_back(some);
  return all;
}

template <class Cases>
void runCases(test::Rank& rank, const Cases& cases, int rounds) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  rank.attempt("cases", [&] {
    uint64_t seed = 0;
    for (int round = 0; round < rounds; ++round) {
      for (auto c : cases) {
        c.seed = ++seed;
        test::runCase(c, rank.world(), rank.rank(), comm, seed % 3 == 0 ? test::plainStream() : stream);
      }
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

}  // namespace

// ---- Shapes, types and places ----------------------------------------------------------------------------------------

MK_ROLE(scatter) { runCases(rank, scatterCases(rank.world().nodes > 1), 2); }
MK_ROLE(gather) { runCases(rank, gatherCases(rank.world().nodes > 1), 2); }

TEST_CASE("GEMM+ReduceScatter and AllGather+GEMM on one rank", "[fused]") {
  MK_NEED_GPUS(1);
  const std::string role = GENERATE("scatter", "gather");
  requireCrew(role, {1, 1});
}

// The start makes the epochs cross 2^32 after a few operations.
TEST_CASE("GEMM+ReduceScatter and AllGather+GEMM on two ranks", "[fused]") {
  MK_NEED_GPUS(2);
  const std::string role = GENERATE("scatter", "gather");
  const World world = GENERATE(World{1, 2}, World{2, 1});
  const std::string contract = GENERATE("ordered", "completion");
  if (world.nodes == 1 && contract == "completion") return;
  requireCrew(role, world, {},
              {"MKERNEL_LOOPBACK_CONTRACT=" + contract,
               std::string("MKERNEL_EPOCH_START=") + (contract == "ordered" ? "4294967290" : "0")});
}

TEST_CASE("GEMM+ReduceScatter and AllGather+GEMM through host memory", "[fused]") {
  MK_NEED_GPUS(2);
  const std::string role = GENERATE("scatter", "gather");
  requireCrew(role, {2, 1}, {}, {"MKERNEL_NET_STAGING=1"});
}

// ---- Activations -------------------------------------------------------------------------------------------------------

MK_ROLE(activations) {
  mkComm_t comm = rank.join();
  cudaStream_t stream = newStream();
  rank.attempt("cases", [&] {
    uint64_t seed = 0;
    for (const uint32_t activation : kActivations) {
      for (const bool wide : {false, true}) {
        for (const bool whole : {false, true}) {  // scaled, with bias and old C; or A*B alone
          for (const int op : {MK_OP_GEMM_ALL_REDUCE, kScatter}) {
            Case c{.op = op, .m = 390, .n = 264, .k = 72, .window = whole};
            c.out = wide ? mkFloat32 : mkBfloat16;
            if (!whole) c.bias = true, c.alpha = 0.5f, c.beta = -1.5f;
            c.activation = activation;
            c.seed = ++seed;
            test::runCase(c, rank.world(), rank.rank(), comm, stream);
          }
          AgCase c{.m = 390, .n = 264, .k = 72};
          c.out = wide ? mkFloat32 : mkBfloat16;
          if (!whole) c.bias = true, c.alpha = 0.5f, c.beta = -1.5f;
          // Each rank its own.
          c.activation = (activation - 1 + static_cast<uint32_t>(rank.rank())) % 4 + 1;
          c.seed = ++seed;
          test::runCase(c, rank.world(), rank.rank(), comm, stream);
        }
      }
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("activations come last in all three operations", "[fused]") {
  MK_NEED_GPUS(1);
  const World world = GENERATE(World{1, 1}, World{1, 2}, World{2, 1});
  if (world.ranks() > 1) MK_NEED_GPUS(2);
  requireCrew("activations", world);
}

namespace {

void checkValues(int op, uint32_t activation, const std::vector<float>& values, const std::vector<float>& results) {
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(values[i]), is = static_cast<double>(results[i]);
    const double should = activation == MK_ACTIVATION_RELU ? (x < 0 ? 0 : x) : test::activate(activation, x);
    const bool same = std::isnan(should)   ? std::isnan(is)
                      : std::isinf(should) ? is == should
                                           : std::abs(is - should) <= 1e-5 * std::abs(should) + 1e-6;
    if (same) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "operation %d: activation %u of %g is %g, should be %g", op, activation, x, is,
                  should);
    throw std::string(text);
  }
}

}  // namespace

// K is 0 and beta 1, so C becomes the activation of what it was.
MK_ROLE(values) {
  mkComm_t comm = rank.join();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = {0.0f, -0.0f, inf, nan, 1e-30f, -1e-30f, 3e38f, -3e38f};
  while (values.size() < 168) values.push_back(-14.0f + static_cast<float>(values.size()) * 0.17f);
  const auto count = static_cast<int64_t>(values.size());
  std::vector<float> results(values.size());
  rank.attempt("cases", [&] {
    for (const uint32_t activation : {MK_ACTIVATION_RELU, MK_ACTIVATION_GELU, MK_ACTIVATION_SILU}) {
      const auto run = [&](int op, void* c, const auto& launch) {
        test::deviceMemory->upload(c, values.data(), values.size() * sizeof(float));
        launch();
        test::synchronize(test::plainStream());
        requireGood(comm);
        test::deviceMemory->download(results.data(), c, values.size() * sizeof(float));
        checkValues(op, activation, values, results);
      };
      for (const int op : {MK_OP_GEMM_ALL_REDUCE, kScatter}) {
        Case c{.op = op, .m = 1, .n = count, .k = 0, .out = mkFloat32, .beta = 1};
        c.activation = activation;
        Operands o(c, {1, 1}, 0, comm);
        o.reserve();
        run(op, o.deviceBytes('c').first, [&] { expect(o.launch(test::plainStream()), "launch", comm); });
      }
      AgCase c{.m = 1, .n = count, .k = 0, .out = mkFloat32, .beta = 1};
      c.activation = activation;
      AgOperands o(c, {1, 1}, 0, comm);
      test::reserveFor(comm, o.args());
      run(MK_OP_ALL_GATHER_GEMM, o.deviceBytes('c').first, [&] { test::launch(comm, o, test::plainStream()); });
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("activations of single values, infinities and not-a-numbers included, on the GPU", "[fused]") {
  MK_NEED_GPUS(1);
  requireCrew("values", {1, 1});
}

// ---- All three on one communicator -----------------------------------------------------------------------------------

// Enqueued one behind the other without a wait: each finds the flags and counters that another operation has left.
MK_ROLE(mixed) {
  mkComm_t comm = rank.join();
  cudaStream_t streams[2] = {newStream(), newStream()};
  const World world = rank.world();
  rank.attempt("cases", [&] {
    for (uint64_t round = 0; round < 6; ++round) {
      std::vector<std::unique_ptr<Operands>> sums;
      std::vector<std::unique_ptr<AgOperands>> gathers;
      for (uint64_t i = 0; i < 4; ++i) {
        const uint64_t seed = round * 16 + i * 3 + 1;
        const bool window = (round + i) % 2 == 0;
        const int64_t m = 200 + static_cast<int64_t>(i) * 173;
        Case c{.m = m, .n = 392, .k = 96, .window = window, .bias = i == 2};
        c.activation = kActivations[(round + i) % 4];
        c.seed = seed;
        sums.push_back(std::make_unique<Operands>(c, world, rank.rank(), comm));
        c.op = kScatter;
        c.window = false;
        c.seed = seed + 1;
        sums.push_back(std::make_unique<Operands>(c, world, rank.rank(), comm));
        AgCase g{.m = m,
                 .n = 264,
                 .k = 136,
                 .gather = window   ? Gather::window
                           : i == 1 ? Gather::memory
                                    : Gather::none};
        g.activation = c.activation;
        g.seed = seed + 2;
        gathers.push_back(std::make_unique<AgOperands>(g, world, rank.rank(), comm));
      }
      for (const auto& o : sums) o->reserve();
      for (const auto& o : gathers) test::reserveFor(comm, o->args());
      // In another order each round; on two streams in some.
      for (size_t i = 0; i < 12; ++i) {
        const size_t which = (i * (round % 2 == 0 ? 5 : 7) + round) % 12;
        cudaStream_t stream = streams[round % 3 == 2 ? i % 2 : 0];
        if (which < 8) {
          expect(sums[which]->launch(stream), "launch", comm);
        } else {
          test::launch(comm, *gathers[which - 8], stream);
        }
      }
      for (cudaStream_t s : streams) test::synchronize(s);
      requireGood(comm);
      for (const auto& o : sums) o->check();
      for (const auto& o : gathers) o->check();
    }
  });
  rank.call("destroy", [&] { return mkCommDestroy(comm); });
}

TEST_CASE("all three operations in turn on one communicator", "[fused]") {
  MK_NEED_GPUS(2);
  const World world = GENERATE(World{1, 1}, World{1, 2}, World{2, 1});
  const std::string start = GENERATE("0", "4294967280");
  requireCrew("mixed", world, {}, {"MKERNEL_EPOCH_START=" + start});
}

// ---- More than two ranks -----------------------------------------------------------------------------------------------

// Where there are fewer GPUs ranks share one (README.md of the tests), up to six of them: more have more streams than the device has
// queues, and a kernel would wait behind one that waits for it.
namespace {

void requireWide(const std::string& role) {
  const World world =
      GENERATE(World{1, 3}, World{1, 4}, World{2, 2}, World{4, 1}, World{2, 3}, World{1, 8}, World{2, 4}, World{8, 1});
  MK_NEED_GPUS(world.ranks());
  if (test::oneGpu() == test::OneGpu::threads && world.ranks() > 6) MK_SKIP_TEST("needs %d GPUs", world.ranks());
  requireCrew(role, world, {}, {"MKERNEL_EPOCH_START=4294967290"}, 60);
}

}  // namespace

TEST_CASE("GEMM+AllReduce on three to eight ranks", "[wide_reduce]") { requireWide("cases"); }
TEST_CASE("GEMM+ReduceScatter on three to eight ranks", "[wide_scatter]") { requireWide("scatter"); }
TEST_CASE("AllGather+GEMM on three to eight ranks", "[wide_gather]") { requireWide("gather"); }
TEST_CASE("all three operations in turn on three to eight ranks", "[wide_mixed]") { requireWide("mixed"); }
