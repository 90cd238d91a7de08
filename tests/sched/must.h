// What the property tests of src/sched share: a check cheap enough for inner loops, the small worlds they walk, and an
// owner map written down by dealing chunks one by one, independent of the formulas under test.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "sched/gemm_ar.h"
#include "support/catch_compat.h"

// Fails the test case with a description, which is built only then.
#define MUST(condition, description)                                      \
  do {                                                                    \
    if (!(condition)) FAIL("not " #condition << " with " << description); \
  } while (0)

namespace mk::sched::test {

// Ranks of a world, by global number: node * locals + local.
struct World {
  uint32_t nodes = 1, locals = 1;
  uint32_t ranks() const { return nodes * locals; }
  Place place(uint32_t rank) const { return {nodes, locals, rank / locals, rank % locals}; }
};

// Calls visit(World) for every world of up to 5 nodes x 8 ranks.
template <typename Visit>
void forWorlds(const Visit& visit) {
  for (uint32_t nodes = 1; nodes <= 5; ++nodes) {
    for (uint32_t locals = 1; locals <= 8; ++locals) visit(World{nodes, locals});
  }
}

inline std::string describe(const TileGrid& g) {
  std::ostringstream s;
  s << "result " << g.m << " x " << g.n << ", tiles " << g.tileM << " x " << g.tileN << ", groups of " << g.groupRows;
  return s.str();
}
inline std::string describe(const ChunkMap& c) {
  std::ostringstream s;
  s << c.tiles << " tiles, " << c.chunkTiles << " per chunk, " << c.locals << " owners, window " << c.window;
  return s.str();
}
inline std::string describe(const GemmArPlan& p) {
  std::ostringstream s;
  const Place& at = p.place();
  s << at.nodes << " x " << at.locals << " ranks, node " << at.node << ", local rank " << at.local << ", "
    << describe(p.grid) << ", " << describe(p.chunks) << (p.rail.exchange == Exchange::swap ? ", swap" : ", home")
    << (p.shape.staged ? ", staged" : "");
  return s.str();
}

// A grid of rows x cols tiles of 2 x 16 elements, whose last row and column of tiles may be ragged.
inline GemmArShape shapeOfTiles(const Place& place, uint64_t rows, uint64_t cols, bool ragged) {
  GemmArShape shape;
  shape.m = rows * 2 - (ragged && rows > 0 ? 1 : 0);
  shape.n = cols * 16 - (ragged && cols > 0 ? 8 : 0);
  shape.place = place;
  return shape;
}
inline GemmChoice choiceOf(uint32_t chunkTiles, Exchange exchange) {
  GemmChoice choice;
  choice.tileM = 2;
  choice.tileN = 16;
  choice.chunkTiles = chunkTiles;
  choice.exchange = static_cast<uint32_t>(exchange);
  return choice;
}

// Owner and index among the owner's chunks of every chunk, dealt one by one.
struct Deal {
  std::vector<uint32_t> owner;
  std::vector<uint64_t> index;

  explicit Deal(const ChunkMap& map) {
    const uint64_t chunks = map.tiles / map.chunkTiles + (map.tiles % map.chunkTiles != 0 ? 1 : 0);
    std::vector<uint64_t> dealt(map.locals, 0);
    for (uint64_t base = 0; base < chunks; base += map.window * map.locals) {
      uint64_t left = chunks - base;
      if (left > map.window * map.locals) left = map.window * map.locals;
      const uint64_t size = left;
      for (uint32_t o = 0; o < map.locals; ++o) {
        // Owner o's hand ends where the first o + 1 of all owners' equal parts of the wave end, rounded down.
        while (size - left < (o + 1) * size / map.locals) {
          owner.push_back(o);
          index.push_back(dealt[o]++);
          --left;
        }
      }
    }
  }
};

}  // namespace mk::sched::test
