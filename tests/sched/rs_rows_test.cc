// Which rows of a spanning tile are whose, as the agents of a GPU ask, is what the plan says of the whole tile.
#include <set>

#include "rs_worlds.h"
#include "sched/kernel_choice.h"
#include "sched/row_span.h"
#include "sched/rs_order.h"

namespace mk::sched::test {
namespace {

constexpr uint32_t kGroups = 2;  // warpgroups of a block

// A part of a tile: a block's, or of it a warpgroup's, by its rows of the tile.
struct Part {
  uint32_t first, height;
};
uint32_t blockRows(const GemmRsPlan& p) { return p.tileM / kClusterBlocks; }
Part blockPart(const GemmRsPlan& p, uint32_t block) { return {block * blockRows(p), blockRows(p)}; }
Part groupPart(const GemmRsPlan& p, uint32_t block, uint32_t group) {
  const uint32_t height = blockRows(p) / (p.turned ? 1 : kGroups);
  return {block * blockRows(p) + group * height, p.turned && group != 0 ? 0 : height};
}

std::set<uint32_t> rowsIn(const RowSpan& span) {
  std::set<uint32_t> rows;
  for (uint32_t y = span.first; y < span.end; ++y) rows.insert(y);
  return rows;
}
// By the plan.
std::set<uint32_t> rowsOf(const GemmRsPlan& p, uint64_t tile, uint32_t local) {
  const GemmRsTile t = p.spanningPart(tile, local);
  if (!t.exists) return {};
  const uint64_t first = p.turned ? t.shape.col : t.shape.row, count = p.turned ? t.shape.cols : t.shape.rows;
  return rowsIn({static_cast<uint32_t>(first), static_cast<uint32_t>(first + count)});
}

// visit(plan, its order, its shards) for each rank of one node of 2 to 8, with the tiles of the kernels.
template <typename Visit>
void forRanks(const Visit& visit) {
  for (uint32_t locals = 2; locals <= 8; ++locals) {
    for (const bool turned : {false, true}) {
      for (const uint32_t m :
           {0u, 1u, locals - 1, locals, 2 * locals + 1, 15u, 16u, 33u, 64u, 100u, 127u, 129u, 256u, 300u, 777u}) {
        for (const uint32_t n : {0u, 8u, 64u, 72u, 136u, 264u}) {
          GemmChoice choice;
          choice.tileM = turned ? kTurnedRows : kClusterRows;
          choice.tileN = turned ? kTurnedCols : kSpanningCols;
          choice.spanning = Spanning::always;
          choice.turned = turned;
          choice.parts = kClusterBlocks;
          const Scatter s = scatterOf(World{1, locals}, m, n, choice, false);
          for (const GemmRsPlan& p : s.plans) {
            const RsOrder order(p.whole());
            visit(p, order,
                  RowShards{turned ? order.n : order.m, static_cast<uint32_t>(p.shards.height()), p.place().local});
          }
        }
      }
    }
  }
}

TEST_CASE("shards of rows as the device has them are those of the plan") {
  uint64_t rows = 0;
  forRanks([&](const GemmRsPlan& p, const RsOrder&, const RowShards& shards) {
    MUST(shards.m == p.shape.m, describe(p));
    for (uint32_t l = 0; l < p.place().locals; ++l) {
      const uint32_t rank = p.shape.ranks.rank(p.place().node, l);
      const RowSpan span = shards.of(l);
      MUST(span.first == p.shards.first(rank) && span.end - span.first == p.shards.rows(rank), describe(p)
                                                                                                   << ", of " << l);
      rows += span.end - span.first;
    }
  });
  CHECK(rows > 100000);
}

TEST_CASE("the parts of a spanning tile have its rows, and blocks keep and give what the plan says") {
  uint64_t kept = 0, given = 0;
  forRanks([&](const GemmRsPlan& p, const RsOrder& order, const RowShards& shards) {
    const uint32_t local = p.place().local;
    uint64_t mine = 0;
    for (uint32_t i = 0; i < order.positions; ++i) {
      const RsStep step = order.at(i);
      std::set<uint32_t> all;
      for (uint32_t block = 0; block < kClusterBlocks; ++block) {
        const Part b = blockPart(p, block);
        const RowSpan part = rowsOfBlock(step, p.turned, b.first, b.height);
        const std::set<uint32_t> rows = rowsIn(part);
        uint64_t before = all.size();
        all.insert(rows.begin(), rows.end());
        MUST(p.turned || all.size() == before + rows.size(), describe(p) << ", tile " << i);

        // Of the warpgroups one has all the block's rows, if the block has some of the tile's; or each has some of its own.
        std::set<uint32_t> ofGroups;
        uint64_t sum = 0;
        for (uint32_t group = 0; group < kGroups; ++group) {
          const Part g = groupPart(p, block, group);
          const std::set<uint32_t> some = rowsIn(rowsOfPart(step, p.turned, g.first, g.height));
          ofGroups.insert(some.begin(), some.end());
          sum += some.size();
        }
        MUST(sum == ofGroups.size() && ofGroups == (p.turned && b.first >= step.rows ? std::set<uint32_t>() : rows),
             describe(p) << ", tile " << i);

        bool toPeers = false;
        for (uint32_t l = 0; l < p.place().locals; ++l) {
          std::set<uint32_t> theirs;
          for (const uint32_t y : rowsOf(p, i, l))
            if (rows.count(y) != 0) theirs.insert(y);
          MUST(shards.has(l, part) == !theirs.empty(), describe(p) << ", tile " << i << ", of " << l);
          toPeers = toPeers || (l != local && !theirs.empty());
          if (l == local) MUST(shards.keeps(part) == !theirs.empty(), describe(p) << ", tile " << i);
        }
        MUST(shards.gives(part) == toPeers, describe(p) << ", tile " << i);
        mine += shards.keeps(part);
        given += toPeers;
      }
      std::set<uint32_t> whole;
      for (uint32_t l = 0; l < p.place().locals; ++l) {
        const std::set<uint32_t> rows = rowsOf(p, i, l);
        whole.insert(rows.begin(), rows.end());
      }
      MUST(all == whole, describe(p) << ", tile " << i);
    }
    // So many announcements are waited for, and made.
    MUST(mine == p.ownSpanningParts(kClusterBlocks), describe(p) << ": " << mine);
    kept += mine;
  });
  CHECK(kept > 5000);
  CHECK(given > 5000);
}

TEST_CASE("of a part those pieces go to a rank that have some of its rows") {
  uint64_t sent = 0, shared = 0;
  forRanks([&](const GemmRsPlan& p, const RsOrder& order, const RowShards& shards) {
    for (uint32_t i = 0; i < order.positions; ++i) {
      const RsStep step = order.at(i);
      for (uint32_t g = 0; g < kClusterBlocks * kGroups; ++g) {
        const Part at = groupPart(p, g / kGroups, g % kGroups);
        const RowSpan part = rowsOfPart(step, p.turned, at.first, at.height);
        std::set<uint32_t> taken;
        for (uint32_t l = 0; l < p.place().locals; ++l) {
          std::set<uint32_t> pieces;
          for (const uint32_t y : rowsOf(p, i, l))
            if (y >= part.first && y < part.end) pieces.insert((y - part.first) / kPieceRows);
          const RowSpan span = shards.pieces(l, part);
          MUST(rowsIn(span) == pieces, describe(p) << ", tile " << i << ", part " << g << ", of " << l);
          for (const uint32_t q : pieces) shared += !taken.insert(q).second;
          sent += pieces.size();
        }
        // All of the part, and nothing beyond it.
        const uint32_t rows = part.empty() ? 0 : part.end - part.first;
        MUST(taken == rowsIn({0, static_cast<uint32_t>(ceilDiv(rows, kPieceRows))}),
             describe(p) << ", tile " << i << ", part " << g);
      }
    }
  });
  CHECK(sent > 50000);
  CHECK(shared > 1000);
}

}  // namespace
}  // namespace mk::sched::test
