// Properties of GemmArPlan: places in a bank and flags never overlap and stay below the announced sizes, every writer and
// reader finds the same place, and the workspace holds them.
#include <algorithm>

#include "must.h"

namespace mk::sched::test {
namespace {

struct Range {
  uint64_t begin, end;
  const char* what;
};

// Calls visit(plan) for all ranks of all small worlds with grids of no tile to a few per owner, ragged or not, chunks of
// 1..5 tiles, both exchanges, C in a window or staged, with equal and different types on the wire.
template <typename Visit>
void forPlans(const Visit& visit) {
  struct Grid {
    uint64_t rows, cols;
  };
  uint32_t variant = 0;
  forWorlds([&](const World& world) {
    for (const Grid grid :
         {Grid{0, 3}, Grid{1, 1}, Grid{3, 1}, Grid{2, 4}, Grid{5, 3}, Grid{9, 4}, Grid{9, 7}, Grid{17, 8}}) {
      for (uint32_t chunkTiles = 1; chunkTiles <= 5; ++chunkTiles) {
        for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
          ++variant;
          for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
            GemmArShape shape = shapeOfTiles(world.place(rank), grid.rows, grid.cols, variant % 2 != 0);
            shape.staged = variant / 2 % 2 != 0;
            shape.outBytes = variant / 4 % 2 != 0 ? 4 : 2;
            shape.wireBytes = variant % 3 == 0 ? 4 : 2;
            visit(planGemmAr(shape, choiceOf(chunkTiles, exchange), 4));
          }
        }
      }
    }
  });
}

// Everything that is written to this rank's bank, by whomever.
std::vector<Range> placesOf(const GemmArPlan& p) {
  std::vector<Range> ranges;
  const Place& place = p.place();
  for (uint64_t t = 0; t < p.ownedTiles(); ++t) {
    for (uint32_t from = 0; from < place.locals; ++from) {
      if (from == place.local) continue;
      const uint64_t at = p.partial(t, from, place.local);
      ranges.push_back({at, at + p.slotBytes(), "partial result"});
    }
  }
  for (uint64_t i = 0; p.multiNode() && i < p.owned(); ++i) {
    ranges.push_back({p.nodeSum(i), p.nodeSum(i) + p.chunkBytes(), "node sum"});
    for (uint32_t from = 0; from < place.nodes; ++from) {
      if (from == place.node || !p.rail.finishes(i, place.local, place.node)) continue;
      const uint64_t at = p.arrivedSum(i, from, place.node);
      ranges.push_back({at, at + p.chunkBytes(), "arrived sum"});
    }
    if (p.rail.exchange == Exchange::home) ranges.push_back({p.result(i), p.result(i) + p.outChunkBytes(), "result"});
  }
  for (uint64_t t = 0; p.staged() && t < p.grid.count(); ++t) {
    ranges.push_back({p.stagedTile(t), p.stagedTile(t) + p.outSlotBytes(), "staged tile"});
  }
  return ranges;
}

TEST_CASE("places in a bank are disjoint, aligned to 16 bytes and below dataBytes") {
  uint64_t plans = 0, ranges = 0;
  forPlans([&](const GemmArPlan& p) {
    std::vector<Range> places = placesOf(p);
    std::sort(places.begin(), places.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < places.size(); ++i) {
      MUST(places[i].begin % 16 == 0, describe(p) << ": " << places[i].what << " at " << places[i].begin);
      MUST(places[i].end <= p.dataBytes(), describe(p) << ": " << places[i].what << " at " << places[i].begin);
      if (i == 0) continue;
      MUST(places[i - 1].end <= places[i].begin,
           describe(p) << ": " << places[i - 1].what << " and " << places[i].what << " at " << places[i].begin);
    }
    ++plans;
    ranges += places.size();
  });
  CHECK(plans > 10000);
  CHECK(ranges > 100000);
}

TEST_CASE("a bank has no room to spare but for short chunks and owners with one chunk less") {
  forPlans([&](const GemmArPlan& p) {
    uint64_t used = 0;
    for (const Range& r : placesOf(p)) used += r.end - r.begin;
    // What the owner with most chunks would need, if all chunks were full and, with home, each node finished most.
    const uint64_t locals = p.place().locals, nodes = p.place().nodes;
    const uint64_t home = p.rail.exchange == Exchange::home && nodes > 1 ? 1 : 0;
    const uint64_t perChunk =
        (locals - 1) * p.chunkBytes() + (nodes > 1 ? p.chunkBytes() : 0) + home * p.outChunkBytes();
    const uint64_t arrived = nodes > 1 ? (nodes - 1) * p.chunkBytes() : 0;
    const uint64_t shortChunk = (p.chunks.chunkTiles - 1) * (locals - 1) * p.slotBytes();
    MUST(p.dataBytes() <= used + perChunk + arrived + shortChunk, describe(p));
  });
}

TEST_CASE("flags of a bank have a word each, below flagWords") {
  forPlans([](const GemmArPlan& p) {
    const Place& place = p.place();
    std::vector<const char*> taken(p.flagWords(), nullptr);
    const auto take = [&](uint64_t word, const char* what) {
      MUST(word < p.flagWords(), describe(p) << ": flag of " << what << " is word " << word);
      MUST(taken[word] == nullptr, describe(p) << ": word " << word << " is of " << taken[word] << " and " << what);
      taken[word] = what;
    };
    for (uint64_t i = 0; p.multiNode() && i < p.owned(); ++i) {
      for (uint32_t from = 0; from < place.nodes; ++from) {
        // The network writes from every other node: its sum, or as home the finished chunk.
        if (from != place.node) take((p.slot(i) - kControlSlots) * place.nodes + from, "arrival");
      }
      take(p.nodeSumFlag(i), "node sum");
    }
    for (uint64_t t = 0; t < p.ownedTiles(); ++t) {
      for (uint32_t from = 0; from < place.locals; ++from) {
        if (from != place.local) take(p.partialFlag(t, from, place.local), "partial result");
      }
    }
    for (uint32_t from = 0; from < place.locals; ++from) take(p.outFlag(from), "output");
    for (uint64_t t = 0; p.staged() && t < p.grid.count(); ++t) take(p.stagedFlag(t), "staged tile");
  });
}

TEST_CASE("arrivals lie where arrivalFlag says, at the start of the epoch's bank") {
  forPlans([](const GemmArPlan& p) {
    if (!p.multiNode()) {
      MUST(p.arrivalWords() == 0, describe(p));
      return;
    }
    const ControlLayout control{p.place().nodes, p.place().locals};
    const HeapLayout heap{control.bytes(), alignUp(p.workspace(), kWorkspaceUnit)};
    for (uint64_t i = 0; i < p.owned(); ++i) {
      MUST(p.slot(i) >= kControlSlots && p.slot(i) < kMaxSlots, describe(p) << ", chunk " << i);
      for (uint32_t from = 0; from < p.place().nodes; ++from) {
        const uint64_t word = i * p.place().nodes + from;
        MUST(word < p.arrivalWords(), describe(p) << ", chunk " << i);
        for (uint64_t epoch : {1ull, 2ull, 0xffffffffull, 0x100000000ull}) {
          MUST(arrivalFlag(heap, control, p.slot(i), from, epoch) == heap.flags(epoch % 2) + word * 8,
               describe(p) << ", chunk " << i << ", epoch " << epoch);
        }
      }
    }
  });
}

TEST_CASE("the workspace has room for flags and data, and is the same on all ranks") {
  uint64_t workspace = 0;
  forPlans([&](const GemmArPlan& p) {
    MUST(HeapLayout::bankFlagBytes(p.workspace()) >= p.flagWords() * 8, describe(p));
    MUST(HeapLayout::bankDataBytes(p.workspace()) >= p.dataBytes(), describe(p));
    if (p.place().node == 0 && p.place().local == 0) workspace = p.workspace();  // ranks come in order, from 0
    MUST(p.workspace() == workspace, describe(p));
  });
}

// A rank that writes into a peer's bank computes the address from its own plan.
TEST_CASE("writer and reader compute the same places") {
  for (const World world : {World{1, 8}, World{2, 3}, World{3, 2}, World{5, 1}}) {
    for (const Exchange exchange : {Exchange::swap, Exchange::home}) {
      std::vector<GemmArPlan> plans;
      for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
        GemmArShape shape = shapeOfTiles(world.place(rank), 11, 3, true);
        shape.staged = true;
        plans.push_back(planGemmAr(shape, choiceOf(2, exchange), 4));
      }
      for (const GemmArPlan& a : plans) {
        for (const GemmArPlan& b : plans) {
          MUST(a.dataBytes() == b.dataBytes() && a.flagWords() == b.flagWords(), describe(a));
          for (uint64_t i = 0; i < a.maxOwned(); ++i) {
            MUST(a.nodeSum(i) == b.nodeSum(i) && a.result(i) == b.result(i) && a.slot(i) == b.slot(i), describe(a));
            for (uint32_t from = 0; from < world.nodes; ++from) {
              const uint32_t node = b.place().node;
              if (from != node) MUST(a.arrivedSum(i, from, node) == b.arrivedSum(i, from, node), describe(a));
            }
          }
          for (uint64_t t = 0; t < a.maxOwned() * a.chunks.chunkTiles; ++t) {
            for (uint32_t from = 0; from < world.locals; ++from) {
              const uint32_t owner = b.place().local;
              if (from == owner) continue;
              MUST(a.partial(t, from, owner) == b.partial(t, from, owner), describe(a));
              MUST(a.partialFlag(t, from, owner) == b.partialFlag(t, from, owner), describe(a));
            }
          }
          for (uint64_t t = 0; t < a.grid.count(); ++t) {
            MUST(a.stagedTile(t) == b.stagedTile(t) && a.stagedFlag(t) == b.stagedFlag(t), describe(a));
          }
        }
      }
    }
  }
}

TEST_CASE("tiles are packed one after the other in their chunk") {
  forPlans([](const GemmArPlan& p) {
    if (p.place().node != 0 || p.place().local != 0) return;
    for (uint64_t c = 0; c < p.chunks.chunks(); ++c) {
      uint64_t before = 0;
      for (uint32_t i = 0; i < p.chunks.tilesIn(c); ++i) {
        const uint64_t tile = p.chunks.firstTile(c) + i;
        MUST(p.elementsBefore(tile) == before, describe(p) << ", tile " << tile);
        before += p.grid.elements(tile);
      }
      MUST(p.elementsOfChunk(c) == before, describe(p) << ", chunk " << c);
      MUST(before * p.shape.wireBytes <= p.chunkBytes(), describe(p) << ", chunk " << c);
      MUST(before * p.shape.outBytes <= p.outChunkBytes(), describe(p) << ", chunk " << c);
    }
  });
}

TEST_CASE("counters: one for each owned chunk's node sum") {
  forPlans([](const GemmArPlan& p) { MUST(p.counterWords() == (p.multiNode() ? p.owned() : 0), describe(p)); });
}

}  // namespace
}  // namespace mk::sched::test
