// Small worlds of AllGather+GEMM: shapes, who is which rank, and plans of all ranks.
#pragma once

#include <numeric>

#include "must.h"
#include "sched/ag_gemm.h"

namespace mk::sched::test {

// Ranks numbered node by node, or dealt out to the nodes in turn.
struct RankTable {
  std::vector<uint32_t> rankOf;  // by node * locals + local

  RankTable(const World& world, bool inTurn) : rankOf(world.ranks()) {
    for (uint32_t i = 0; i < world.ranks(); ++i)
      rankOf[i] = inTurn ? i % world.locals * world.nodes + i / world.locals : i;
  }
  RankMap map(const World& world) const { return RankMap{world.locals, rankOf.data()}; }
};

struct AgCase {
  uint64_t m = 0, n = 16, k = 8;
  uint64_t chunkRows = 0;
  Exchange exchange = Exchange::direct;
  Gathered gathered = Gathered::none;
  uint32_t tileM = 4;
};

inline AgGemmPlan agPlan(const World& world, const RankTable& table, uint32_t i, const AgCase& c) {
  AgGemmShape shape;
  shape.m = c.m;
  shape.n = c.n;
  shape.k = c.k;
  shape.gathered = c.gathered;
  shape.place = world.place(i);
  shape.ranks = table.map(world);
  GemmChoice choice;
  choice.tileM = c.tileM;
  choice.tileN = 16;
  choice.chunkRows = static_cast<uint32_t>(c.chunkRows);
  choice.exchange = static_cast<uint32_t>(c.exchange);
  return planAgGemm(shape, choice, 8);
}

// By node * locals + local.
inline std::vector<AgGemmPlan> agPlans(const World& world, const RankTable& table, const AgCase& c) {
  std::vector<AgGemmPlan> plans;
  for (uint32_t i = 0; i < world.ranks(); ++i) plans.push_back(agPlan(world, table, i, c));
  return plans;
}

inline std::string describe(const AgGemmPlan& p) {
  std::ostringstream s;
  const Place& at = p.place();
  s << at.nodes << " x " << at.locals << " ranks, node " << at.node << ", local rank " << at.local << " is rank "
    << p.mine().rank << ", A " << p.shape.m << " x " << p.shape.k << ", N " << p.shape.n << ", tiles " << p.tileM
    << " x " << p.tileN << ", chunks of " << p.chunkRows << " rows"
    << (p.exchange == Exchange::ring ? ", ring" : ", direct") << ", gathered "
    << static_cast<uint32_t>(p.shape.gathered);
  if (p.spanning) s << ", tiles span shards";
  if (p.turned) s << ", turned";
  if (p.slices() > 1) s << ", slices of " << p.sliceCols;
  return s.str();
}

// Of one node, in slices of columns where there are more: few rows a shard, so that tiles span shards.
template <typename Visit>
void forSpanningPlans(const Visit& visit) {
  uint32_t variant = 0;
  for (const uint32_t locals : {2u, 3u, 8u}) {
    for (const uint64_t m : {2u, 3u, 8u, 9u, 40u, 41u, 60u}) {
      for (const uint64_t k : {0u, 8u, 64u, 200u, 1024u}) {
        for (const uint32_t chunkRows : {1u, 4u, 32u}) {
          AgGemmShape shape;
          shape.m = m;
          shape.n = 24;
          shape.k = k;
          shape.gathered = static_cast<Gathered>(variant++ % 3);
          shape.ranks.locals = locals;
          GemmChoice choice;
          // One row of tiles, or as many as there can be.
          choice.tileM = 64;
          while (variant % 2 == 0 && tilesBetterSpan(Shards{m, locals}, 1, choice.tileM - 1)) --choice.tileM;
          choice.tileN = 16;
          if (variant % 5 == 0) {
            choice.turned = true;
            choice.spanning = Spanning::always;
            choice.tileM = 16;
            choice.tileN = 4 + variant % 7;
          }
          choice.chunkRows = chunkRows;
          choice.sliceCols = 64;
          choice.groupChunks = 1;
          const World world{1, locals};
          std::vector<AgGemmPlan> plans;
          for (uint32_t i = 0; i < locals; ++i) {
            shape.place = world.place(i);
            plans.push_back(planAgGemm(shape, choice, 8));
          }
          visit(plans);
        }
      }
    }
  }
}

// Every small world, both numberings, all kinds of `gathered`, both exchanges: shapes of no row to a few tiles per shard.
template <typename Visit>
void forAgPlans(const Visit& visit) {
  uint32_t variant = 0;
  for (const World world : {World{1, 1}, World{1, 2}, World{1, 5}, World{2, 1}, World{2, 3}, World{3, 2}, World{4, 1},
                            World{4, 4}, World{5, 3}}) {
    for (const bool inTurn : {false, true}) {
      const RankTable table(world, inTurn);
      const uint64_t w = world.ranks();
      for (const uint64_t m : {uint64_t{0}, uint64_t{1}, w - 1, w, w + 1, 5 * w - 1, 11 * w, 18 * w + 2}) {
        for (const uint64_t chunkRows : {1u, 3u, 4u, 8u, 0u}) {
          for (const Exchange exchange : {Exchange::direct, Exchange::ring}) {
            AgCase c;
            c.m = m;
            c.n = variant % 5 == 0 ? 0 : variant % 5 * 16 - 8;
            c.k = variant % 11 == 0 ? 0 : 8;
            c.chunkRows = chunkRows;
            c.exchange = exchange;
            c.gathered = static_cast<Gathered>(variant % 3);
            ++variant;
            visit(world, agPlans(world, table, c));
          }
        }
      }
    }
  }
}

}  // namespace mk::sched::test
