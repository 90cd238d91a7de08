// What the property tests of GEMM+ReduceScatter share: all ranks' plans of one operation, in every small world.
#pragma once

#include "must.h"
#include "sched/gemm_rs.h"

namespace mk::sched::test {

inline std::string describe(const GemmRsPlan& p) {
  std::ostringstream s;
  const Place& at = p.place();
  s << at.nodes << " x " << at.locals << " ranks, node " << at.node << ", local rank " << at.local << ", result "
    << p.shape.m << " x " << p.shape.n << ", tiles " << p.tileM << " x " << p.tileN << ", " << p.chunkTiles
    << " per chunk" << (p.shape.ranks.table != nullptr ? ", ranks in rotation" : "");
  return s.str();
}

// One operation: the plans of all places, by node * locals + local.
struct Scatter {
  std::vector<uint32_t> table;  // of global ranks; empty: those are in order
  std::vector<GemmRsPlan> plans;
  const GemmRsPlan& at(uint32_t node, uint32_t local) const { return plans[node * plans[0].place().locals + local]; }
  // The rows of a rank by the interface's words.
  static uint64_t firstRow(uint64_t m, uint32_t ranks, uint32_t rank) {
    const uint64_t height = m / ranks + (m % ranks != 0 ? 1 : 0);
    return rank * height < m ? rank * height : m;
  }
};

// Unless the choice says otherwise tiles have rows of one rank.
inline Scatter scatterOf(const World& world, uint64_t m, uint64_t n, GemmChoice choice, bool rotated,
                         uint32_t wireBytes = 2) {
  if (choice.spanning == Spanning::byShape) choice.spanning = Spanning::never;
  Scatter s;
  // Ranks dealt out to the nodes in turn, so that a rail's rows are far apart within a node and close between nodes.
  for (uint32_t i = 0; rotated && i < world.ranks(); ++i)
    s.table.push_back(i % world.locals * world.nodes + i / world.locals);
  for (uint32_t i = 0; i < world.ranks(); ++i) {
    GemmRsShape shape;
    shape.m = m;
    shape.n = n;
    shape.wireBytes = wireBytes;
    shape.place = world.place(i);
    shape.ranks = {world.locals, rotated ? s.table.data() : nullptr};
    s.plans.push_back(planGemmRs(shape, choice, 4));
  }
  return s;
}

// Calls visit(Scatter) for all small worlds with results of no row, of fewer rows than ranks, with whole and with ragged shards
// and tiles, and chunks of 1..4 tiles.
template <typename Visit>
void forScatters(const Visit& visit) {
  struct Size {
    uint64_t m, n;
  };
  uint32_t variant = 0;
  forWorlds([&](const World& world) {
    const uint64_t w = world.ranks();
    for (const Size size : {Size{0, 16}, Size{8, 0}, Size{1, 40}, Size{w - 1, 16}, Size{4 * w, 32}, Size{5 * w + 1, 40},
                            Size{7 * w - 2, 24}}) {
      for (uint32_t chunkTiles = 1; chunkTiles <= 4; ++chunkTiles) {
        GemmChoice choice = choiceOf(chunkTiles, Exchange::swap);
        choice.exchange = 0;
        ++variant;
        visit(scatterOf(world, size.m, size.n, choice, variant % 3 == 0, variant % 2 != 0 ? 4 : 2));
      }
    }
  });
}

}  // namespace mk::sched::test
