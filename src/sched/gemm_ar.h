// Plan of one GEMM+AllReduce: everything about who does what, a pure function of the arguments and of what the ranks agreed on
// at initialisation.  Where things lie in a bank, which flags announce them, how many bytes cross which link.
#pragma once

#include "sched/choice.h"
#include "sched/chunks.h"
#include "sched/common.h"
#include "sched/hash.h"
#include "sched/heap_layout.h"
#include "sched/rails.h"
#include "sched/roles.h"
#include "sched/tiles.h"

namespace mk::sched {

// What the plan depends on.  All of it but `place.node`, `place.local` must agree between ranks.
struct GemmArShape {
  uint64_t m = 0, n = 0;
  uint32_t outBytes = 2;   // bytes of an element of C
  uint32_t wireBytes = 2;  // of an element that travels as a partial result
  bool staged = false;     // C is not in a window: finished tiles pass through the heap
  Place place;
};

struct GemmArPlan {
  GemmArShape shape;
  TileGrid grid;
  ChunkMap chunks;
  Rail rail;
  RoleCounts roles;
  uint32_t parts = 1;  // flags per tile

  MK_HD constexpr const Place& place() const { return shape.place; }
  MK_HD constexpr bool multiNode() const { return shape.place.nodes > 1; }
  MK_HD constexpr bool staged() const { return shape.staged && shape.place.locals > 1; }
  MK_HD constexpr uint64_t owned() const { return chunks.ownedChunks(place().local); }
  MK_HD constexpr uint64_t ownedTiles() const { return chunks.ownedTiles(place().local); }

  // ---- Places in the data part of a bank (offsets from its start).  The same formula for every owner.
  MK_HD constexpr uint64_t slotBytes() const { return uint64_t{grid.tileM} * grid.tileN * shape.wireBytes; }
  MK_HD constexpr uint64_t outSlotBytes() const { return uint64_t{grid.tileM} * grid.tileN * shape.outBytes; }
  MK_HD constexpr uint64_t chunkBytes() const { return chunks.chunkTiles * slotBytes(); }
  MK_HD constexpr uint64_t outChunkBytes() const { return chunks.chunkTiles * outSlotBytes(); }
  // Most chunks any owner has.
  MK_HD constexpr uint64_t maxOwned() const { return chunks.mostOwned(); }

  // Partial result of owned tile `ownedTile` from local rank `from`, at its owner `owner`.
  MK_HD constexpr uint64_t partial(uint64_t ownedTile, uint32_t from, uint32_t owner) const {
    return (ownedTile * (place().locals - 1) + skipSelf(from, owner)) * slotBytes();
  }
  MK_HD constexpr uint64_t nodeSumBase() const {
    return place().locals > 1 ? maxOwned() * chunks.chunkTiles * (place().locals - 1) * slotBytes() : 0;
  }
  // This node's sum of owned chunk `index`: packed tiles, one after the other.
  MK_HD constexpr uint64_t nodeSum(uint64_t index) const { return nodeSumBase() + index * chunkBytes(); }
  MK_HD constexpr uint64_t arrivedBase() const { return nodeSumBase() + (multiNode() ? maxOwned() * chunkBytes() : 0); }
  // Where the sum of node `from` lands at node `at`, if that node sums this chunk.
  MK_HD constexpr uint64_t arrivedSum(uint64_t index, uint32_t from, uint32_t at) const {
    const uint64_t row = rail.exchange == Exchange::swap ? index : rail.homeIndex(index);
    return arrivedBase() + (row * (place().nodes - 1) + skipSelf(from, at)) * chunkBytes();
  }
  MK_HD constexpr uint64_t resultBase() const {
    if (!multiNode()) return arrivedBase();
    const uint64_t rows = rail.exchange == Exchange::swap ? maxOwned() : ceilDiv(maxOwned(), place().nodes);
    return arrivedBase() + rows * (place().nodes - 1) * chunkBytes();
  }
  // The finished owned chunk `index` (exchange home): at its home the source, elsewhere where it lands.
  MK_HD constexpr uint64_t result(uint64_t index) const { return resultBase() + index * outChunkBytes(); }
  MK_HD constexpr uint64_t stageBase() const {
    return resultBase() + (multiNode() && rail.exchange == Exchange::home ? maxOwned() * outChunkBytes() : 0);
  }
  // Where a peer's finished tile waits to be copied to an ordinary C.
  MK_HD constexpr uint64_t stagedTile(uint64_t tile) const { return stageBase() + tile * outSlotBytes(); }
  MK_HD constexpr uint64_t dataBytes() const { return stageBase() + (staged() ? grid.count() * outSlotBytes() : 0); }

  // Elements before a tile inside its packed chunk, of a whole chunk, and of all chunks this rank owns.
  MK_HD constexpr uint64_t elementsBefore(uint64_t tile) const {
    return grid.elementsBelow(tile) - grid.elementsBelow(chunks.firstTile(chunks.chunkOfTile(tile)));
  }
  MK_HD constexpr uint64_t elementsOfChunk(uint64_t chunk) const { return elementsOfChunks(chunk, chunk); }
  MK_HD constexpr uint64_t elementsOfChunks(uint64_t first, uint64_t last) const {
    return grid.elementsBelow(chunks.firstTile(last) + chunks.tilesIn(last)) -
           grid.elementsBelow(chunks.firstTile(first));
  }
  MK_HD constexpr uint64_t ownedElements() const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < owned(); i += chunks.window) {  // an owner's chunks of one wave are consecutive
      const uint64_t last = smaller(i + chunks.window, owned()) - 1;
      sum += elementsOfChunks(chunks.ownedChunk(place().local, i), chunks.ownedChunk(place().local, last));
    }
    return sum;
  }

  // ---- Flags of a bank, in words from its start.  Arrivals of the network come first (see arrivalFlag).
  MK_HD constexpr uint64_t slot(uint64_t index) const { return kControlSlots + index; }
  MK_HD constexpr uint64_t arrivalWords() const { return multiNode() ? maxOwned() * place().nodes : 0; }
  // Raised at the owner by `from`: that part of its partial result is there.
  MK_HD constexpr uint64_t partialFlag(uint64_t ownedTile, uint32_t from, uint32_t owner, uint32_t part = 0) const {
    return arrivalWords() + (ownedTile * (place().locals - 1) + skipSelf(from, owner)) * parts + part;
  }
  MK_HD constexpr uint64_t nodeSumFlagBase() const {
    return arrivalWords() + maxOwned() * chunks.chunkTiles * (place().locals - 1) * parts;
  }
  // Raised by the last tile of an owned chunk, for this rank's own agents: the node sum is complete.
  MK_HD constexpr uint64_t nodeSumFlag(uint64_t index) const { return nodeSumFlagBase() + index; }
  MK_HD constexpr uint64_t outFlagBase() const { return nodeSumFlagBase() + (multiNode() ? maxOwned() : 0); }
  // Raised by owner `from`: all its finished tiles are in my window.
  MK_HD constexpr uint64_t outFlag(uint32_t from) const { return outFlagBase() + from; }
  MK_HD constexpr uint64_t stagedFlagBase() const { return outFlagBase() + place().locals; }
  // Raised by a tile's owner: that part of the finished tile is in my stage.  With several nodes one agent finishes a tile.
  MK_HD constexpr uint32_t stagedParts() const { return multiNode() ? 1 : parts; }
  MK_HD constexpr uint64_t stagedFlag(uint64_t tile, uint32_t part = 0) const {
    return stagedFlagBase() + tile * stagedParts() + part;
  }
  MK_HD constexpr uint64_t flagWords() const {
    return stagedFlagBase() + (staged() ? grid.count() * stagedParts() : 0);
  }

  // ---- Counters of a launch in the rank's private memory, after those every operation has: tiles still missing in each
  // owned chunk's node sum.
  MK_HD constexpr uint64_t counterWords() const { return multiNode() ? owned() : 0; }

  MK_HD constexpr uint64_t workspace() const { return HeapLayout::workspaceFor(flagWords() * 8, dataBytes()); }

  // ---- Traffic of this rank, payload only.
  MK_HD constexpr uint64_t netBytesSent() const {
    if (!multiNode()) return 0;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < owned(); ++i) {
      const uint64_t elements = elementsOfChunk(chunks.ownedChunk(place().local, i));
      if (rail.exchange == Exchange::swap) {
        bytes += elements * shape.wireBytes * (place().nodes - 1);
      } else if (rail.home(i, place().local) == place().node) {
        bytes += elements * shape.outBytes * (place().nodes - 1);
      } else {
        bytes += elements * shape.wireBytes;
      }
    }
    return bytes;
  }
  MK_HD constexpr uint64_t netMessagesSent() const {
    if (!multiNode()) return 0;
    if (rail.exchange == Exchange::swap) return owned() * (place().nodes - 1);
    const uint64_t homes = rail.homeChunks(owned(), place().local, place().node);
    return homes * (place().nodes - 1) + (owned() - homes);
  }
  // Stored to local peers: partial results of their tiles, and my finished tiles to each of them.
  MK_HD constexpr uint64_t nvlinkBytesSent() const {
    const uint64_t mine = ownedElements();
    const uint64_t all = shape.m * shape.n;
    return (all - mine) * shape.wireBytes + mine * shape.outBytes * (place().locals - 1);
  }

  // Hash over the plan; the caller adds what else must agree (dtypes, scalars, window).
  MK_HD constexpr PlanHash hash() const {
    PlanHash h;
    h.add(shape.m).add(shape.n).add(shape.outBytes).add(shape.wireBytes).add(shape.staged ? 1 : 0);
    h.add(shape.place.nodes).add(shape.place.locals);
    h.add(grid.tileM).add(grid.tileN).add(grid.groupRows).add(chunks.chunkTiles).add(chunks.window);
    h.add(static_cast<uint64_t>(rail.exchange)).add(parts);
    return h;
  }
};

MK_HD constexpr double gemmFlops(uint64_t m, uint64_t n, uint64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// Makes the plan.  `agents`: how many agents an operation may occupy.  Choices must have been checked (legal values or 0).
MK_HD constexpr GemmArPlan planGemmAr(const GemmArShape& shape, const GemmChoice& choice, uint32_t agents) {
  GemmArPlan p;
  p.shape = shape;
  p.grid.m = shape.m;
  p.grid.n = shape.n;
  p.grid.tileM = choice.tileM != 0 ? choice.tileM : 64;
  p.grid.tileN = choice.tileN != 0 ? choice.tileN : 64;
  const uint32_t nodes = shape.place.nodes;
  const uint32_t locals = shape.place.locals;
  const uint64_t tiles = shape.m == 0 || shape.n == 0 ? 0 : p.grid.count();

  p.rail.nodes = nodes;
  p.rail.exchange = choice.exchange != 0 ? static_cast<Exchange>(choice.exchange)
                    : nodes <= 2         ? Exchange::swap
                                         : Exchange::home;

  p.chunks.tiles = tiles;
  p.chunks.locals = locals;
  uint64_t chunkTiles = choice.chunkTiles;
  if (nodes == 1) {
    chunkTiles = 1;  // no messages: the unit of ownership is a tile
  } else {
    // Four tiles (512 KiB for tiles of 256 x 256 bf16), fewer where each owner would have less than four chunks per node, up to
    // eight where it has more than 32 chunks still: what each chunk costs beside its bytes is then the rest.
    const uint64_t each = larger(1, tiles / larger(1, uint64_t{locals} * nodes));
    if (chunkTiles == 0) chunkTiles = larger(1, larger(smaller(4, each / 4), smaller(8, each / 32)));
    // A notification has room for 2^20 slots: larger results travel in larger chunks.
    while (ceilDiv(ceilDiv(tiles, chunkTiles), locals) > kMaxSlots - kControlSlots) chunkTiles *= 2;
  }
  p.chunks.chunkTiles = static_cast<uint32_t>(chunkTiles);
  p.chunks.window = nodes == 1 ? larger(1, ceilDiv(p.chunks.chunks(), locals)) : 1;

  p.parts = choice.parts != 0 ? choice.parts : 1;
  p.roles.send = nodes > 1 ? 1 : 0;
  p.roles.receive = nodes > 1 ? (choice.receiveAgents != 0 ? choice.receiveAgents : 1) : 0;
  p.roles.copyOut = p.staged() ? 1 : 0;
  const uint32_t others = p.roles.total() - p.roles.compute;
  const uint32_t wanted = choice.computeAgents != 0 ? choice.computeAgents : (agents > others ? agents - others : 1);
  p.roles.compute = wanted;
  return p;
}

}  // namespace mk::sched
