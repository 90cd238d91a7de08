// No task waits for a later one: whole operations, all roles of all ranks in their orders, come to their end in every small
// world, even with a single agent per role; and the simulation does see the deadlocks of orders that are wrong.
#include <algorithm>

#include "simulation.h"

namespace mk::sched::test {
namespace {

std::vector<GemmArPlan> plansOf(const World& world, uint64_t tiles, uint32_t chunkTiles, Exchange exchange,
                                uint64_t window) {
  std::vector<GemmArPlan> plans;
  for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
    plans.push_back(planGemmAr(shapeOfTiles(world.place(rank), tiles, 1, false), choiceOf(chunkTiles, exchange), 8));
    if (window != 0) plans.back().chunks.window = window;
  }
  return plans;
}

// Tile counts up to a few groups of homes: all of the small ones, then those about every interesting multiple.
std::vector<uint64_t> tileCounts(const World& world, uint32_t chunkTiles) {
  const uint64_t wave = uint64_t{world.locals} * chunkTiles, group = wave * world.nodes;
  std::vector<uint64_t> counts = {wave - 1, wave,      wave + 1,      group - wave, group - 1,
                                  group,    group + 1, 2 * group - 1, 2 * group,    2 * group + wave / 2 + 1};
  for (uint64_t c = 0; c <= 20; ++c) counts.push_back(c);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

TEST_CASE("operations come to their end in every world, on each node with every rank's share") {
  uint64_t runs = 0;
  forWorlds([&](const World& world) {
    for (uint32_t chunkTiles = 1; chunkTiles <= 5; ++chunkTiles) {
      for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
        if (world.nodes == 1 && (chunkTiles > 1 || exchange == Exchange::home)) continue;  // neither is used
        for (const uint64_t tiles : tileCounts(world, chunkTiles)) {
          const std::vector<GemmArPlan> plans = plansOf(world, tiles, chunkTiles, exchange, 0);
          Simulation simulation(plans, 1);
          MUST(simulation.run(), describe(plans[0]));
          MUST(simulation.complete(), describe(plans[0]));
          for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
            MUST(simulation.messages(rank) == plans[rank].netMessagesSent(), describe(plans[rank]));
          }
          ++runs;
        }
      }
    }
  });
  CHECK(runs > 2000);
}

TEST_CASE("operations come to their end with any window and several agents per role") {
  for (const World world :
       {World{1, 2}, World{1, 5}, World{2, 1}, World{2, 4}, World{3, 2}, World{4, 3}, World{5, 2}}) {
    for (uint32_t chunkTiles : {1u, 2u, 3u}) {
      for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
        for (uint64_t window : {1u, 2u, 3u, 7u, 1000u}) {
          for (uint32_t agents : {1u, 2u, 3u}) {
            for (uint64_t tiles : {1u, 7u, 24u, 61u}) {
              const std::vector<GemmArPlan> plans = plansOf(world, tiles, chunkTiles, exchange, window);
              Simulation simulation(plans, agents);
              MUST(simulation.run(), describe(plans[0]) << ", " << agents << " agents");
              MUST(simulation.complete(), describe(plans[0]) << ", " << agents << " agents");
            }
          }
        }
      }
    }
  }
}

// ---- Orders that are wrong.

TEST_CASE("the simulation sees a deadlock: own tiles first") {
  for (uint32_t locals = 2; locals <= 8; ++locals) {
    Orders orders;
    orders.tileAt = [](const GemmArPlan& p, uint64_t position) {  // begins with this rank's tiles, not the next one's
      return p.chunks.tileAt((p.place().local + p.place().locals - 1) % p.place().locals, position);
    };
    Simulation simulation(plansOf({1, locals}, 4 * locals, 1, Exchange::swap, 0), 1, orders);
    CHECK_FALSE(simulation.run());
  }
}

TEST_CASE("the simulation sees a deadlock: forwards before finishes") {
  Orders orders;
  orders.task = [](const GemmArPlan& p, uint64_t number) {  // from the last task to the first
    return p.rail.task(p.rail.tasks(p.owned()) - 1 - number, p.owned(), p.place().local, p.place().node);
  };
  for (uint32_t nodes = 2; nodes <= 5; ++nodes) {
    CHECK_FALSE(Simulation(plansOf({nodes, 2}, 24, 1, Exchange::home, 0), 1, orders).run());
  }
}

TEST_CASE("the simulation sees a lost chunk") {
  Orders orders;
  orders.task = [](const GemmArPlan& p, uint64_t number) {
    Rail::Task task = p.rail.task(number, p.owned(), p.place().local, p.place().node);
    if (number == 1) task.exists = false;
    return task;
  };
  Simulation simulation(plansOf({2, 2}, 24, 1, Exchange::swap, 0), 1, orders);
  CHECK(simulation.run());
  CHECK_FALSE(simulation.complete());
}

}  // namespace
}  // namespace mk::sched::test
