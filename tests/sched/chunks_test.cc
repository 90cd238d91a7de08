// Properties of ChunkMap: one owner per chunk, balanced; both ways between chunk and owner's index, and between tile and
// position in a rank's order; what of that order the absence of deadlocks rests on.
#include <algorithm>

#include "must.h"

namespace mk::sched::test {
namespace {

// Calls visit(map): owners 1..8, chunks of 1..5 tiles, small windows and one that takes everything, 0 to 130 tiles.
template <typename Visit>
void forMaps(const Visit& visit) {
  for (uint32_t locals = 1; locals <= 8; ++locals) {
    for (uint32_t chunkTiles = 1; chunkTiles <= 5; ++chunkTiles) {
      for (uint64_t window : {1u, 2u, 3u, 0u}) {
        for (uint64_t tiles = 0; tiles <= 130; ++tiles) {
          ChunkMap map{tiles, chunkTiles, locals, 1};
          map.window = window != 0 ? window : larger(1, ceilDiv(map.chunks(), locals));
          visit(map);
        }
      }
    }
  }
}

TEST_CASE("chunks are consecutive tiles, all of them, of full size but the last") {
  forMaps([](const ChunkMap& map) {
    uint64_t tile = 0;
    for (uint64_t c = 0; c < map.chunks(); ++c) {
      MUST(map.firstTile(c) == tile, describe(map) << ", chunk " << c);
      MUST(map.tilesIn(c) >= 1 && map.tilesIn(c) <= map.chunkTiles, describe(map) << ", chunk " << c);
      MUST(map.tilesIn(c) == map.chunkTiles || c + 1 == map.chunks(), describe(map) << ", chunk " << c);
      for (uint32_t i = 0; i < map.tilesIn(c); ++i, ++tile) {
        MUST(map.chunkOfTile(tile) == c, describe(map) << ", tile " << tile);
      }
    }
    MUST(tile == map.tiles, describe(map));
  });
}

TEST_CASE("every chunk has one owner, who finds it by its index") {
  forMaps([](const ChunkMap& map) {
    const Deal deal(map);
    MUST(deal.owner.size() == map.chunks(), describe(map));
    std::vector<uint64_t> ownedChunks(map.locals, 0), ownedTiles(map.locals, 0);
    for (uint64_t c = 0; c < map.chunks(); ++c) {
      const uint32_t owner = map.owner(c);
      MUST(owner == deal.owner[c], describe(map) << ", chunk " << c);
      MUST(map.ownedIndex(c) == deal.index[c], describe(map) << ", chunk " << c);
      MUST(map.ownedChunk(owner, map.ownedIndex(c)) == c, describe(map) << ", chunk " << c);
      for (uint32_t i = 0; i < map.tilesIn(c); ++i) {
        const uint64_t place = map.ownedTileIndex(map.firstTile(c) + i);
        MUST(place == deal.index[c] * map.chunkTiles + i, describe(map) << ", chunk " << c << ", tile " << i);
        // Places of an owner's tiles have no gaps: only its last chunk can be short.
        MUST(place == ownedTiles[owner] + i, describe(map) << ", chunk " << c << ", tile " << i);
      }
      ++ownedChunks[owner];
      ownedTiles[owner] += map.tilesIn(c);
    }
    for (uint32_t o = 0; o < map.locals; ++o) {
      MUST(map.ownedChunks(o) == ownedChunks[o], describe(map) << ", owner " << o);
      MUST(map.ownedTiles(o) == ownedTiles[o], describe(map) << ", owner " << o);
      for (uint64_t i = 0; i < ownedChunks[o]; ++i) {
        const uint64_t c = map.ownedChunk(o, i);
        MUST(c < map.chunks(), describe(map) << ", owner " << o << ", index " << i);
        MUST(map.owner(c) == o && map.ownedIndex(c) == i, describe(map) << ", owner " << o << ", index " << i);
        MUST(i == 0 || map.ownedChunk(o, i - 1) < c, describe(map) << ", owner " << o << ", index " << i);
      }
    }
  });
}

TEST_CASE("owners differ by at most one chunk") {
  forMaps([](const ChunkMap& map) {
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t o = 0; o < map.locals; ++o) {
      least = std::min(least, map.ownedChunks(o));
      most = std::max(most, map.ownedChunks(o));
    }
    MUST(most - least <= 1, describe(map));
    MUST(map.mostOwned() == most, describe(map));
  });
}

TEST_CASE("every rank computes every tile once, and position and tile are each other's inverse") {
  forMaps([](const ChunkMap& map) {
    for (uint32_t local = 0; local < map.locals; ++local) {
      std::vector<int> seen(map.tiles, 0);
      for (uint64_t p = 0; p < map.tiles; ++p) {
        const uint64_t tile = map.tileAt(local, p);
        MUST(tile < map.tiles, describe(map) << ", rank " << local << ", position " << p);
        MUST(seen[tile]++ == 0, describe(map) << ", rank " << local << ", tile " << tile);
        MUST(map.positionOf(local, tile) == p, describe(map) << ", rank " << local << ", tile " << tile);
      }
    }
  });
}

// The order within a wave: the next rank's chunks, those of the one after, ..., the rank's own.
TEST_CASE("in each wave a rank computes its peers' tiles first, the next rank's at once, its own last") {
  forMaps([](const ChunkMap& map) {
    const uint64_t waveTiles = map.window * map.locals * map.chunkTiles;
    for (uint32_t local = 0; local < map.locals; ++local) {
      for (uint64_t p = 0; p < map.tiles; ++p) {
        const uint64_t tile = map.tileAt(local, p);
        MUST(tile / waveTiles == p / waveTiles, describe(map) << ", rank " << local << ", position " << p);
        if (p % waveTiles == 0) continue;
        const uint64_t before = map.tileAt(local, p - 1);
        const uint32_t turn = (map.owner(map.chunkOfTile(tile)) + map.locals - local - 1) % map.locals;
        const uint32_t turnBefore = (map.owner(map.chunkOfTile(before)) + map.locals - local - 1) % map.locals;
        MUST(turnBefore <= turn, describe(map) << ", rank " << local << ", position " << p);
        MUST(turn != turnBefore || tile == before + 1, describe(map) << ", rank " << local << ", position " << p);
      }
    }
  });
}

// Why no task waits for a later one: a rank waits only at its own tiles, for its peers' partial results of them.  Each peer
// computes those in the same wave (the same range of positions on all ranks) and before any own tile of that wave, hence
// before anything in that wave at which it waits itself.  By induction over the waves every rank reaches the end.
TEST_CASE("what a rank waits for, its peers compute before they wait in that wave") {
  forMaps([](const ChunkMap& map) {
    const uint64_t waveTiles = map.window * map.locals * map.chunkTiles;
    // First position in each wave at which a rank waits.
    std::vector<std::vector<uint64_t>> firstWait(map.locals,
                                                 std::vector<uint64_t>(ceilDiv(map.tiles, waveTiles), UINT64_MAX));
    for (uint32_t local = 0; local < map.locals; ++local) {
      for (uint64_t p = map.tiles; p-- > 0;) {
        if (map.owner(map.chunkOfTile(map.tileAt(local, p))) == local) firstWait[local][p / waveTiles] = p;
      }
    }
    for (uint64_t tile = 0; tile < map.tiles; ++tile) {
      const uint32_t owner = map.owner(map.chunkOfTile(tile));
      const uint64_t wave = map.positionOf(owner, tile) / waveTiles;
      for (uint32_t peer = 0; peer < map.locals; ++peer) {
        if (peer == owner) continue;
        const uint64_t p = map.positionOf(peer, tile);
        MUST(p / waveTiles == wave, describe(map) << ", tile " << tile << ", peer " << peer);
        MUST(p < firstWait[peer][wave], describe(map) << ", tile " << tile << ", peer " << peer);
      }
    }
  });
}

}  // namespace
}  // namespace mk::sched::test
