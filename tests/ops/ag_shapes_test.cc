// AllGather+GEMM over all small worlds: shapes, types, layouts, where the whole A goes, how it travels; against fp64.
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
