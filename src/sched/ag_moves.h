// The moves of rows of AllGather+GEMM, their places and flags, without a division of 64 bits, as ag_order.h has its tiles: one takes
// as long as a kilobyte on a link, and the plan has dozens on the way to the first row.  Made on the host from the plan; tests
// compare it with the plan's own for every move, copy and flag.
#pragma once

#include "sched/ag_gemm.h"
#include "sched/tile_order.h"

namespace mk::sched {

// For dimensions below 2^31 of an A that fits into a memory: then there are less than 2^32 moves.
struct AgMoves {
  static constexpr uint32_t kMostLocals = 32;  // bits of `senders`
  using Target = AgGemmPlan::Target;
  using Move = AgGemmPlan::Move;
  using Copy = AgGemmPlan::Copy;

  uint32_t moves = 0, copies = 0;
  uint32_t staged = 0, sliced = 0,
           spanned = 0;  // of the moves: into the bank; to peers, by slices; to all, where tiles span shards
  uint32_t m = 0, k = 0, height = 0, chunkRows = 1, mostChunks = 0, slices = 1, sliceCols = 0;
  uint32_t nodes = 1, locals = 1, node = 0, local = 0;
  uint32_t group = 1, lastGroup = 0,
           lastFirst = 0;  // chunks of a group; the number of the last group, and its first chunk
  uint32_t senders = 0;    // a bit for each local rank with rows to store at its peers
  uint64_t toPeers = 0;    // moves of this rank's to all of its peers
  uint64_t rowBytes = 0, arrivalWords = 0, outFlags = 0;
  bool windowed = false, ring = false;
  bool spanning = false, selfAnnounced = false;
  RankMap ranks;
  FastDivision bySlice, byPeer, byGroup, bySize, byLastSize, byNode, byChunks, byLocals, byOthers, byCopyNode,
      byChunkRows;

  AgMoves() = default;
  explicit constexpr AgMoves(const AgGemmPlan& p)
      : moves(static_cast<uint32_t>(p.moves())),
        copies(static_cast<uint32_t>(p.copies())),
        staged(static_cast<uint32_t>(p.stageMoves())),
        sliced(static_cast<uint32_t>(p.slicedMoves())),
        spanned(static_cast<uint32_t>(p.spannedMoves())),
        m(static_cast<uint32_t>(p.shape.m)),
        k(static_cast<uint32_t>(p.shape.k)),
        height(static_cast<uint32_t>(p.shards.height())),
        chunkRows(static_cast<uint32_t>(p.chunkRows)),
        mostChunks(static_cast<uint32_t>(p.mostChunks())),
        slices(static_cast<uint32_t>(p.slices())),
        sliceCols(static_cast<uint32_t>(p.sliceCols)),
        nodes(p.place().nodes),
        locals(p.place().locals),
        node(p.place().node),
        local(p.place().local),
        toPeers(p.movesToPeer(p.place().local) * (p.place().locals - 1)),
        rowBytes(p.rowBytes()),
        arrivalWords(p.arrivalWords()),
        outFlags(p.outFlagBase()),
        windowed(p.windowed()),
        ring(p.exchange == Exchange::ring),
        spanning(p.spanning),
        selfAnnounced(p.selfAnnounced()),
        ranks(p.shape.ranks) {
    // One group is enough where the plan's would be longer than a shard.
    group = static_cast<uint32_t>(larger(1, smaller(p.groupChunks, mostChunks)));
    lastGroup = mostChunks == 0 ? 0 : (mostChunks - 1) / group;
    lastFirst = lastGroup * group;
    for (uint32_t l = 0; l < locals; ++l) senders |= p.movesToPeer(l) != 0 ? 1u << l : 0;
    bySlice = FastDivision(uint64_t{mostChunks} * locals);
    byPeer = FastDivision(uint64_t{mostChunks} * slices);
    byGroup = FastDivision(uint64_t{group} * slices);
    bySize = FastDivision(group);
    byLastSize = FastDivision(mostChunks - lastFirst);
    byNode = FastDivision(uint64_t{mostChunks} * locals);
    byChunks = FastDivision(mostChunks);
    byLocals = FastDivision(locals);
    byOthers = FastDivision(locals - 1);
    byCopyNode = FastDivision(uint64_t{mostChunks} * (locals - 1));
    byChunkRows = FastDivision(chunkRows);
  }

  // ---- Shards and their chunks.
  MK_HD constexpr Shard shard(uint32_t distance, uint32_t l) const {  // of the node so many places before
    const uint32_t n = node >= distance ? node - distance : node + nodes - distance;
    return Shard{n, l, ranks.rank(n, l)};
  }
  MK_HD constexpr uint32_t first(uint32_t rank) const {
    return static_cast<uint32_t>(smaller(m, uint64_t{rank} * height));
  }
  MK_HD constexpr uint32_t rows(uint32_t rank) const { return first(rank + 1) - first(rank); }
  MK_HD constexpr uint32_t chunks(uint32_t rank) const {
    return k == 0 ? 0 : byChunkRows.divide(rows(rank) + chunkRows - 1);
  }
  MK_HD constexpr uint32_t rowsIn(uint32_t rank, uint32_t chunk) const {
    const uint32_t left = rows(rank) - chunk * chunkRows;
    return left < chunkRows ? left : chunkRows;
  }
  MK_HD constexpr uint32_t colsIn(uint32_t slice) const {
    if (slices == 1) return k;
    const uint32_t left = k - slice * sliceCols;
    return left < sliceCols ? left : sliceCols;
  }

  // ---- Places and flags.
  MK_HD constexpr uint64_t packed(const Shard& s, uint64_t shardRow) const {
    return (uint64_t{windowed ? s.node * height : first(s.rank)} + shardRow) * rowBytes;
  }
  MK_HD constexpr uint64_t chunkFlag(uint32_t rank, uint64_t chunk, uint64_t slice = 0) const {
    return arrivalWords + (uint64_t{rank} * mostChunks + chunk) * slices + slice;
  }
  MK_HD constexpr uint32_t distanceTo(uint32_t n) const { return node >= n ? node - n : node + nodes - n; }
  MK_HD constexpr uint64_t slot(uint32_t distance, uint64_t chunk) const {
    return kControlSlots + (ring ? uint64_t{distance - 1} * mostChunks : 0) + chunk;
  }
  MK_HD constexpr uint32_t sender(uint32_t distance) const { return shard(ring ? 1 : distance, 0).node; }

  // ---- number < moves.
  MK_HD constexpr Move move(uint32_t number) const {
    Move t;
    uint32_t step = 0, chunk = 0;
    if (spanning) {
      step = locals - 1;
      chunk = number - spanned;
      if (number < spanned) {
        const uint32_t slice = bySlice.divide(number);
        const uint32_t inSlice = number - slice * bySlice.divisor;
        t.slice = slice;
        step = byChunks.divide(inSlice);
        chunk = inSlice - step * byChunks.divisor;
      }
    } else if (slices > 1) {
      step = locals - 1;
      chunk = number - sliced;
      if (number < sliced) {
        step = byPeer.divide(number);
        const uint32_t inPeer = number - step * byPeer.divisor;
        const uint32_t g = byGroup.divide(inPeer);
        const uint32_t inGroup = inPeer - g * byGroup.divisor;
        const FastDivision& bySizeHere = g == lastGroup ? byLastSize : bySize;
        const uint32_t slice = bySizeHere.divide(inGroup);
        t.slice = slice;
        chunk = g * group + inGroup - slice * bySizeHere.divisor;
      }
    } else if (number < staged) {
      t.target = Target::bank;
      chunk = number;
    } else {
      const uint32_t rest = number - staged;
      t.distance = byNode.divide(rest);
      const uint32_t inNode = rest - t.distance * byNode.divisor;
      const FastDivision& by = t.distance == 0 ? byChunks : byLocals;
      const uint32_t quotient = by.divide(inNode), remainder = inNode - quotient * by.divisor;
      chunk = t.distance == 0 ? remainder : quotient;
      step = t.distance == 0 ? quotient : remainder;
    }
    if (slices > 1 || number >= staged) {
      const uint32_t peer = local + 1 + step;
      t.peer = peer >= locals ? peer - locals : peer;
      t.target = t.peer != local ? Target::peer : number < spanned && !windowed ? Target::bank : Target::self;
    }
    t.chunk = chunk;
    t.from = shard(t.distance, local);
    t.exists = chunk < chunks(t.from.rank);
    return t;
  }
  // number < copies.
  MK_HD constexpr Copy copy(uint32_t number) const {
    const uint32_t distance = byCopyNode.divide(number);
    const uint32_t inNode = number - distance * byCopyNode.divisor;
    const FastDivision& by = distance == 0 ? byChunks : byOthers;
    const uint32_t quotient = by.divide(inNode), remainder = inNode - quotient * by.divisor;
    const uint32_t before = 1 + (distance == 0 ? quotient : remainder);
    Copy t;
    t.from = shard(distance, local >= before ? local - before : local + locals - before);
    t.chunk = distance == 0 ? remainder : quotient;
    t.exists = t.chunk < chunks(t.from.rank);
    return t;
  }
};

}  // namespace mk::sched
