// Plan of one AllGather+GEMM: a pure function of the arguments and of what the ranks agreed on at initialisation.  Every rank's
// rows of A, its shard, go to all others in chunks of rows; who moves which chunk in which order, where it lies, which flag
// announces it, which tiles of C wait for it.
//
// A shard travels once to each other node, along its rail, and from there to the node's other ranks.  Chunks reach a rank in one
// order whatever the exchange: the local ranks before it, nearest first, shard by shard (they come at full rate one after the
// other); then the nodes before it, nearest first, all shards of a node side by side (they come over one network card each).
// Tiles are computed in that order.
//
// A tile has rows of one shard, unless that would leave tiles mostly empty: on one node, where shards have few rows, tiles are
// those of the whole A and span shards.  They are computed from rows that all lie in one matrix, in the own bank or in a window:
// so this rank's own rows go there too, announced by flags as its peers' are.
#pragma once

#include "sched/choice.h"
#include "sched/common.h"
#include "sched/hash.h"
#include "sched/heap_layout.h"
#include "sched/rails.h"
#include "sched/roles.h"
#include "sched/shards.h"
#include "sched/tiles.h"

namespace mk::sched {

// Where the caller wants the whole A.
enum class Gathered : uint32_t { none, memory, window };

// m, k, inBytes, and whether `gathered` is a window, must agree between ranks; the rest is each rank's own.
struct AgGemmShape {
  uint64_t m = 0, k = 0;  // of the whole A
  uint64_t n = 0;         // columns of this rank's B and C
  uint32_t inBytes = 2;   // bytes of an element of A
  Gathered gathered = Gathered::none;
  Place place;
  RankMap ranks;
};

struct Shard {
  uint32_t node = 0, local = 0;  // whose it is
  uint32_t rank = 0;             // globally
};

struct AgGemmPlan {
  AgGemmShape shape;
  Shards shards;
  uint32_t tileM = 1, tileN = 1;
  uint32_t groupRows = 8;
  uint64_t chunkRows = 1;
  // On one node chunks may travel in slices of so many columns: those of all chunks of a group, then the next.  So tiles
  // whose rows are not all there can be begun, and all that are under way end soon after the last slice.
  uint64_t sliceCols = 0;    // 0: whole rows
  uint64_t groupChunks = 1;  // each rank's own affair
  bool spanning = false;     // tiles are of the whole A: likewise
  bool turned =
      false;  // tiles are of the product transposed, whose rows are columns of C: likewise; spanning, or of one rank
  Exchange exchange = Exchange::direct;
  RoleCounts roles;

  MK_HD constexpr const Place& place() const { return shape.place; }
  MK_HD constexpr bool multiNode() const { return place().nodes > 1; }
  MK_HD constexpr bool windowed() const { return shape.gathered == Gathered::window; }
  MK_HD constexpr uint64_t rowBytes() const { return shape.k * shape.inBytes; }

  // ---- Shards and their chunks.
  MK_HD constexpr Shard shard(uint32_t node, uint32_t local) const {
    return Shard{node, local, shape.ranks.rank(node, local)};
  }
  MK_HD constexpr Shard mine() const { return shard(place().node, place().local); }
  // Of the node, and of the local rank, so many places before mine: where rows come from, in the order in which they come.
  MK_HD constexpr uint32_t nodeBefore(uint32_t distance) const {
    return (place().node + place().nodes - distance) % place().nodes;
  }
  MK_HD constexpr uint32_t localBefore(uint32_t distance) const {
    return (place().local + place().locals - distance) % place().locals;
  }
  // How many places before mine a node is: nodeBefore()'s inverse.
  MK_HD constexpr uint32_t distanceTo(uint32_t node) const {
    return (place().node + place().nodes - node) % place().nodes;
  }
  MK_HD constexpr bool onMyRail(const Shard& s) const { return s.local == place().local; }
  MK_HD constexpr bool isMine(const Shard& s) const { return onMyRail(s) && s.node == place().node; }
  // The whole A as if it were one shard, of nobody's: where tiles span shards, on one node.  Its chunks are numbered over all
  // shards, of which only the last that has rows can have fewer than the others.
  MK_HD constexpr Shard wholeA() const { return Shard{0, place().locals, 0}; }
  MK_HD constexpr bool isWholeA(const Shard& s) const { return s.local == place().locals; }
  MK_HD constexpr uint64_t chunkNumber(uint64_t row) const {
    const uint64_t rank = row / shards.height();
    return rank * mostChunks() + (row - rank * shards.height()) / chunkRows;
  }
  MK_HD constexpr uint32_t rankOfChunk(uint64_t number) const { return static_cast<uint32_t>(number / mostChunks()); }

  // An A without columns is nobody's to send.
  MK_HD constexpr uint64_t chunksOf(uint64_t rows) const { return shape.k == 0 ? 0 : ceilDiv(rows, chunkRows); }
  MK_HD constexpr uint64_t chunks(const Shard& s) const { return chunksOf(shards.rows(s.rank)); }
  MK_HD constexpr uint64_t mostChunks() const { return chunksOf(shards.height()); }
  MK_HD constexpr uint64_t chunkRow(uint64_t chunk) const { return chunk * chunkRows; }  // within its shard
  MK_HD constexpr uint64_t rowsIn(const Shard& s, uint64_t chunk) const {
    return smaller(chunkRows, shards.rows(s.rank) - chunkRow(chunk));
  }
  MK_HD constexpr uint64_t chunkBytes(const Shard& s, uint64_t chunk) const { return rowsIn(s, chunk) * rowBytes(); }

  MK_HD constexpr uint64_t slices() const { return sliceCols == 0 ? 1 : larger(1, ceilDiv(shape.k, sliceCols)); }

  MK_HD constexpr uint64_t sliceCol(uint64_t slice) const { return slice * sliceCols; }
  MK_HD constexpr uint64_t colsIn(uint64_t slice) const {
    return slices() == 1 ? shape.k : smaller(sliceCols, shape.k - sliceCol(slice));
  }

  // ---- Places in the data part of a bank (offsets from its start): packed rows, at the same place on every rank.  Where
  // `gathered` is a window, local peers store there, and the heap has room for the rail's shards alone.
  MK_HD constexpr uint64_t packed(const Shard& s, uint64_t shardRow) const {
    const uint64_t before = windowed() ? s.node * shards.height() : shards.first(s.rank);
    return (before + shardRow) * rowBytes();
  }
  MK_HD constexpr uint64_t dataBytes() const {
    if (shards.ranks == 1) return 0;
    if (!windowed()) return shape.m * rowBytes();
    return multiNode() ? place().nodes * shards.height() * rowBytes() : 0;
  }

  // ---- Flags of a bank, in words from its start.  Arrivals of the network come first (see arrivalFlag).
  // direct: the sender is the shard's own rank, the slot its chunk.  ring: the sender is the node before, the slot counts the
  // shards it passes on.
  MK_HD constexpr uint64_t slots() const {
    if (!multiNode()) return 0;
    return exchange == Exchange::ring ? (place().nodes - 1) * mostChunks() : mostChunks();
  }
  // By which a chunk that comes from so many nodes before the receiver is known to it, and who sends it.
  MK_HD constexpr uint64_t slot(uint32_t distance, uint64_t chunk) const {
    return kControlSlots + (exchange == Exchange::ring ? (distance - 1) * mostChunks() : 0) + chunk;
  }
  MK_HD constexpr uint32_t sender(uint32_t distance) const {
    return nodeBefore(exchange == Exchange::ring ? 1 : distance);
  }
  MK_HD constexpr uint64_t arrivalWords() const { return slots() * place().nodes; }
  // Raised by a local rank: the chunk is in my bank or window.  Of my own shard, by this rank's agents: it is in my bank, for
  // the network to read, or, where tiles span shards, where the others are.
  MK_HD constexpr uint64_t chunkFlag(const Shard& s, uint64_t chunk, uint64_t slice = 0) const {
    return arrivalWords() + (s.rank * mostChunks() + chunk) * slices() + slice;
  }
  MK_HD constexpr uint64_t outFlagBase() const { return arrivalWords() + shards.ranks * mostChunks() * slices(); }
  // Raised by local rank `from`: all it has to store at mine is there.
  MK_HD constexpr uint64_t outFlag(uint32_t from) const { return outFlagBase() + from; }
  MK_HD constexpr uint64_t flagWords() const { return outFlagBase() + place().locals; }

  MK_HD constexpr uint64_t workspace() const { return HeapLayout::workspaceFor(flagWords() * 8, dataBytes()); }

  // ---- Sending to other nodes.  direct: shard to the next node, then to the one after, so that every card sends to one node
  // and receives from one at a time.  ring: what the node before has sent goes to the next, the own shard first.
  struct Send {
    bool exists = false;
    Shard from;
    uint64_t chunk = 0;
    uint32_t to = 0;        // node
    uint32_t distance = 1;  // from the shard's node to that one
  };
  MK_HD constexpr uint64_t sends() const { return multiNode() ? (place().nodes - 1) * mostChunks() : 0; }
  MK_HD constexpr Send send(uint64_t number) const {
    const uint32_t step = static_cast<uint32_t>(number / mostChunks());
    const bool ring = exchange == Exchange::ring;
    Send t;
    t.from = shard(nodeBefore(ring ? step : 0), place().local);
    t.chunk = number % mostChunks();
    t.to = (place().node + 1 + (ring ? 0 : step)) % place().nodes;
    t.distance = 1 + step;
    t.exists = t.chunk < chunks(t.from);
    return t;
  }

  // ---- Moving chunks within the node, in the order in which tasks are claimed: the own shard into the bank for the network,
  // shard by shard to each local peer (with slices: group by group, in each slice by slice), to the own `gathered`; then what
  // comes from other nodes, each chunk to all.  Where tiles span shards they need the first slice of all rows first: slice
  // by slice, each to the peers and then to where the own tiles are computed from.
  enum class Target : uint32_t { bank, peer, self };  // self: the own `gathered`, if there is one
  struct Move {
    bool exists = false;
    Shard from;
    uint64_t chunk = 0;
    uint32_t distance = 0;  // in nodes, from the shard's to mine
    Target target = Target::self;
    uint32_t peer = 0;
    uint64_t slice = 0;  // to a peer; where tiles span shards, of what is announced to this rank too
  };
  MK_HD constexpr uint64_t stageMoves() const { return multiNode() ? mostChunks() : 0; }
  MK_HD constexpr uint64_t slicedMoves() const {  // with slices, to all local peers
    return slices() > 1 ? (place().locals - 1) * mostChunks() * slices() : 0;
  }
  MK_HD constexpr uint64_t spannedMoves() const {  // to all local ranks, where tiles span shards
    return spanning ? mostChunks() * slices() * place().locals : 0;
  }
  // Rows that this rank has put into its own window have flags.
  MK_HD constexpr bool selfAnnounced() const { return spanning && windowed(); }
  MK_HD constexpr uint64_t moves() const {
    if (spanning) return spannedMoves() + (shape.gathered == Gathered::memory ? mostChunks() : 0);
    if (slices() > 1) return slicedMoves() + mostChunks();
    return stageMoves() + mostChunks() * place().locals * place().nodes;
  }
  MK_HD constexpr Move move(uint64_t number) const {
    Move t;
    const uint64_t most = larger(1, mostChunks());  // where there is none nothing is moved
    if (spanning) {
      const bool announced = number < spannedMoves();
      const uint64_t perSlice = most * place().locals;
      uint64_t step = place().locals - 1;
      if (announced) {
        t.slice = number / perSlice;
        const uint64_t inSlice = number - t.slice * perSlice;
        step = inSlice / most;
        t.chunk = inSlice % most;
      } else {
        t.chunk = number - spannedMoves();
      }
      t.peer = static_cast<uint32_t>((place().local + 1 + step) % place().locals);
      t.target = t.peer != place().local ? Target::peer : announced && !windowed() ? Target::bank : Target::self;
    } else if (slices() > 1) {
      const bool toPeer = number < slicedMoves();
      const uint64_t perPeer = most * slices();
      const uint64_t step = toPeer ? number / perPeer : place().locals - 1;
      if (toPeer) {
        const uint64_t inPeer = number - step * perPeer;
        const uint64_t first = inPeer / (groupChunks * slices()) * groupChunks;
        const uint64_t size = smaller(groupChunks, most - first);
        const uint64_t inGroup = inPeer - first * slices();
        t.slice = inGroup / size;
        t.chunk = first + inGroup % size;
      } else {
        t.chunk = number - slicedMoves();
      }
      t.peer = static_cast<uint32_t>((place().local + 1 + step) % place().locals);
      t.target = toPeer ? Target::peer : Target::self;
    } else if (number < stageMoves()) {
      t.target = Target::bank;
      t.chunk = number;
    } else {
      const uint64_t rest = number - stageMoves();
      const uint64_t perNode = most * place().locals;
      t.distance = static_cast<uint32_t>(rest / perNode);
      const uint64_t inNode = rest % perNode;
      t.chunk = t.distance == 0 ? inNode % most : inNode / place().locals;
      const uint64_t step = t.distance == 0 ? inNode / most : inNode % place().locals;
      t.peer = static_cast<uint32_t>((place().local + 1 + step) % place().locals);
      t.target = t.peer == place().local ? Target::self : Target::peer;
    }
    t.from = shard(nodeBefore(t.distance), place().local);
    t.exists = t.chunk < chunks(t.from);
    return t;
  }
  // Chunks a local rank stores at each of its peers: its rail's.
  MK_HD constexpr uint64_t movesToPeer(uint32_t local) const {
    uint64_t count = 0;
    for (uint32_t node = 0; node < place().nodes; ++node) count += chunks(shard(node, local));
    return count * slices();
  }

  // ---- Copying from the bank to an ordinary `gathered` what local peers have stored, in the order in which it comes.
  struct Copy {
    bool exists = false;
    Shard from;
    uint64_t chunk = 0;
  };
  MK_HD constexpr bool copiesOut() const { return shape.gathered == Gathered::memory && place().locals > 1; }
  MK_HD constexpr uint64_t copies() const {
    return copiesOut() ? mostChunks() * (place().locals - 1) * place().nodes : 0;
  }
  MK_HD constexpr Copy copy(uint64_t number) const {
    const uint64_t peers = place().locals - 1;
    const uint32_t distance = static_cast<uint32_t>(number / (mostChunks() * peers));
    const uint64_t inNode = number % (mostChunks() * peers);
    const uint64_t before = distance == 0 ? inNode / mostChunks() : inNode % peers;
    Copy t;
    t.from = shard(nodeBefore(distance), localBefore(1 + static_cast<uint32_t>(before)));
    t.chunk = distance == 0 ? inNode % mostChunks() : inNode / peers;
    t.exists = t.chunk < chunks(t.from);
    return t;
  }

  // ---- Tiles of C.  Where none has rows of two shards, the own shard first, then as rows come: a section per shard of the own
  // node, then one per node, in which shards alternate by row of tiles; in the raster order of tiles.h within a section.  Where
  // they span shards, in raster order.
  struct TileTask {
    bool exists = false;                    // a short shard has places for tiles it lacks
    uint64_t tile = 0;                      // its place in this rank's order
    Shard from;                             // or wholeA()
    Tile shape;                             // rows and columns of C
    uint64_t shardRow = 0;                  // of the first row, within the shard
    uint64_t firstChunk = 0, endChunk = 0;  // the shard's chunks it waits for
  };
  MK_HD constexpr uint64_t rowsUnderTiles() const { return spanning ? shape.m : shards.height(); }
  MK_HD constexpr uint64_t tileRows() const { return ceilDiv(turned ? shape.n : rowsUnderTiles(), tileM); }
  MK_HD constexpr uint64_t tileCols() const { return ceilDiv(turned ? rowsUnderTiles() : shape.n, tileN); }
  MK_HD constexpr uint64_t positions() const { return tileRows() * tileCols() * (spanning ? 1 : shards.ranks); }
  MK_HD constexpr TileTask tileAt(uint64_t position) const {
    if (spanning || turned) return wholeTileAt(position);
    const uint64_t perShard = tileRows() * tileCols();
    const uint64_t perNode = perShard * place().locals;
    const uint32_t distance = static_cast<uint32_t>(position / perNode);
    uint64_t before = 0, tileRow = 0;
    Cell cell;
    if (distance == 0) {
      cell = rasterCell(position % perShard, tileRows(), tileCols(), groupRows);
      before = position / perShard;
      tileRow = cell.row;
    } else {
      cell = rasterCell(position % perNode, tileRows() * place().locals, tileCols(), groupRows);
      before = cell.row % place().locals;
      tileRow = cell.row / place().locals;
    }
    TileTask t;
    t.tile = position;
    t.from = shard(nodeBefore(distance), localBefore(static_cast<uint32_t>(before)));
    t.shardRow = tileRow * tileM;
    const uint64_t rows = shards.rows(t.from.rank);
    if (t.shardRow >= rows) return t;
    t.exists = true;
    t.shape.row = shards.first(t.from.rank) + t.shardRow;
    t.shape.col = cell.col * tileN;
    t.shape.rows = static_cast<uint32_t>(smaller(tileM, rows - t.shardRow));
    t.shape.cols = static_cast<uint32_t>(smaller(tileN, shape.n - t.shape.col));
    t.firstChunk = shape.k == 0 ? 0 : t.shardRow / chunkRows;
    t.endChunk = chunksOf(t.shardRow + t.shape.rows);
    return t;
  }

  // ---- Traffic of this rank, payload only.
  MK_HD constexpr uint64_t netBytesSent() const {
    uint64_t rows = 0;
    for (uint32_t step = 0; step + 1 < place().nodes; ++step) rows += shards.rows(sentAt(step).rank);
    return rows * rowBytes();
  }
  MK_HD constexpr uint64_t netMessagesSent() const {
    uint64_t count = 0;
    for (uint32_t step = 0; step + 1 < place().nodes; ++step) count += chunks(sentAt(step));
    return count;
  }
  // Stored to local peers: my rail's shards to each of them.
  MK_HD constexpr uint64_t nvlinkBytesSent() const {
    uint64_t rows = 0;
    for (uint32_t node = 0; node < place().nodes; ++node) rows += shards.rows(shard(node, place().local).rank);
    return rows * rowBytes() * (place().locals - 1);
  }

  // Hash over the plan; the caller adds what else must agree (dtypes, window).  Tiles and N are each rank's own affair.
  MK_HD constexpr PlanHash hash() const {
    PlanHash h;
    h.add(shape.m).add(shape.k).add(shape.inBytes).add(windowed() ? 1 : 0);
    h.add(place().nodes).add(place().locals).add(chunkRows).add(sliceCols);
    h.add(static_cast<uint64_t>(exchange));
    return h;
  }

 private:
  // Of the whole A, by one rank that has it or where tiles span shards.
  MK_HD constexpr TileTask wholeTileAt(uint64_t position) const {
    TileTask t;
    t.exists = true;
    t.tile = position;
    t.from = spanning ? wholeA() : mine();
    t.shape = TileGrid{turned ? shape.n : shape.m, turned ? shape.m : shape.n, tileM, tileN, groupRows}.tile(position);
    if (turned) t.shape = Tile{t.shape.col, t.shape.row, t.shape.cols, t.shape.rows};
    t.shardRow = t.shape.row;
    if (shape.k == 0) return t;
    t.firstChunk = chunkNumber(t.shape.row);
    t.endChunk = chunkNumber(t.shape.row + t.shape.rows - 1) + 1;
    return t;
  }
  MK_HD constexpr Shard sentAt(uint32_t step) const {
    return shard(nodeBefore(exchange == Exchange::ring ? step : 0), place().local);
  }
};

constexpr uint64_t kChunkBytes = 256u << 10;
constexpr uint64_t kLeastChunkBytes = 16u << 10;

// Makes the plan.  `agents`: how many agents an operation may occupy.  Choices must have been checked (legal values or 0).
MK_HD constexpr AgGemmPlan planAgGemm(const AgGemmShape& shape, const GemmChoice& choice, uint32_t agents) {
  AgGemmPlan p;
  p.shape = shape;
  const uint32_t nodes = shape.place.nodes;
  const uint32_t locals = shape.place.locals;
  p.shards = Shards{shape.m, nodes * locals};
  p.tileM = choice.tileM != 0 ? choice.tileM : 64;
  p.tileN = choice.tileN != 0 ? choice.tileN : 64;
  p.exchange = choice.exchange != 0 ? static_cast<Exchange>(choice.exchange) : Exchange::direct;

  // A power of two, so that it divides a tile's rows or is a multiple of them: about 256 KiB, less where a shard would have
  // fewer than four chunks.  It must not depend on what differs between ranks.
  p.chunkRows = choice.chunkRows;
  if (p.chunkRows == 0) {
    p.chunkRows = 1;
    const auto suits = [&](uint64_t rows) {
      return rows * p.rowBytes() <= (rows * 4 <= p.shards.height() ? kChunkBytes : kLeastChunkBytes);
    };
    while (p.chunkRows < p.shards.height() && suits(p.chunkRows * 2)) p.chunkRows *= 2;
  }
  if (nodes == 1 && locals != 1) {
    p.sliceCols = choice.sliceCols;
    p.groupChunks = larger(1, choice.groupChunks);
  }
  // A notification has room for 2^20 slots: larger shards travel in larger chunks.
  while (p.slots() > kMaxSlots - kControlSlots) p.chunkRows *= 2;
  p.spanning = choice.spanning == Spanning::byShape ? tilesBetterSpan(p.shards, nodes, p.tileM)
                                                    : nodes == 1 && locals > 1 && choice.spanning == Spanning::always;
  p.turned = choice.turned && (p.spanning || p.shards.ranks == 1);

  p.roles.send = nodes > 1 ? 1 : 0;
  if (nodes * locals > 1 || shape.gathered != Gathered::none)
    p.roles.move = choice.receiveAgents != 0 ? choice.receiveAgents : 1;
  p.roles.copyOut = p.copiesOut() ? 1 : 0;
  const uint32_t others = p.roles.total() - p.roles.compute;
  p.roles.compute = choice.computeAgents != 0 ? choice.computeAgents : (agents > others ? agents - others : 1);
  return p;
}

}  // namespace mk::sched
