// Properties of GemmRsPlan: places in a bank and flags never overlap and stay below the announced sizes, every writer and reader
// finds the same place, all ranks agree, and the largest results fit their numbers.
#include <algorithm>

#include "rs_worlds.h"

namespace mk::sched::test {
namespace {

struct Range {
  uint64_t begin, end;
  const char* what;
};

// Everything that is written to this rank's bank, by whomever.
std::vector<Range> placesOf(const GemmRsPlan& p) {
  std::vector<Range> ranges;
  const Place& at = p.place();
  for (uint32_t node = 0; node < at.nodes; ++node) {
    for (uint64_t i = 0; i < p.tilesOf(node, at.local); ++i) {
      const GemmRsTile t = p.tileOf(node, at.local, i);
      for (uint32_t from = 0; from < at.locals; ++from)
        if (from != at.local) ranges.push_back({p.partial(t, from), p.partial(t, from) + p.slotBytes(), "partial"});
    }
    for (uint64_t c = 0; p.multiNode() && c < p.chunksOf(node, at.local); ++c)
      ranges.push_back({p.nodeSum(node, c), p.nodeSum(node, c) + p.chunkBytes(), "node sum"});
  }
  for (uint64_t c = 0; c < p.chunksOf(at.node, at.local); ++c) {
    for (uint32_t from = 0; from < at.nodes; ++from) {
      if (from == at.node) continue;
      const uint64_t begin = p.arrivedSum(c, from, at.node);
      ranges.push_back({begin, begin + p.chunkBytes(), "arrived sum"});
    }
  }
  return ranges;
}

TEST_CASE("places of a reduce-scatter are disjoint, aligned to 16 bytes and below dataBytes") {
  uint64_t ranges = 0;
  forScatters([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      std::vector<Range> places = placesOf(p);
      std::sort(places.begin(), places.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
      for (size_t i = 0; i < places.size(); ++i) {
        MUST(places[i].begin % 16 == 0, describe(p) << ": " << places[i].what << " at " << places[i].begin);
        MUST(places[i].end <= p.dataBytes(), describe(p) << ": " << places[i].what << " at " << places[i].begin);
        MUST(i == 0 || places[i - 1].end <= places[i].begin, describe(p) << ": " << places[i].what);
      }
      ranges += places.size();
      MUST(HeapLayout::bankFlagBytes(p.workspace()) >= p.flagWords() * 8, describe(p));
      MUST(HeapLayout::bankDataBytes(p.workspace()) >= p.dataBytes(), describe(p));
      MUST(p.workspace() == s.plans[0].workspace(), describe(p));
    }
  });
  CHECK(ranges > 100000);
}

TEST_CASE("flags of a reduce-scatter have a word each, arrivals where arrivalFlag says") {
  forScatters([](const Scatter& s) {
    for (const uint32_t parts : {1u, 2u}) {
      for (GemmRsPlan p : s.plans) {
        p.parts = parts;
        const Place& at = p.place();
        std::vector<bool> taken(p.flagWords(), false);
        const auto take = [&](uint64_t word, const char* what) {
          MUST(word < p.flagWords() && !taken[word], describe(p) << ": flag of " << what << " is word " << word);
          taken[word] = true;
        };
        const ControlLayout control{at.nodes, at.locals};
        const HeapLayout heap{control.bytes(), alignUp(p.workspace(), kWorkspaceUnit)};
        for (uint64_t c = 0; c < p.chunksOf(at.node, at.local); ++c) {
          for (uint32_t from = 0; from < at.nodes; ++from) {
            if (from == at.node) continue;
            MUST(p.slot(c) >= kControlSlots && p.slot(c) < kMaxSlots, describe(p) << ", chunk " << c);
            take((arrivalFlag(heap, control, p.slot(c), from, 7) - heap.flags(1)) / 8, "arrival");
          }
        }
        for (uint32_t node = 0; node < at.nodes; ++node) {
          for (uint64_t i = 0; i < p.tilesOf(node, at.local); ++i) {
            const GemmRsTile t = p.tileOf(node, at.local, i);
            for (uint32_t from = 0; from < at.locals; ++from)
              for (uint32_t part = 0; from != at.local && part < parts; ++part)
                take(p.partialFlag(t, from, part), "partial");
          }
          for (uint64_t c = 0; p.multiNode() && c < p.chunksOf(node, at.local); ++c) {
            take(p.nodeSumFlag(node, c), "node sum");
            MUST(p.railChunk(node, c) < p.counterWords(), describe(p));
          }
        }
      }
    }
  });
}

// A rank that writes into a peer's bank computes the address from its own plan.
TEST_CASE("writer and reader of a reduce-scatter compute the same places") {
  for (const World world : {World{1, 8}, World{2, 3}, World{3, 2}, World{5, 1}}) {
    const Scatter s = scatterOf(world, 9 * world.ranks() - 3, 40, choiceOf(2, Exchange::swap), true);
    for (const GemmRsPlan& a : s.plans) {
      for (const GemmRsPlan& b : s.plans) {
        MUST(a.hash().value() == b.hash().value() && a.flagWords() == b.flagWords(), describe(a));
        for (uint32_t node = 0; node < world.nodes; ++node) {
          const uint32_t owner = b.place().local;
          for (uint64_t i = 0; i < a.tilesOf(node, owner); ++i) {
            const GemmRsTile ta = a.tileOf(node, owner, i), tb = b.tileOf(node, owner, i);
            MUST(ta.tile == tb.tile && ta.shape.row == tb.shape.row && ta.shape.col == tb.shape.col, describe(a));
            const uint32_t from = a.place().local;
            if (from == owner) continue;
            MUST(a.partial(ta, from) == b.partial(tb, from), describe(a));
            MUST(a.partialFlag(ta, from) == b.partialFlag(tb, from), describe(a));
          }
        }
        const uint32_t from = a.place().node, to = b.place().node, local = a.place().local;
        if (from == to || local != b.place().local) continue;
        MUST(a.chunksOf(to, local) == b.chunksOf(to, local), describe(a));
        for (uint64_t c = 0; c < a.chunksOf(to, local); ++c) {
          MUST(a.arrivedSum(c, from, to) == b.arrivedSum(c, from, to) && a.slot(c) == b.slot(c), describe(a));
          MUST(a.elementsOfChunk(to, local, c) == b.elementsOfChunk(to, local, c), describe(a));
        }
      }
    }
  }
}

TEST_CASE("tiles of a reduce-scatter are packed one after the other in their chunk") {
  forScatters([](const Scatter& s) {
    const GemmRsPlan& p = s.plans[0];
    for (const GemmRsPlan& to : s.plans) {
      const uint32_t node = to.place().node, local = to.place().local;
      uint64_t all = 0;
      for (uint64_t c = 0; c < p.chunksOf(node, local); ++c) {
        uint64_t before = 0;
        for (uint32_t i = 0; i < p.tilesIn(node, local, c); ++i) {
          const GemmRsTile t = p.tileOf(node, local, c * p.chunkTiles + i);
          MUST(t.exists && p.elementsBefore(t) == before, describe(p) << ", chunk " << c << ", tile " << i);
          before += uint64_t{t.shape.rows} * t.shape.cols;
        }
        MUST(p.elementsOfChunk(node, local, c) == before, describe(p) << ", chunk " << c);
        MUST(before * p.shape.wireBytes <= p.chunkBytes(), describe(p) << ", chunk " << c);
        all += before;
      }
      MUST(p.elementsOfShard(node, local) == all, describe(p));
    }
  });
}

TEST_CASE("the hash of a reduce-scatter differs when any one input differs") {
  GemmRsShape shape;
  shape.m = 100;
  shape.n = 64;
  shape.place = {2, 3, 0, 0};
  const GemmChoice choice = choiceOf(2, Exchange::swap);
  const auto hash = [](const GemmRsShape& s, const GemmChoice& c) { return planGemmRs(s, c, 8).hash().value(); };
  std::vector<uint32_t> hashes = {hash(shape, choice)};
  const auto vary = [&](const auto& change) {
    GemmRsShape s = shape;
    GemmChoice c = choice;
    change(s, c);
    hashes.push_back(hash(s, c));
  };
  vary([](GemmRsShape& s, GemmChoice&) { s.m += 1; });
  vary([](GemmRsShape& s, GemmChoice&) { s.n += 8; });
  vary([](GemmRsShape& s, GemmChoice&) { s.outBytes = 4; });
  vary([](GemmRsShape& s, GemmChoice&) { s.wireBytes = 4; });
  vary([](GemmRsShape& s, GemmChoice&) { s.place.nodes = 3; });
  vary([](GemmRsShape& s, GemmChoice&) { s.place.locals = 2; });
  vary([](GemmRsShape&, GemmChoice& c) { c.tileM = 4; });
  vary([](GemmRsShape&, GemmChoice& c) { c.tileN = 32; });
  vary([](GemmRsShape&, GemmChoice& c) { c.chunkTiles = 3; });
  vary([](GemmRsShape&, GemmChoice& c) { c.parts = 2; });
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::unique(hashes.begin(), hashes.end()) == hashes.end());
  // Choices of one rank alone do not count.
  GemmChoice agents = choice;
  agents.computeAgents = 3;
  agents.receiveAgents = 2;
  CHECK(hash(shape, agents) == hash(shape, choice));
}

TEST_CASE("what a reduce-scatter chooses automatically, and its roles") {
  const auto plan = [](uint32_t nodes, uint32_t locals, uint64_t m, uint64_t n) {
    return scatterOf({nodes, locals}, m, n, {}, false).plans[0];
  };
  CHECK(plan(1, 8, 8192, 8192).chunkTiles == 1);
  CHECK(plan(2, 8, 8192, 8192).chunkTiles == 4);
  CHECK(plan(2, 8, 64, 64).chunkTiles == 1);
  CHECK(plan(2, 2, 256, 768).chunkTiles == 3);  // twelve tiles for each rank
  CHECK(plan(4, 8, 0, 8192).positions() == 0);
  CHECK(plan(1, 4, 64, 64).roles.total() == 4);
  CHECK(plan(1, 4, 64, 64).roles.compute == 3);
  CHECK(plan(2, 4, 64, 64).roles.send == 1);
  CHECK(plan(2, 4, 64, 64).roles.receive == 1);
  CHECK(plan(2, 4, 64, 64).roles.compute == 1);
}

// The largest result that is legal, in the smallest tiles, on many nodes: counters and slots still suffice.
TEST_CASE("large reduce-scatters travel in larger chunks") {
  for (const World world : {World{2, 1}, World{2, 8}, World{1024, 8}}) {
    GemmRsShape shape;
    shape.m = shape.n = uint64_t{1} << 22;
    shape.wireBytes = 4;
    shape.ranks.locals = world.locals;
    shape.place = world.place(world.ranks() - 1);
    GemmChoice choice;
    choice.tileM = choice.tileN = 16;
    choice.chunkTiles = 1;
    const GemmRsPlan p = planGemmRs(shape, choice, 132);
    CHECK(p.counterWords() <= kMaxSlots);
    CHECK(p.slot(p.shardChunks - 1) < kMaxSlots);
    CHECK(p.counterWords() > kMaxSlots / 4);  // no larger than needed
    CHECK(p.dataBytes() < uint64_t{1} << 60);
    // The last tile this rank computes is its own last one.
    const GemmRsTile last = p.at(p.positions() - 1);
    CHECK(last.exists);
    CHECK(last.mine);
    CHECK(last.shape.row + last.shape.rows == shape.m);
    CHECK(last.shape.col + last.shape.cols == shape.n);
  }
}

}  // namespace
}  // namespace mk::sched::test
