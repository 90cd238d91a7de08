// Plan of one GEMM+ReduceScatter: a pure function of the arguments and of what the ranks agreed on at initialisation.
//
// The M rows are dealt out to the ranks (sched/shards.h).  Within a node, local rank l collects the rows of its whole rail: of
// the ranks (n, l) of all nodes n.  It sends each other node its rows as chunks, and to its own rows adds what the others send.
// Each shard has a grid of tiles of its own, so no tile straddles two ranks' rows.  All shards but the last ones have the same
// number of tiles; every place and order is that of full shards, and what a shorter one lacks is passed over.
//
// Where shards have so few rows that this would take many more tiles than the whole product has, on one node, tiles span shards: of
// the whole product, in the same order on all ranks.  Of such a tile each rank sends each peer the rows that are that one's, and
// adds what comes to its own.
#pragma once

#include "sched/choice.h"
#include "sched/common.h"
#include "sched/hash.h"
#include "sched/heap_layout.h"
#include "sched/roles.h"
#include "sched/shards.h"
#include "sched/tiles.h"

namespace mk::sched {

// All of it but `place.node`, `place.local` must agree between ranks.
struct GemmRsShape {
  uint64_t m = 0, n = 0;
  uint32_t outBytes = 2;   // bytes of an element of C
  uint32_t wireBytes = 2;  // of an element that travels as a partial result
  Place place;
  RankMap ranks;
};

// One position of a rank's order; or the rows of a spanning tile that one rank collects.
struct GemmRsTile {
  bool exists = false;
  uint64_t tile = 0;  // number over all shards
  Tile shape;         // in rows of A
  uint64_t firstRow = 0;
  uint32_t node = 0, local = 0;  // whose rows they are, as a place
  bool mine = false;             // this rank collects them
  uint64_t index = 0;            // among the shard's tiles
  uint64_t chunk = 0;            // among the shard's chunks
};

struct GemmRsPlan {
  GemmRsShape shape;
  Shards shards;
  uint32_t tileM = 64, tileN = 64, groupRows = 8;
  uint32_t chunkTiles = 1;
  uint64_t shardTiles = 0, shardChunks = 0;  // of a full shard; spanning: of the whole product
  RoleCounts roles;
  // The own node's rows in units of so many tiles of each local rank, and by how many units own tiles lag behind.
  uint64_t ownUnit = 1, ownLag = 1;
  uint32_t parts = 1;  // flags per tile
  bool spanning = false;
  bool turned = false;  // spanning tiles are of the product transposed: their rows are columns of C

  MK_HD constexpr const Place& place() const { return shape.place; }
  MK_HD constexpr bool multiNode() const { return shape.place.nodes > 1; }

  // ---- Shards
  MK_HD constexpr TileGrid gridOf(uint32_t node, uint32_t local) const {
    TileGrid grid;
    grid.m = shards.rows(shape.ranks.rank(node, local));
    grid.n = shape.n;
    grid.tileM = tileM;
    grid.tileN = tileN;
    grid.groupRows = groupRows;
    return grid;
  }
  MK_HD constexpr uint64_t tilesOf(uint32_t node, uint32_t local) const { return gridOf(node, local).count(); }
  MK_HD constexpr uint64_t chunksOf(uint32_t node, uint32_t local) const {
    return ceilDiv(tilesOf(node, local), chunkTiles);
  }
  MK_HD constexpr uint32_t tilesIn(uint32_t node, uint32_t local, uint64_t chunk) const {
    return static_cast<uint32_t>(smaller(chunkTiles, tilesOf(node, local) - chunk * chunkTiles));
  }
  MK_HD constexpr uint64_t elementsOfShard(uint32_t node, uint32_t local) const {
    return shards.rows(shape.ranks.rank(node, local)) * shape.n;
  }
  MK_HD constexpr uint64_t elementsOfChunk(uint32_t node, uint32_t local, uint64_t chunk) const {
    const TileGrid grid = gridOf(node, local);
    return grid.elementsBelow((chunk + 1) * chunkTiles) - grid.elementsBelow(chunk * chunkTiles);
  }
  // Elements before a tile inside its packed chunk.
  MK_HD constexpr uint64_t elementsBefore(const GemmRsTile& t) const {
    const TileGrid grid = gridOf(t.node, t.local);
    return grid.elementsBelow(t.index) - grid.elementsBelow(t.chunk * chunkTiles);
  }
  MK_HD constexpr GemmRsTile tileOf(uint32_t node, uint32_t local, uint64_t index) const {
    const uint32_t rank = shape.ranks.rank(node, local);
    const TileGrid grid = gridOf(node, local);
    GemmRsTile t;
    t.exists = index < grid.count();
    t.tile = rank * shardTiles + index;
    t.node = node;
    t.local = local;
    t.mine = local == place().local;
    t.index = index;
    t.chunk = index / chunkTiles;
    t.firstRow = shards.first(rank);
    if (t.exists) {
      t.shape = grid.tile(index);
      t.shape.row += t.firstRow;
    }
    return t;
  }

  // ---- Spanning tiles, by position, which is their number.
  MK_HD constexpr TileGrid spanningGrid() const {
    TileGrid grid;
    grid.m = turned ? shape.n : shape.m;
    grid.n = turned ? shape.m : shape.n;
    grid.tileM = tileM;
    grid.tileN = tileN;
    grid.groupRows = groupRows;
    return grid;
  }
  MK_HD constexpr GemmRsTile spanningPart(uint64_t position, uint32_t local) const {
    const uint32_t rank = shape.ranks.rank(place().node, local);
    GemmRsTile t;
    t.tile = t.index = position;
    t.node = place().node;
    t.local = local;
    t.mine = local == place().local;
    t.firstRow = shards.first(rank);
    t.shape = spanningGrid().tile(position);
    uint64_t& first = turned ? t.shape.col : t.shape.row;
    uint32_t& count = turned ? t.shape.cols : t.shape.rows;
    const uint64_t begin = larger(first, t.firstRow);
    const uint64_t end = smaller(first + count, t.firstRow + shards.rows(rank));
    t.exists = begin < end;
    first = begin;
    count = t.exists ? static_cast<uint32_t>(end - begin) : 0;
    return t;
  }
  // Of all tiles, each in so many pieces of equal rows, those with some of this rank's; turned: a tile's pieces all have its rows.
  MK_HD constexpr uint64_t ownSpanningParts(uint32_t pieces) const {
    const uint32_t rank = shape.ranks.rank(place().node, place().local);
    const uint64_t first = shards.first(rank), last = first + shards.rows(rank) - 1;
    if (shards.rows(rank) == 0) return 0;
    if (turned) return spanningGrid().rowsOfTiles() * pieces * (last / tileN - first / tileN + 1);
    const uint64_t height = tileM / pieces;
    return spanningGrid().colsOfTiles() * (last / height - first / height + 1);
  }
  // As if one rank had all rows: its tiles are the spanning ones.
  MK_HD constexpr GemmRsPlan whole() const {
    GemmRsPlan p = *this;
    p.shape.place = Place{};
    p.shape.ranks = RankMap{};
    p.shape.m = spanningGrid().m;
    p.shape.n = spanningGrid().n;
    p.shards = Shards{p.shape.m, 1};
    p.ownUnit = larger(1, shardTiles);
    p.ownLag = 1;
    p.spanning = p.turned = false;
    return p;
  }

  // ---- A rank's order.  First the rows of the other nodes, the next one's first: so the nodes send to different ones at a
  // time.  For each, waves of one chunk of every local rank's rail, the next rank's first and this rank's own last: the first
  // node sums are complete after `locals` chunks.  Then the rows of this node, the peers' before the own: whole shards, so that
  // the partial results of own rows have had the longest time to arrive; or in units, an own one after each of the peers' once
  // these are `ownLag` units ahead, so that own rows are computed while the link is busy.  Whatever the units, each rank computes
  // its peers' tiles with a number before its own with the same; so they may differ between ranks.
  MK_HD constexpr uint64_t positions() const {
    return spanning ? shardTiles : place().nodes * place().locals * shardTiles;
  }
  MK_HD constexpr GemmRsTile at(uint64_t position) const {
    const uint64_t perNode = place().locals * shardTiles;
    const uint64_t step = position / perNode;
    const uint32_t node = target(static_cast<uint32_t>(step));
    const uint64_t inNode = position - step * perNode;
    if (node == place().node) return atOwn(inNode);
    const uint64_t first =
        inNode / (chunkTiles * place().locals) * chunkTiles;  // tile of a shard where the wave begins
    const uint64_t size = smaller(chunkTiles, shardTiles - first);
    const uint64_t inWave = inNode - first * place().locals;
    return tileOf(node, turnOf(inWave / size), first + inWave % size);
  }
  MK_HD constexpr uint64_t ownUnits() const { return ceilDiv(shardTiles, ownUnit); }
  // Peers' tiles before the first own one, and tiles before those own ones that come last, with no peers' between.
  MK_HD constexpr uint64_t ownLead() const { return smaller(ownLag * ownUnit, shardTiles) * (place().locals - 1); }
  MK_HD constexpr uint64_t ownTail() const {
    return shardTiles * (place().locals - 1) + (ownUnits() - smaller(ownLag, ownUnits())) * ownUnit;
  }
  MK_HD constexpr GemmRsTile atOwn(uint64_t x) const {
    const Place& at = place();
    const uint64_t peers = at.locals - 1;
    if (x >= ownTail()) return tileOf(at.node, at.local, x - peers * shardTiles);
    uint64_t first = 0;  // tile of a shard where the unit begins
    if (x < ownLead()) {
      first = x / (peers * ownUnit) * ownUnit;
      x -= first * peers;
    } else {
      const uint64_t period = (x - ownLead()) / (at.locals * ownUnit);
      x -= ownLead() + period * at.locals * ownUnit;
      if (x < ownUnit) return tileOf(at.node, at.local, period * ownUnit + x);
      first = (ownLag + period) * ownUnit;
      x -= ownUnit;
    }
    const uint64_t size = smaller(ownUnit, shardTiles - first);
    return tileOf(at.node, turnOf(x / size), first + x % size);
  }
  // The local rank so many after the next.
  MK_HD constexpr uint32_t turnOf(uint64_t turn) const {
    return static_cast<uint32_t>((place().local + 1 + turn) % place().locals);
  }
  // The other nodes, the next one first; behind them, at step nodes - 1, this one.
  MK_HD constexpr uint32_t target(uint32_t step) const { return (place().node + 1 + step) % place().nodes; }

  // ---- Places in the data part of a bank (offsets from its start).  The same formula for every owner.
  MK_HD constexpr uint64_t slotBytes() const { return uint64_t{tileM} * tileN * shape.wireBytes; }
  MK_HD constexpr uint64_t chunkBytes() const { return chunkTiles * slotBytes(); }
  // A tile, or a chunk, among all of its rail.
  MK_HD constexpr uint64_t railTile(const GemmRsTile& t) const { return t.node * shardTiles + t.index; }
  MK_HD constexpr uint64_t railChunk(uint32_t node, uint64_t chunk) const { return node * shardChunks + chunk; }
  // Partial result from local rank `from`, at the local rank that collects the tile.
  MK_HD constexpr uint64_t partial(const GemmRsTile& t, uint32_t from) const {
    return (railTile(t) * (place().locals - 1) + skipSelf(from, t.local)) * slotBytes();
  }
  MK_HD constexpr uint64_t nodeSumBase() const {
    return place().nodes * shardTiles * (place().locals - 1) * slotBytes();
  }
  // This node's sum of a chunk of the rail: packed tiles, one after the other.
  MK_HD constexpr uint64_t nodeSum(uint32_t node, uint64_t chunk) const {
    return nodeSumBase() + railChunk(node, chunk) * chunkBytes();
  }
  MK_HD constexpr uint64_t arrivedBase() const {
    return nodeSumBase() + (multiNode() ? place().nodes * shardChunks * chunkBytes() : 0);
  }
  // Where the sum of node `from` lands at node `at`, whose rows they are.
  MK_HD constexpr uint64_t arrivedSum(uint64_t chunk, uint32_t from, uint32_t at) const {
    return arrivedBase() + (chunk * (place().nodes - 1) + skipSelf(from, at)) * chunkBytes();
  }
  MK_HD constexpr uint64_t dataBytes() const {
    return arrivedBase() + shardChunks * (place().nodes - 1) * chunkBytes();
  }

  // ---- Flags of a bank, in words from its start.  Arrivals of the network come first (see arrivalFlag).
  MK_HD constexpr uint64_t slot(uint64_t chunk) const { return kControlSlots + chunk; }
  MK_HD constexpr uint64_t arrivalWords() const { return multiNode() ? shardChunks * place().nodes : 0; }
  // Raised at the collecting rank by `from`: that part of its partial result is there.
  MK_HD constexpr uint64_t partialFlag(const GemmRsTile& t, uint32_t from, uint32_t part = 0) const {
    return arrivalWords() + (railTile(t) * (place().locals - 1) + skipSelf(from, t.local)) * parts + part;
  }
  MK_HD constexpr uint64_t nodeSumFlagBase() const {
    return arrivalWords() + place().nodes * shardTiles * (place().locals - 1) * parts;
  }
  // Raised by the last tile of a chunk, for this rank's own agents: the node sum is complete.
  MK_HD constexpr uint64_t nodeSumFlag(uint32_t node, uint64_t chunk) const {
    return nodeSumFlagBase() + railChunk(node, chunk);
  }
  MK_HD constexpr uint64_t flagWords() const {
    return nodeSumFlagBase() + (multiNode() ? place().nodes * shardChunks : 0);
  }

  // ---- Counters of a launch in the rank's private memory, by railChunk(): tiles still missing in each node sum.
  MK_HD constexpr uint64_t counterWords() const { return multiNode() ? place().nodes * shardChunks : 0; }

  MK_HD constexpr uint64_t workspace() const { return HeapLayout::workspaceFor(flagWords() * 8, dataBytes()); }

  // ---- Traffic of this rank, payload only.
  // The rows of the rail's other ranks: (N-1)/N of the rail's share of the result.
  MK_HD constexpr uint64_t netBytesSent() const {
    uint64_t elements = 0;
    for (uint32_t s = 0; s + 1 < place().nodes; ++s) elements += elementsOfShard(target(s), place().local);
    return elements * shape.wireBytes;
  }
  MK_HD constexpr uint64_t netMessagesSent() const {
    uint64_t chunks = 0;
    for (uint32_t s = 0; s + 1 < place().nodes; ++s) chunks += chunksOf(target(s), place().local);
    return chunks;
  }
  // Partial results of the rows that local peers collect.
  MK_HD constexpr uint64_t nvlinkBytesSent() const {
    uint64_t elements = shape.m * shape.n;
    for (uint32_t n = 0; n < place().nodes; ++n) elements -= elementsOfShard(n, place().local);
    return elements * shape.wireBytes;
  }

  // Hash over the plan; the caller adds what else must agree.
  MK_HD constexpr PlanHash hash() const {
    PlanHash h;
    h.add(shape.m).add(shape.n).add(shape.outBytes).add(shape.wireBytes);
    h.add(shape.place.nodes).add(shape.place.locals);
    h.add(tileM).add(tileN).add(groupRows).add(chunkTiles).add(parts).add(spanning ? 1 : 0).add(turned ? 1 : 0);
    return h;
  }
};

// Makes the plan.  `agents`: how many agents an operation may occupy.  Choices must have been checked (legal values or 0).
MK_HD constexpr GemmRsPlan planGemmRs(const GemmRsShape& shape, const GemmChoice& choice, uint32_t agents) {
  GemmRsPlan p;
  p.shape = shape;
  const uint32_t nodes = shape.place.nodes;
  p.shards.m = shape.m;
  p.shards.ranks = nodes * shape.place.locals;
  if (choice.tileM != 0) p.tileM = choice.tileM;
  if (choice.tileN != 0) p.tileN = choice.tileN;
  p.spanning = choice.spanning == Spanning::byShape ? tilesBetterSpan(p.shards, nodes, p.tileM)
                                                    : nodes == 1 && choice.spanning == Spanning::always;
  p.turned = p.spanning && choice.turned;
  p.shardTiles =
      p.spanning ? p.spanningGrid().count() : ceilDiv(p.shards.height(), p.tileM) * ceilDiv(shape.n, p.tileN);
  uint64_t chunkTiles = 1;
  if (nodes > 1) {
    // Four tiles (256 KiB for tiles of 128 x 256 bf16), fewer where a shard would have less than four chunks.
    chunkTiles = choice.chunkTiles != 0 ? choice.chunkTiles : smaller(4, larger(1, p.shardTiles / 4));
    // A rank's counters, and the slots of a notification, are 2^20: larger results travel in larger chunks.
    while (nodes * ceilDiv(p.shardTiles, chunkTiles) > kMaxSlots - kControlSlots) chunkTiles *= 2;
  }
  p.chunkTiles = static_cast<uint32_t>(chunkTiles);
  p.shardChunks = ceilDiv(p.shardTiles, chunkTiles);
  p.ownUnit = larger(1, choice.ownUnit != 0 ? smaller(choice.ownUnit, p.shardTiles) : p.shardTiles);
  p.ownLag = smaller(larger(1, choice.ownLag), larger(1, p.ownUnits()));
  p.parts = choice.parts != 0 ? choice.parts : 1;
  p.roles.send = nodes > 1 ? 1 : 0;
  p.roles.receive = nodes > 1 ? (choice.receiveAgents != 0 ? choice.receiveAgents : 1) : 0;
  const uint32_t others = p.roles.total() - p.roles.compute;
  p.roles.compute = choice.computeAgents != 0 ? choice.computeAgents : (agents > others ? agents - others : 1);
  return p;
}

}  // namespace mk::sched
