// Properties of spanning tiles of GEMM+ReduceScatter: which rows of a tile are whose, where they go, when there are such tiles, and
// that no order of agents leaves one waiting.
#include <algorithm>

#include "rs_worlds.h"
#include "sched/kernel_choice.h"
#include "sched/rs_order.h"

namespace mk::sched::test {
namespace {

struct Size {
  uint64_t m, n;
};

// visit(Scatter) for one node of 1 to 8 ranks, tiles of 8 x 16 or, turned, 16 x 8, with whole and with ragged shards.
template <typename Visit>
void forSpanning(const Visit& visit) {
  for (uint32_t locals = 1; locals <= 8; ++locals) {
    const uint64_t w = locals;
    for (const Size size : {Size{0, 16}, Size{8, 0}, Size{1, 40}, Size{w - 1, 16}, Size{w, 16}, Size{4 * w, 32},
                            Size{5 * w + 1, 40}, Size{7 * w - 2, 24}, Size{19 * w + 3, 8}}) {
      for (const bool turned : {false, true}) {
        GemmChoice choice;
        choice.tileM = turned ? 16 : 8;
        choice.tileN = turned ? 8 : 16;
        choice.spanning = Spanning::always;
        choice.turned = turned;
        choice.parts = 2;
        visit(scatterOf(World{1, locals}, size.m, size.n, choice, false));
      }
    }
  }
}

TEST_CASE("the parts of spanning tiles are each rank's own rows, each element once") {
  uint64_t parts = 0;
  forSpanning([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      MUST(p.spanning, describe(p));
      std::vector<uint32_t> seen(p.shape.m * p.shape.n, 0);
      for (uint64_t i = 0; i < p.positions(); ++i) {
        for (uint32_t l = 0; l < p.place().locals; ++l) {
          const GemmRsTile t = p.spanningPart(i, l);
          const GemmRsTile other = s.at(0, l).spanningPart(i, l);
          MUST(t.exists == other.exists && t.shape.row == other.shape.row && t.shape.rows == other.shape.rows,
               describe(p));
          if (!t.exists) continue;
          MUST(t.mine == (l == p.place().local) && t.tile == i && t.shape.rows * t.shape.cols > 0, describe(p));
          const uint64_t first = Scatter::firstRow(p.shape.m, p.place().locals, l);
          MUST(t.firstRow == first, describe(p));
          for (uint64_t y = 0; y < t.shape.rows; ++y) {
            for (uint64_t x = 0; x < t.shape.cols; ++x) {
              const uint64_t row = p.turned ? t.shape.col + x : t.shape.row + y;
              const uint64_t col = p.turned ? t.shape.row + y : t.shape.col + x;
              MUST(row >= first && row < Scatter::firstRow(p.shape.m, p.place().locals, l + 1), describe(p));
              MUST(row < p.shape.m && col < p.shape.n, describe(p));
              ++seen[row * p.shape.n + col];
            }
          }
          ++parts;
        }
      }
      MUST(std::all_of(seen.begin(), seen.end(), [](uint32_t n) { return n == 1; }), describe(p));
    }
  });
  CHECK(parts > 5000);
}

TEST_CASE("spanning tiles as the device has them are those of the plan") {
  uint64_t tiles = 0;
  forSpanning([&](const Scatter& s) {
    const GemmRsPlan& p = s.plans.back();
    const RsOrder order(p.whole());
    MUST(order.positions == p.positions(), describe(p));
    for (uint32_t i = 0; i < order.positions; ++i, ++tiles) {
      const RsStep step = order.at(i);
      const Tile t = p.spanningGrid().tile(i);
      MUST(step.exists && step.row == t.row && step.col == t.col && step.rows == t.rows && step.cols == t.cols,
           describe(p) << ", tile " << i);
      MUST(step.tile == i && step.ownedTile == i, describe(p) << ", tile " << i);
    }
  });
  CHECK(tiles > 500);
}

TEST_CASE("partial results of spanning tiles have a place and flags each, the same for writer and reader") {
  uint64_t places = 0;
  forSpanning([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      MUST(p.hash().value() == s.plans[0].hash().value() && p.workspace() == s.plans[0].workspace(), describe(p));
      std::vector<bool> flags(p.flagWords(), false),
          slots(p.slotBytes() == 0 ? 0 : p.dataBytes() / p.slotBytes(), false);
      for (uint64_t i = 0; i < p.positions(); ++i) {
        const GemmRsTile mine = p.spanningPart(i, p.place().local);
        for (uint32_t from = 0; from < p.place().locals && mine.exists; ++from) {
          if (from == p.place().local) continue;
          const GemmRsTile theirs = s.at(0, from).spanningPart(i, p.place().local);
          MUST(p.partial(mine, from) == s.at(0, from).partial(theirs, from), describe(p));
          const uint64_t slot = p.partial(mine, from) / p.slotBytes();
          MUST(p.partial(mine, from) % p.slotBytes() == 0 && slot < slots.size() && !slots[slot], describe(p));
          slots[slot] = true;
          for (uint32_t part = 0; part < p.parts; ++part, ++places) {
            const uint64_t word = p.partialFlag(mine, from, part);
            MUST(word == s.at(0, from).partialFlag(theirs, from, part), describe(p));
            MUST(word < flags.size() && !flags[word], describe(p));
            flags[word] = true;
          }
        }
      }
    }
  });
  CHECK(places > 1000);
}

TEST_CASE("the parts of spanning tiles with own rows are counted without a look at each") {
  uint64_t counted = 0;
  forSpanning([&](const Scatter& s) {
    for (const GemmRsPlan& p : s.plans) {
      uint64_t count = 0;
      const uint64_t height = p.tileM / 2;
      for (uint64_t i = 0; i < p.positions(); ++i) {
        const GemmRsTile t = p.spanningPart(i, p.place().local);
        if (!t.exists) continue;
        const uint64_t from = t.shape.row % p.tileM, to = from + t.shape.rows;
        for (uint64_t part = 0; part < 2; ++part)
          count += p.turned || (from < (part + 1) * height && to > part * height);
      }
      MUST(p.ownSpanningParts(2) == count, describe(p) << ": " << p.ownSpanningParts(2) << ", not " << count);
      counted += count;
    }
  });
  CHECK(counted > 1000);
}

TEST_CASE("a reduce-scatter's tiles span shards of few rows on one node, unless that is not wanted") {
  const auto spans = [](const World& world, uint64_t m, Spanning spanning) {
    GemmRsShape shape;
    shape.m = m;
    shape.n = 64;
    shape.place = world.place(0);
    shape.ranks = {world.locals, nullptr};
    GemmChoice choice;
    choice.spanning = spanning;
    return planGemmRs(shape, choice, 4).spanning;  // tiles of 64 rows
  };
  CHECK(spans({1, 4}, 100, Spanning::byShape));
  CHECK_FALSE(spans({1, 4}, 256, Spanning::byShape));
  CHECK_FALSE(spans({2, 2}, 100, Spanning::byShape));
  CHECK_FALSE(spans({1, 1}, 100, Spanning::byShape));
  CHECK_FALSE(spans({1, 4}, 100, Spanning::never));
  CHECK(spans({1, 4}, 256, Spanning::always));
  CHECK_FALSE(spans({2, 2}, 256, Spanning::always));
}

TEST_CASE("tiles span shards where the kernel can do that") {
  KernelShape s;
  s.operation = Operation::gemmRs;
  s.m = 256;
  s.n = 8192;
  s.k = 4096;
  s.locals = 2;
  CHECK_FALSE(chooseKernel(s).spanning);
  CHECK_FALSE(chooseKernel(s).turned);
  s.spannable = true;
  CHECK(chooseKernel(s).spanning);
  CHECK(chooseKernel(s).tileN == kSpanningCols);
  CHECK(chooseKernel(s).clusters == 64);
  s.tileN = 256;
  CHECK_FALSE(chooseKernel(s).spanning);
  s.tileN = 0;
  s.m = kTurnedCols;
  CHECK(chooseKernel(s).spanning);
  CHECK_FALSE(chooseKernel(s).turned);
  s.turnable = true;
  for (const uint32_t locals : {1u, 2u}) {
    s.locals = locals;
    CHECK(chooseKernel(s).spanning);
    CHECK(chooseKernel(s).turned);
  }
}

// Agents take positions in order(plan, claim), give what is the peers', and hold on to their tile until the peers have given theirs.
bool ends(const Scatter& s, uint32_t agents, uint64_t (*order)(const GemmRsPlan&, uint64_t)) {
  constexpr uint64_t kNone = UINT64_MAX;
  struct Rank {
    std::vector<bool> given;
    std::vector<uint64_t> held;
    uint64_t next = 0;
  };
  std::vector<Rank> ranks;
  for (const GemmRsPlan& p : s.plans)
    ranks.push_back({std::vector<bool>(p.positions(), false), std::vector<uint64_t>(agents, kNone), 0});
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const GemmRsPlan& p = s.plans[r];
      for (uint64_t& tile : ranks[r].held) {
        if (tile == kNone) {
          if (ranks[r].next == p.positions()) continue;
          tile = order(p, ranks[r].next++);
          ranks[r].given[tile] = true;
          moved = true;
        }
        bool come = true;
        for (const Rank& peer : ranks)
          come = come && (!p.spanningPart(tile, p.place().local).exists || peer.given[tile]);
        if (!come) continue;
        tile = kNone;
        moved = true;
      }
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].next != s.plans[r].positions()) return false;
    for (const uint64_t tile : ranks[r].held)
      if (tile != kNone) return false;
  }
  return true;
}

TEST_CASE("spanning tiles come to their end, and would not in orders that differ between ranks") {
  uint64_t stuck = 0;
  forSpanning([&](const Scatter& s) {
    for (const uint32_t agents : {1u, 3u}) {
      MUST(ends(s, agents, [](const GemmRsPlan&, uint64_t n) { return n; }), describe(s.plans[0]));
      stuck += !ends(s, agents, [](const GemmRsPlan& p, uint64_t n) {
        return p.place().local % 2 == 0 ? n : p.positions() - 1 - n;
      });
    }
  });
  CHECK(stuck > 50);
}

}  // namespace
}  // namespace mk::sched::test
