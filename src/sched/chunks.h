// Chunks and owners: consecutive tiles form a chunk, the unit of a network message, and every chunk has an owner among the
// local ranks, who sums the node's partial results of its tiles.
//
// Chunks are dealt out in waves of `window` chunks per owner.  Within a wave each owner has consecutive chunks, and each rank
// computes its peers' chunks first, beginning with the next rank's, and its own last.  So an owner's partial results arrive
// while it still computes for others.  With one node there is a single wave (the peers' share of the whole result first: the
// prototype's best order); with several, the window is small, so that node sums reach the network early.
#pragma once

#include "sched/common.h"

namespace mk::sched {

struct ChunkMap {
  uint64_t tiles = 0;
  uint32_t chunkTiles = 1;
  uint32_t locals = 1;
  uint64_t window = 1;  // chunks per owner and wave

  MK_HD constexpr uint64_t chunks() const { return ceilDiv(tiles, chunkTiles); }
  MK_HD constexpr uint64_t chunkOfTile(uint64_t tile) const { return tile / chunkTiles; }
  MK_HD constexpr uint64_t firstTile(uint64_t chunk) const { return chunk * chunkTiles; }
  MK_HD constexpr uint32_t tilesIn(uint64_t chunk) const {
    return static_cast<uint32_t>(smaller(chunkTiles, tiles - chunk * chunkTiles));
  }

  MK_HD constexpr uint32_t owner(uint64_t chunk) const {
    const uint64_t base = waveBase(chunk);
    return static_cast<uint32_t>(((chunk - base + 1) * locals - 1) / waveSize(base));
  }
  // Index of a chunk among its owner's.
  MK_HD constexpr uint64_t ownedIndex(uint64_t chunk) const {
    const uint64_t base = waveBase(chunk);
    return base / locals + (chunk - base - share(owner(chunk), waveSize(base)));
  }
  MK_HD constexpr uint64_t ownedChunk(uint32_t ownerRank, uint64_t index) const {
    const uint64_t base = index / window * window * locals;
    return base + share(ownerRank, waveSize(base)) + index % window;
  }
  MK_HD constexpr uint64_t ownedChunks(uint32_t ownerRank) const {
    const uint64_t full = chunks() / (window * locals);
    const uint64_t rest = chunks() - full * window * locals;
    return full * window + share(ownerRank + 1, rest) - share(ownerRank, rest);
  }
  // Most chunks any owner has.
  MK_HD constexpr uint64_t mostOwned() const {
    const uint64_t wave = window * locals;
    return chunks() / wave * window + ceilDiv(chunks() % wave, locals);
  }
  MK_HD constexpr uint64_t ownedTiles(uint32_t ownerRank) const {
    const uint64_t owned = ownedChunks(ownerRank);
    if (owned == 0) return 0;
    return (owned - 1) * chunkTiles + tilesIn(ownedChunk(ownerRank, owned - 1));
  }
  // Index of a tile among its owner's: places in the owner's bank.
  MK_HD constexpr uint64_t ownedTileIndex(uint64_t tile) const {
    return ownedIndex(chunkOfTile(tile)) * chunkTiles + tile % chunkTiles;
  }

  // The tile a rank computes at a position of its order, and the position of a tile.
  MK_HD constexpr uint64_t tileAt(uint32_t local, uint64_t position) const {
    const uint64_t waveTiles = window * locals * chunkTiles;
    const uint64_t base = position / waveTiles * waveTiles;
    const uint64_t count = smaller(waveTiles, tiles - base);
    return base + (startTile(local, base) + (position - base)) % count;
  }
  MK_HD constexpr uint64_t positionOf(uint32_t local, uint64_t tile) const {
    const uint64_t waveTiles = window * locals * chunkTiles;
    const uint64_t base = tile / waveTiles * waveTiles;
    const uint64_t count = smaller(waveTiles, tiles - base);
    return base + (tile - base + count - startTile(local, base)) % count;
  }

 private:
  MK_HD constexpr uint64_t waveBase(uint64_t chunk) const { return chunk / (window * locals) * window * locals; }
  MK_HD constexpr uint64_t waveSize(uint64_t base) const { return smaller(window * locals, chunks() - base); }
  MK_HD constexpr uint64_t share(uint64_t ownerRank, uint64_t size) const { return ownerRank * size / locals; }
  // First tile, within its wave, of the rank after `local`.
  MK_HD constexpr uint64_t startTile(uint32_t local, uint64_t waveTileBase) const {
    const uint64_t size = waveSize(waveTileBase / chunkTiles);
    return share((local + 1) % locals, size) * chunkTiles;
  }
};

}  // namespace mk::sched
