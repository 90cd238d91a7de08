// Index maths beyond 2^31 elements: 64-bit offsets, chunks that grow with the result, costs that do not.
#include <algorithm>
#include <initializer_list>

#include "must.h"

namespace mk::sched::test {
namespace {

GemmArPlan planOf(uint64_t m, uint64_t n, const Place& place, uint32_t tileM = 0, uint32_t tileN = 0) {
  GemmArShape shape;
  shape.m = m;
  shape.n = n;
  shape.place = place;
  GemmChoice choice;
  choice.tileM = tileM;
  choice.tileN = tileN;
  return planGemmAr(shape, choice, 132);
}

struct Size {
  uint64_t m, n;
};
// 2^32 + 8192, 2^36 and 2^40 elements, and a single row of more than 2^32.
const Size kSizes[] = {{524289, 8192}, {262144, 262144}, {1ull << 20, 1ull << 20}, {1, (1ull << 33) + 8}};

TEST_CASE("large results: number and place of tiles at the ends and in between") {
  for (const Size size : kSizes) {
    // Small tiles, of which there are up to 2^36, and usual ones.
    for (const TileGrid g : {TileGrid{size.m, size.n, 1, 16, 1}, TileGrid{size.m, size.n, 64, 64, 8}}) {
      const uint64_t rows = (size.m + g.tileM - 1) / g.tileM, cols = (size.n + g.tileN - 1) / g.tileN;
      REQUIRE(g.count() == rows * cols);
      for (uint64_t k = 0; k <= 1000; ++k) {
        const uint64_t i = std::min(g.count() - 1, g.count() / 1000 * k + k);
        const Tile t = g.tile(i);
        MUST(g.index(t.row / g.tileM, t.col / g.tileN) == i, describe(g) << ", tile " << i);
        MUST(t.row < size.m && t.col < size.n, describe(g) << ", tile " << i);
        MUST(t.row + t.rows <= size.m && t.col + t.cols <= size.n, describe(g) << ", tile " << i);
        MUST(g.elementsBelow(i + 1) - g.elementsBelow(i) == g.elements(i), describe(g) << ", tile " << i);
      }
      const Tile last = g.tile(g.count() - 1);
      CHECK(last.row + last.rows == size.m);
      CHECK(last.col + last.cols == size.n);
      CHECK(g.elementsBelow(g.count()) == size.m * size.n);
    }
  }
}

TEST_CASE("a result of 2^32 + 8192 elements: every tile once") {
  const TileGrid g{524289, 8192, 64, 64, 8};
  std::vector<bool> seen(g.count(), false);
  uint64_t elements = 0, again = 0;
  for (uint64_t i = 0; i < g.count(); ++i) {
    const Tile t = g.tile(i);
    elements += uint64_t{t.rows} * t.cols;
    const uint64_t place = t.row / 64 * g.colsOfTiles() + t.col / 64;
    again += seen[place] ? 1 : 0;
    seen[place] = true;
  }
  CHECK(again == 0);
  CHECK(elements == 524289ull * 8192);
}

TEST_CASE("large results: chunks grow until their slots fit a notification, and no further") {
  for (const Size size : kSizes) {
    for (const World world : {World{2, 1}, World{2, 8}, World{4, 2}, World{5, 3}}) {
      const GemmArPlan p = planOf(size.m, size.n, world.place(0));
      INFO(describe(p));
      CHECK(p.slot(p.maxOwned() - 1) < kMaxSlots);
      const uint64_t chunksIfHalf = ceilDiv(p.grid.count(), std::max(1u, p.chunks.chunkTiles / 2));
      if (p.chunks.chunkTiles > 8) CHECK(ceilDiv(chunksIfHalf, world.locals) + kControlSlots > kMaxSlots);
    }
    // With one node nothing is notified, and tiles are dealt one by one.
    CHECK(planOf(size.m, size.n, {1, 8, 0, 0}).chunks.chunkTiles == 1);
  }
  // Just as many slots as there are; one more tile, and chunks double.
  const uint64_t most = kMaxSlots - kControlSlots;
  GemmArShape shape;
  shape.n = 16;
  shape.place = {2, 1, 0, 0};
  for (const uint64_t tiles : {most, most + 1}) {
    shape.m = tiles;
    GemmChoice choice;
    choice.tileM = 1;
    choice.tileN = 16;
    choice.chunkTiles = 1;
    const GemmArPlan p = planGemmAr(shape, choice, 4);
    CHECK(p.chunks.chunkTiles == (tiles == most ? 1 : 2));
    CHECK(p.slot(p.maxOwned() - 1) < kMaxSlots);
  }
}

// Offsets compared with the same sums in 128 bits: nothing is truncated on the way.
TEST_CASE("large results: offsets in a bank") {
  __extension__ using Wide = unsigned __int128;
  for (const Size size : {kSizes[0], kSizes[1]}) {
    for (const World world : {World{1, 8}, World{2, 8}, World{4, 2}}) {
      GemmArShape shape;
      shape.m = size.m;
      shape.n = size.n;
      shape.outBytes = shape.wireBytes = 4;
      shape.staged = true;
      shape.place = world.place(world.ranks() - 1);
      const GemmArPlan p = planGemmAr(shape, {}, 132);
      INFO(describe(p));
      const Wide slot = 64 * 64 * 4, peers = world.locals - 1, chunk = slot * p.chunks.chunkTiles;
      const Wide owned = p.maxOwned(), tiles = owned * p.chunks.chunkTiles;
      Wide end = tiles * peers * slot;
      CHECK(p.partial(p.maxOwned() * p.chunks.chunkTiles - 1, world.locals - 2, world.locals - 1) == end - slot);
      if (world.nodes > 1) {
        CHECK(p.nodeSum(p.maxOwned() - 1) == end + (owned - 1) * chunk);
        end += owned * chunk;
        const bool home = p.rail.exchange == Exchange::home;
        const Wide rows = home ? (owned + world.nodes - 1) / world.nodes : owned;
        end += rows * (world.nodes - 1) * chunk;
        CHECK(p.arrivedSum(p.maxOwned() - 1, world.nodes - 1, 0) == end - chunk);
        if (home) {
          CHECK(p.result(p.maxOwned() - 1) == end + (owned - 1) * chunk);
          end += owned * chunk;
        }
      }
      CHECK(p.stagedTile(p.grid.count() - 1) == end + Wide{p.grid.count() - 1} * slot);
      end += Wide{p.grid.count()} * slot;
      CHECK(p.dataBytes() == end);
      CHECK(p.dataBytes() > 0x100000000ull);
      CHECK(p.flagWords() < p.dataBytes());
      CHECK(HeapLayout::bankDataBytes(p.workspace()) >= p.dataBytes());
    }
  }
}

TEST_CASE("large results: owners, positions and their inverses") {
  for (const Size size : kSizes) {
    for (const World world : {World{1, 8}, World{1, 7}, World{4, 8}}) {
      const bool smallTiles = size.m == size.n;
      const GemmArPlan p = planOf(size.m, size.n, world.place(0), smallTiles ? 1 : 64, smallTiles ? 16 : 64);
      const ChunkMap& map = p.chunks;
      uint64_t chunks = 0, tiles = 0;
      for (uint32_t o = 0; o < world.locals; ++o) {
        chunks += map.ownedChunks(o);
        tiles += map.ownedTiles(o);
        MUST(map.ownedChunks(o) <= map.mostOwned() && map.ownedChunks(o) + 1 >= map.mostOwned(), describe(p));
      }
      MUST(chunks == map.chunks() && tiles == map.tiles, describe(p));
      for (uint64_t k = 0; k <= 1000; ++k) {
        const uint64_t tile = std::min(map.tiles - 1, map.tiles / 1000 * k + k);
        const uint64_t chunk = map.chunkOfTile(tile);
        const uint32_t owner = map.owner(chunk);
        MUST(owner < world.locals, describe(p) << ", tile " << tile);
        MUST(map.ownedChunk(owner, map.ownedIndex(chunk)) == chunk, describe(p) << ", tile " << tile);
        MUST(map.ownedTileIndex(tile) < map.ownedTiles(owner), describe(p) << ", tile " << tile);
        for (uint32_t local = 0; local < world.locals; ++local) {
          MUST(map.tileAt(local, map.positionOf(local, tile)) == tile, describe(p) << ", tile " << tile);
        }
      }
    }
  }
}

// Also that the figures are cheap enough to be asked for at every launch: with a walk over tiles this test takes minutes.
TEST_CASE("large results: bytes of the whole world") {
  for (const Size size : {kSizes[0], kSizes[1], kSizes[2]}) {
    for (const World world : {World{1, 8}, World{2, 2}, World{3, 1}}) {
      uint64_t net = 0, nvlink = 0;
      for (uint32_t rank = 0; rank < world.ranks(); ++rank) {
        const GemmArPlan p = planOf(size.m, size.n, world.place(rank));
        net += p.netBytesSent();
        nvlink += p.nvlinkBytesSent();
      }
      const uint64_t elements = size.m * size.n, n = world.nodes, l = world.locals;
      CHECK(net == (n == 1 ? 0 : n == 2 ? 2 * elements * 2 : (n - 1) * elements * 4));
      CHECK(nvlink == n * (l - 1) * elements * 4);
    }
  }
}

}  // namespace
}  // namespace mk::sched::test
