// AllGather+GEMM over all small worlds: shapes, types, layouts, where the whole A goes, how it travels; against fp64.
#include <atomic>

#include "emu/hooks.h"
#include "ops/ag_world.h"
#include "ops/require.h"
#include "support/catch_compat.h"

using test::AgCase;
using test::Gather;
using test::joined;
using test::World;

namespace {

const std::vector<World> kWorlds =
    test::worlds({{1, 1}, {1, 2}, {1, 8}, {2, 1}, {2, 2}, {2, 4}, {3, 2}, {4, 1}, {4, 2}});

std::atomic<int64_t> tiles{0};  // that have been computed, by all ranks

mkTune_t tuneOf(uint32_t exchange, uint32_t chunkRows, uint32_t movers = 0) {
  mkTune_t t = {};
  t.exchange = exchange;
  t.chunkRows = chunkRows;
  t.receiveAgents = movers;
  return t;
}

}  // namespace

TEST_CASE("allgather: shapes and types in every world") {
  const World world = GENERATE(from_range(kWorlds));
  const uint32_t exchange = GENERATE(MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING);
  if (exchange == MK_EXCHANGE_RING && world.nodes == 1) return;
  const auto tune = [&](uint32_t chunkRows, uint32_t movers = 0) { return tuneOf(exchange, chunkRows, movers); };
  const int64_t w = world.ranks();
  std::vector<AgCase> cases;
  cases.push_back({.m = 200, .n = 136, .k = 96, .tune = tune(0)});
  cases.push_back({.m = 64, .n = 64, .k = 64, .gather = Gather::window, .tune = tune(5)});
  cases.push_back({.m = 130, .n = 72, .k = 40, .gather = Gather::memory, .inPlace = true, .tune = tune(7)});
  cases.push_back({.m = 0, .n = 64, .k = 64, .gather = Gather::memory, .tune = tune(0)});
  cases.push_back({.m = 64, .n = 0, .k = 64, .gather = Gather::window, .tune = tune(3)});
  cases.push_back({.m = 70, .n = 0, .k = 16, .gather = Gather::someRanks, .tune = tune(0)});
  cases.push_back({.m = 57, .n = 72, .k = 0, .bias = true, .beta = 2, .gather = Gather::memory, .tune = tune(0)});
  // Fewer rows than ranks, one for each, one more: shards that are empty or short.
  cases.push_back({.m = 1, .n = 264, .k = 40, .bias = true, .alpha = 0.5f, .gather = Gather::memory, .tune = tune(0)});
  cases.push_back({.m = w - 1, .n = 24, .k = 16, .gather = Gather::window, .tune = tune(0)});
  cases.push_back({.m = w + 1, .n = 24, .k = 16, .gather = Gather::someRanks, .tune = tune(1)});
  cases.push_back({.m = 63, .n = 64, .nStep = 8, .k = 8, .beta = -1.5f, .tune = tune(0, 2)});
  cases.push_back({.m = 65,
                   .n = 200,
                   .k = 128,
                   .in = mkFloat16,
                   .out = mkFloat16,
                   .transposed = true,
                   .gather = Gather::memory,
                   .tune = tune(16),
                   .padding = 8});
  cases.push_back({.m = 197,
                   .n = 0,
                   .nStep = 24,
                   .k = 64,
                   .out = mkFloat32,
                   .transposed = true,
                   .bias = true,
                   .gather = Gather::window,
                   .inPlace = true,
                   .tune = tune(9, 2),
                   .padding = 16});
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    for (const AgCase& c : cases) test::runCase(c, world, rank, comm);
  });
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
}

TEST_CASE("allgather: few rows a shard: tiles span shards, on all ranks or on some") {
  const World world = GENERATE(World{1, 2}, World{1, 3}, World{1, 8});
  if (test::kBrief && world.locals > 2) return;
  const int64_t w = world.ranks();
  std::vector<AgCase> cases;
  for (const Gather gather : {Gather::none, Gather::memory, Gather::window, Gather::someRanks}) {
    const auto add = [&](AgCase c) {
      c.gather = gather;
      c.inPlace = c.inPlace && gather != Gather::none && gather != Gather::someRanks;
      cases.push_back(c);
    };
    add({.m = 16 * w, .n = 136, .k = 96, .inPlace = true});  // rank 1 has tiles of one shard
    add({.m = w * 8 - 3, .n = 72, .nStep = 64, .k = 40, .bias = true, .alpha = 0.5f, .tune = tuneOf(0, 3, 2)});
    add({.m = w + 1, .n = 24, .k = 16, .in = mkFloat16, .out = mkFloat16, .transposed = true, .tune = tuneOf(0, 1)});
    add({.m = 2, .n = 200, .k = 264, .out = mkFloat32, .beta = -1.5f, .inPlace = true, .padding = 16});
    add({.m = w - 1, .n = 64, .k = 8, .padding = 8});
    add({.m = 40, .n = 128, .k = 0, .bias = true, .beta = 2});
    // More than one row of tiles of all.
    add({.m = 90, .n = 130 * 8, .k = 64, .transposed = true, .inPlace = true, .tune = tuneOf(0, 7)});
  }
  const auto rowsOfTiles = [](int64_t rows, int64_t tileM) { return (rows + tileM - 1) / tileM; };
  int64_t spanning = 0, expected = 0;
  for (AgCase& c : cases) {
    for (int rank = 0; rank < w; ++rank) {
      const int64_t height = (c.m + w - 1) / w, tileM = rank == 1 && c.m == 16 * w ? 16 : 64;
      int64_t byShard = 0;
      for (int64_t first = 0; first < c.m; first += height)
        byShard += rowsOfTiles(std::min(height, c.m - first), tileM);
      const int64_t all = rowsOfTiles(c.m, tileM);
      const bool spans = 2 * byShard >= 3 * all;
      spanning += spans ? 1 : 0;
      expected += (spans ? all : byShard) * rowsOfTiles(c.n + rank * c.nStep, 64);
    }
  }
  REQUIRE(spanning > 5 * w);
  tiles = 0;
  mk::emu::hook().store([](int, uint64_t, mk::emu::Point point, uint64_t) {
    if (point == mk::emu::Point::multiply) ++tiles;
  });
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    for (AgCase c : cases) {
      if (rank == 1 && c.m == 16 * w) c.tune.tileM = 16;
      c.seed = static_cast<uint64_t>(c.m + c.n);
      test::runCase(c, world, rank, comm);
    }
  });
  mk::emu::hook().store(nullptr);
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
  // Not one shard after the other.
  CHECK(tiles == expected);
}

TEST_CASE("allgather: rows are in the order of global ranks, however those are dealt to the nodes") {
  const World world{3, 2};
  const uint32_t exchange = GENERATE(MK_EXCHANGE_DIRECT, MK_EXCHANGE_RING);
  const Gather gather = GENERATE(Gather::memory, Gather::window);
  static const char* const kNodes[] = {"in-turn-0", "in-turn-1", "in-turn-2"};
  const auto errors = test::runWorld(
      world,
      [&](mkComm_t comm, int rank) {
        test::runCase({.m = 101, .n = 40, .nStep = 8, .k = 24, .gather = gather, .tune = tuneOf(exchange, 4)}, world,
                      rank, comm);
      },
      [](mkConfig_t& config, int rank) { config.hostId = kNodes[rank % 3]; });
  INFO(joined(errors));
  CHECK(errors.empty());
}

TEST_CASE("allgather: activations come last, of each rank's own") {
  const World world = GENERATE(from_range(test::worlds({{1, 2}, {2, 2}})));
  const auto errors = test::runWorld(world, [&](mkComm_t comm, int rank) {
    for (uint32_t i = 0; i < 8; ++i) {
      AgCase c{.m = 70, .n = 72, .k = 40, .bias = true, .alpha = 0.5f, .beta = -1.5f};
      c.out = i % 2 == 0 ? mkFloat32 : mkBfloat16;
      c.activation = (i + static_cast<uint32_t>(rank)) % 4 + 1;
      test::runCase(c, world, rank, comm);
    }
  });
  INFO(world.nodes << " nodes x " << world.locals << "\n" << joined(errors));
  CHECK(errors.empty());
}
