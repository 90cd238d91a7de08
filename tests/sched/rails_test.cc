// Properties of Rail: who finishes a chunk, homes and their balance, the receiving tasks of a rank, rotated targets.
#include <algorithm>

#include "must.h"

namespace mk::sched::test {
namespace {

template <typename Visit>
void forRails(Exchange exchange, const Visit& visit) {
  for (uint32_t nodes = 1; nodes <= 9; ++nodes) {
    for (uint32_t local = 0; local < 10; ++local) {
      for (uint64_t owned = 0; owned <= 3 * nodes + 2; ++owned) visit(Rail{nodes, exchange}, local, owned);
    }
  }
}

std::string describe(const Rail& rail, uint32_t local, uint64_t owned) {
  std::ostringstream s;
  s << rail.nodes << " nodes, local rank " << local << ", " << owned << " owned chunks";
  return s.str();
}

TEST_CASE("swap: every node finishes every chunk") {
  forRails(Exchange::swap, [](const Rail& rail, uint32_t local, uint64_t owned) {
    for (uint64_t i = 0; i < owned; ++i) {
      for (uint32_t node = 0; node < rail.nodes; ++node)
        MUST(rail.finishes(i, local, node), describe(rail, local, owned));
    }
  });
}

TEST_CASE("home: one node finishes a chunk, and nodes differ by at most one chunk") {
  forRails(Exchange::home, [](const Rail& rail, uint32_t local, uint64_t owned) {
    std::vector<uint64_t> homes(rail.nodes, 0);
    for (uint64_t i = 0; i < owned; ++i) {
      const uint32_t home = rail.home(i, local);
      MUST(home < rail.nodes, describe(rail, local, owned) << ", chunk " << i);
      for (uint32_t node = 0; node < rail.nodes; ++node) {
        MUST(rail.finishes(i, local, node) == (node == home), describe(rail, local, owned) << ", chunk " << i);
      }
      // Its number among the chunks of its home: places in the home's bank, without gaps.
      MUST(rail.homeIndex(i) == homes[home], describe(rail, local, owned) << ", chunk " << i);
      ++homes[home];
    }
    for (uint32_t node = 0; node < rail.nodes; ++node) {
      MUST(rail.homeChunks(owned, local, node) == homes[node], describe(rail, local, owned) << ", node " << node);
    }
    const auto [least, most] = std::minmax_element(homes.begin(), homes.end());
    MUST(*most - *least <= 1, describe(rail, local, owned));
  });
}

TEST_CASE("home: at any time the chunks of a node's ranks have different homes") {
  for (uint32_t nodes = 2; nodes <= 9; ++nodes) {
    for (uint64_t index = 0; index < 3 * nodes; ++index) {
      std::vector<int> count(nodes, 0);
      for (uint32_t local = 0; local < nodes; ++local) ++count[Rail{nodes, Exchange::home}.home(index, local)];
      for (const int c : count) MUST(c == 1, nodes << " nodes, chunk " << index);
    }
  }
}

TEST_CASE("receiving tasks: every owned chunk once, as finish or forward by its home") {
  for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
    forRails(exchange, [exchange](const Rail& rail, uint32_t local, uint64_t owned) {
      for (uint32_t node = 0; node < rail.nodes; ++node) {
        std::vector<int> seen(owned, 0);
        for (uint64_t number = 0; number < rail.tasks(owned); ++number) {
          const Rail::Task task = rail.task(number, owned, local, node);
          if (!task.exists) continue;
          MUST(task.index < owned, describe(rail, local, owned) << ", node " << node << ", task " << number);
          MUST(seen[task.index]++ == 0, describe(rail, local, owned) << ", node " << node << ", task " << number);
          MUST(task.finish == rail.finishes(task.index, local, node), describe(rail, local, owned)
                                                                          << ", node " << node << ", task " << number);
        }
        for (const int times : seen) MUST(times == 1, describe(rail, local, owned) << ", node " << node);
        // Few numbers go to waste: no more than one group's.
        MUST(rail.tasks(owned) <= owned + rail.nodes, describe(rail, local, owned));
        MUST(exchange == Exchange::home || rail.tasks(owned) == owned, describe(rail, local, owned));
      }
    });
  }
}

// Why receiving never waits for a later task: the finish of a chunk waits only for computing and sending; a forward waits
// for the finish of the same group of N chunks on another node, and that node has it before any forward of that group.
TEST_CASE("home: finishes of a group of chunks come before forwards of that group, and one group ahead") {
  forRails(Exchange::home, [](const Rail& rail, uint32_t local, uint64_t owned) {
    for (uint32_t node = 0; node < rail.nodes; ++node) {
      uint64_t finishGroup = 0, forwardGroup = 0;
      bool anyFinish = false;
      for (uint64_t number = 0; number < rail.tasks(owned); ++number) {
        const Rail::Task task = rail.task(number, owned, local, node);
        if (!task.exists) continue;
        const uint64_t group = task.index / rail.nodes;
        if (task.finish) {
          MUST(!anyFinish || group == finishGroup + 1, describe(rail, local, owned) << ", task " << number);
          finishGroup = group;
          anyFinish = true;
        } else {
          MUST(group >= forwardGroup, describe(rail, local, owned) << ", task " << number);
          forwardGroup = group;
          const bool haveOwn = rail.homeChunks(owned, local, node) > group;
          MUST(!haveOwn || (anyFinish && finishGroup >= group), describe(rail, local, owned) << ", task " << number);
          const bool haveNext = rail.homeChunks(owned, local, node) > group + 1;
          MUST(!haveNext || finishGroup == group + 1, describe(rail, local, owned) << ", task " << number);
        }
      }
    }
  });
}

TEST_CASE("targets: every other node once, beginning with the next") {
  for (uint32_t nodes = 2; nodes <= 9; ++nodes) {
    const Rail rail{nodes, Exchange::swap};
    for (uint32_t step = 0; step + 1 < nodes; ++step) {
      std::vector<int> received(nodes, 0);
      for (uint32_t node = 0; node < nodes; ++node) ++received[rail.target(node, step)];
      for (const int times : received) CHECK(times == 1);  // in step, no two nodes send to the same
    }
    for (uint32_t node = 0; node < nodes; ++node) {
      std::vector<int> seen(nodes, 0);
      for (uint32_t step = 0; step + 1 < nodes; ++step) ++seen[rail.target(node, step)];
      for (uint32_t other = 0; other < nodes; ++other) CHECK(seen[other] == (other == node ? 0 : 1));
      CHECK(rail.target(node, 0) == (node + 1) % nodes);
    }
  }
}

}  // namespace
}  // namespace mk::sched::test
