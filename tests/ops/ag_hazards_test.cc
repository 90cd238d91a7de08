// AllGather+GEMM: what goes wrong when flags, banks and memory of the caller's are not what they should be; what is sent, byte
// for byte; arguments that are refused.
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "emu/hooks.h"
#include "host/comm.h"
#include "ops/ag_world.h"
#include "ops/require.h"
#include "support/catch_compat.h"

using test::AgCase;
using test::AgOperands;
using test::asyncError;
using test::expect;
using test::Gather;
using test::info;
using test::requireAll;
using test::requireSent;
using test::reserveFor;
using test::World;

namespace {

// Some ranks take their time over a tile.
struct SlowTiles {
  explicit SlowTiles(mk::emu::Hook hook) { mk::emu::hook().store(hook); }
  ~SlowTiles() { mk::emu::hook().store(nullptr); }
};

const std::vector<World> kSome = test::worlds({{1, 3}, {2, 2}, {3, 2}});

}  // namespace

TEST_CASE("allgather: what is sent is what the formula says, on every rank") {
  const World world = GENERATE(from_range(test::worlds({{2, 1}, {2, 4}, {3, 2}, {4, 2}, {5, 1}})));
  const uint32_t exchange = GENERATE(0u, MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING);
  requireAll(world, [&](mkComm_t comm, int rank) {
    for (const int64_t m : {int64_t{203}, int64_t{world.ranks() - 1}}) {
      AgCase c{.m = m, .n = 40, .k = 72};
      c.tune.exchange = exchange;
      c.tune.chunkRows = 4;
      AgOperands o(c, world, rank, comm);
      reserveFor(comm, o.args());
      const mkCommInfo_t before = info(comm);
      launch(comm, o);
      o.check();
      // Counted here from what the interface says: whole shards, each to (or through) all other nodes.
      const int64_t height = (m + world.ranks() - 1) / world.ranks();
      const auto rowsOf = [&](int r) { return std::max<int64_t>(0, std::min(m, (r + 1) * height) - r * height); };
      uint64_t bytes = 0, messages = 0;
      for (int step = 0; step + 1 < world.nodes; ++step) {
        const int from =
            exchange == MK_EXCHANGE_RING ? (rank + world.ranks() - step * world.locals) % world.ranks() : rank;
        bytes += uint64_t(rowsOf(from) * c.k) * 2;
        messages += uint64_t((rowsOf(from) + 3) / 4);
      }
      requireSent(comm, before, bytes, messages);
      if (m == 203 && bytes == 0) throw std::string("nothing to send: the test tests nothing");
    }
  });
}

TEST_CASE("allgather: a shard spoilt as soon as the stream has finished harms nobody") {
  const World world = GENERATE(from_range(kSome));
  const Gather gather = GENERATE(Gather::none, Gather::memory, Gather::window);
  const int64_t m = GENERATE(150, 20);  // tiles of one shard, or of all on one node
  // All but one are slow, so that the one has finished long before them.
  const SlowTiles slow([](int rank, uint64_t, mk::emu::Point point, uint64_t) {
    if (rank != 1 && point == mk::emu::Point::multiply) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  requireAll(world, [&](mkComm_t comm, int rank) {
    AgOperands o({.m = m, .n = 136, .k = 48, .gather = gather}, world, rank, comm);
    reserveFor(comm, o.args());
    launch(comm, o);
    o.spoilA();
    o.check();
  });
}

TEST_CASE("allgather: a rank's window is not written before it has come to the operation itself") {
  const World world = GENERATE(from_range(test::worlds({{1, 2}, {2, 2}})));
  const int64_t m = GENERATE(150, 20);
  requireAll(world, [&](mkComm_t comm, int rank) {
    AgOperands o({.m = m, .n = 72, .k = 48, .gather = Gather::window}, world, rank, comm);
    reserveFor(comm, o.args());
    for (uint64_t seed = 1; seed < 4; ++seed) {
      if (seed > 1) o.refill(seed);
      launch(comm, o);
      // The others are in the next operation, while this one still has use for what it has.
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      o.check();
    }
  });
}

TEST_CASE("allgather: back-to-back launches of both operations with one slow rank") {
  const World world = GENERATE(from_range(kSome));
  const uint32_t exchange = GENERATE(MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING);
  const SlowTiles slow([](int rank, uint64_t epoch, mk::emu::Point point, uint64_t) {
    if (rank == 1 && point == mk::emu::Point::multiply && epoch % 3 != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(300));
  });
  requireAll(world, [&](mkComm_t comm, int rank) {
    mkStream_t stream = nullptr;
    expect(mkCpuStreamCreate(&stream), "stream");
    {
      std::vector<std::unique_ptr<AgOperands>> sets;
      std::vector<std::unique_ptr<test::Operands>> reduces;
      for (int i = 0; i < 8; ++i) {
        AgCase c{.m = 130 - 9 * (i % 3), .n = 72 + 64 * (i % 2), .k = 48 + 8 * i};
        c.gather = i % 4 == 1 ? Gather::window : i % 4 == 2 ? Gather::memory : Gather::none;
        c.tune.exchange = exchange;
        c.tune.chunkRows = uint32_t(i % 3) * 5;
        c.seed = uint64_t(i) + 1;
        sets.push_back(std::make_unique<AgOperands>(c, world, rank, comm));
        reserveFor(comm, sets.back()->args());
        reduces.push_back(std::make_unique<test::Operands>(
            test::Case{.m = 70 + i, .n = 72, .k = 48, .seed = uint64_t(i) + 50}, world, rank, comm));
        const mkGemmAllReduceArgs_t args = reduces.back()->args();
        size_t bytes = 0;
        expect(mkOpWorkspaceSize(comm, MK_OP_GEMM_ALL_REDUCE, &args, &bytes), "workspace");
        expect(mkCommReserve(comm, bytes), "reserve", comm);
      }
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < sets.size(); ++i) {
          launch(comm, *sets[i], stream);
          const mkGemmAllReduceArgs_t args = reduces[i]->args();
          if (i % 3 != 1) expect(mkGemmAllReduce(comm, &args, stream), "mkGemmAllReduce", comm);
        }
        expect(mkCpuStreamSynchronize(stream), "synchronize");
        expect(asyncError(comm), "asynchronous", comm);
        for (size_t i = 0; i < sets.size(); ++i) {
          sets[i]->check();
          if (i % 3 != 1) reduces[i]->check();
          sets[i]->refill(uint64_t(100 + round));
          reduces[i]->refill(uint64_t(200 + round));
        }
      }
    }
    expect(mkCpuStreamDestroy(stream), "stream");
  });
}

TEST_CASE("allgather: a heap too small is refused, and with `gathered` in a window it need not be as large") {
  const World world{2, 2};
  const auto body = [&](mkComm_t comm, int rank) {
    AgOperands large({.m = 3000, .n = 8, .k = 512}, world, rank, comm);
    AgOperands windowed({.m = 3000, .n = 8, .k = 512, .gather = Gather::window}, world, rank, comm);
    const mkAllGatherGemmArgs_t args = large.args(), window = windowed.args();
    expect(mkAllGatherGemm(comm, &args, nullptr), "too large", nullptr, mkErrorNotReserved);
    size_t bytes = 0, less = 0;
    expect(mkOpWorkspaceSize(comm, MK_OP_ALL_GATHER_GEMM, &args, &bytes), "workspace");
    expect(mkOpWorkspaceSize(comm, MK_OP_ALL_GATHER_GEMM, &window, &less), "workspace");
    if (less * 10 > bytes * 6) throw "needs " + std::to_string(less) + " bytes instead of " + std::to_string(bytes);
    expect(mkCommReserve(comm, less), "reserve", comm);
    launch(comm, windowed);
    windowed.check();
    expect(mkCommReserve(comm, bytes), "reserve", comm);
    launch(comm, large);
    large.check();
  };
  requireAll(world, body, [](mkConfig_t& config, int) { config.heapBytes = 1 << 20; });
}

TEST_CASE("allgather: a rank that works for longer than the deadline, but gets on, is not taken for stalled") {
  const SlowTiles slow([](int rank, uint64_t, mk::emu::Point point, uint64_t) {
    if (rank == 1 && point == mk::emu::Point::multiply) std::this_thread::sleep_for(std::chrono::milliseconds(250));
  });
  const World world{1, 2};
  constexpr int kDeadlineMs = 1500;  // so long that a busy machine does not hold a thread up for it
  requireAll(
      world,
      [&](mkComm_t comm, int rank) {
        AgCase c{.m = 256, .n = 256, .k = 32, .gather = Gather::window};
        c.tune.chunkRows = 16;  // each moved between two rounds of slow tiles
        AgOperands o(c, world, rank, comm);
        reserveFor(comm, o.args());
        const auto start = std::chrono::steady_clock::now();
        launch(comm, o);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        if (!test::kBrief && took.count() < 1.2 * kDeadlineMs)  // agents that are threads are slow side by side
          throw "took " + std::to_string(took.count()) + " ms: too short to test anything";
        o.check();
      },
      [](mkConfig_t& config, int) { config.timeoutMs = kDeadlineMs; });
}

TEST_CASE("allgather: arguments that do not fit are refused by name") {
  const World world{1, 2};
  requireAll(world, [&](mkComm_t comm, int rank) {
    AgOperands o({.m = 37, .n = 40, .k = 24, .gather = Gather::memory}, world, rank, comm);
    const mkAllGatherGemmArgs_t good = o.args();
    expect(mkOpCheck(comm, MK_OP_ALL_GATHER_GEMM, &good), "good");
    const auto refused = [&](const char* text, mkResult_t code, const auto& change) {
      mkAllGatherGemmArgs_t x = good;
      mkTune_t tune = *good.tune;
      x.tune = &tune;
      change(x, tune);
      expect(mkOpCheck(comm, MK_OP_ALL_GATHER_GEMM, &x), text, nullptr, code);
      if (std::string(mkGetLastError(nullptr)).find(text) == std::string::npos)
        throw std::string(mkGetLastError(nullptr)) + " instead of " + text;
    };
    using Args = mkAllGatherGemmArgs_t;
    const mkResult_t bad = mkErrorInvalidArgument;
    refused("a.dims[0] is 1; legal: the rows of rank", bad, [](Args& x, mkTune_t&) { x.a.dims[0] = 1; });
    refused("c.dtype", bad, [](Args& x, mkTune_t&) { x.c.dtype = mkFloat16; });
    refused("gathered.dims[0] is 36; legal: c.dims[0], M = 37", bad,
            [](Args& x, mkTune_t&) { x.gathered.dims[0] = 36; });
    refused("gathered.dims[1] is 16; legal: a.dims[1], K = 24", bad,
            [](Args& x, mkTune_t&) { x.gathered.dims[1] = 16; });
    refused("gathered.dtype", bad, [](Args& x, mkTune_t&) { x.gathered.dtype = mkFloat32; });
    refused("b.dims[0] is 16; legal: a.dims[1], K = 24", bad, [](Args& x, mkTune_t&) { x.b.dims[0] = 16; });
    refused("tune.exchange is 1", bad, [](Args&, mkTune_t& t) { t.exchange = MK_EXCHANGE_SWAP; });
    refused("tune.chunkTiles is 4; legal for mkAllGatherGemm: 0", bad, [](Args&, mkTune_t& t) { t.chunkTiles = 4; });
    refused("reserved1 is 7", mkErrorVersion, [](Args& x, mkTune_t&) { x.reserved1 = 7; });
  });
}

TEST_CASE("allgather: what was chosen can be asked for") {
  requireAll({2, 2}, [&](mkComm_t comm, int rank) {
    AgCase c{.m = 100, .n = 40, .k = 24};
    c.tune.exchange = MK_EXCHANGE_RING;
    c.tune.chunkRows = 6;
    c.tune.receiveAgents = 2;
    const AgOperands o(c, {2, 2}, rank, comm);
    const mkAllGatherGemmArgs_t args = o.args();
    mkTune_t tune;
    MK_INIT(&tune, MK_ID_TUNE);
    expect(mkTuneQuery(comm, MK_OP_ALL_GATHER_GEMM, &args, &tune), "query");
    if (tune.exchange != MK_EXCHANGE_RING || tune.chunkRows != 6 || tune.receiveAgents != 2 || tune.chunkTiles != 0 ||
        tune.computeAgents == 0 || tune.minSMs < 3)
      throw std::string("not what was asked for");
  });
}

TEST_CASE("allgather: differing arguments are named on every rank; those that may differ are not compared") {
  const World world = GENERATE(from_range(test::worlds({World{1, 2}, World{2, 1}})));
  const std::string what = GENERATE("K", "chunks", "none");
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    AgCase c{.m = 64, .n = 16 + 8 * rank, .k = 16, .out = rank == 0 ? mkBfloat16 : mkFloat32, .transposed = rank == 1};
    c.alpha = static_cast<float>(rank + 1);
    c.bias = rank == 1;
    c.tune.tileM = rank == 1 ? 32 : 0;
    if (what == "K" && rank == 1) c.k = 24;
    if (what == "chunks") c.tune.chunkRows = rank == 0 ? 4 : 8;
    AgOperands o(c, world, rank, comm);
    const mkAllGatherGemmArgs_t args = o.args();
    const mkResult_t r = mkAllGatherGemm(comm, &args, nullptr);
    if (what == "none") {
      expect(r, "mkAllGatherGemm", comm);
      return o.check();
    }
    expect(r, "mkAllGatherGemm", comm, mkErrorInvalidUsage);
    const std::string text = mkGetLastError(comm);
    const char* const both[] = {what == "K" ? "K=16" : "chunks of 4 rows", what == "K" ? "K=24" : "chunks of 8 rows"};
    for (const char* const one : both)
      if (text.find(one) == std::string::npos) throw text;
  });
  INFO(what << "\n" << (errors.empty() ? std::string() : errors[0]));
  CHECK(errors.empty());
}

TEST_CASE("allgather: ranks in different operations are told so") {
  const World world = GENERATE(from_range(test::worlds({World{1, 2}, World{2, 2}})));
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    const test::Operands reduce({.m = 64, .n = 64, .k = 64}, world, rank, comm);
    const AgOperands gather({.m = 64, .n = 64, .k = 64}, world, rank, comm);
    const mkGemmAllReduceArgs_t r = reduce.args();
    const mkAllGatherGemmArgs_t g = gather.args();
    expect(rank == 1 ? mkAllGatherGemm(comm, &g, nullptr) : mkGemmAllReduce(comm, &r, nullptr), "operation", comm,
           mkErrorInvalidUsage);
    const std::string text = mkGetLastError(comm);
    for (const char* const one : {"mkAllGatherGemm(M=64, K=64", "mkGemmAllReduce(M=64, N=64"})
      if (text.find(one) == std::string::npos) throw text;
  });
  INFO((errors.empty() ? std::string() : errors[0]));
  CHECK(errors.empty());
}

TEST_CASE("allgather: soak: a stream of mixed shapes") {
  const char* longRun = std::getenv("MKERNEL_TEST_LONG");
  const int operations = longRun != nullptr ? 4000 : test::kBrief ? 40 : 250;
  const World world = GENERATE(World{2, 2}, World{1, 3});
  requireAll(world, [&](mkComm_t comm, int rank) {
    std::mt19937_64 random(11);  // the same choices on every rank
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    for (int i = 0; i < operations; ++i) {
      AgCase c;
      c.m = below(4) == 0 ? below(6) : below(140);
      c.n = 8 * below(20);
      c.nStep = 8 * below(2);
      c.k = 8 * below(14);
      c.in = below(3) == 0 ? mkFloat16 : mkBfloat16;
      c.out = below(4) == 0 ? mkFloat32 : c.in;
      c.transposed = below(2) == 0;
      c.gather = static_cast<Gather>(below(4));
      if (c.gather == Gather::window && below(2) == 0) c.gather = Gather::none;  // windows take their time
      c.inPlace = below(2) == 0;
      c.bias = below(3) == 0;
      c.beta = below(4) == 0 ? 0.75f : 0.0f;
      c.padding = 8 * below(2);
      c.seed = random();
      c.activation = static_cast<uint32_t>(below(5));
      c.tune.chunkRows = static_cast<uint32_t>(below(9));
      c.tune.exchange = below(2) == 0 ? MK_EXCHANGE_DIRECT : MK_EXCHANGE_RING;
      // On one node tiles of some ranks span shards, and those of others do not.
      c.tune.tileM = 16 * static_cast<uint32_t>((below(4) + (world.nodes == 1 ? rank : 0)) % 4);
      c.tune.receiveAgents = static_cast<uint32_t>(below(3));
      test::runCase(c, world, rank, comm);
    }
  });
}
