// The order of tiles of AllGather+GEMM in 32-bit arithmetic without division, as tile_order.h is of GEMM+AllReduce: what an agent
// that must start at once needs to know of the tile at a position.  Made on the host from the plan; tests compare it with
// AgGemmPlan::tileAt for every position.
#pragma once

#include "sched/ag_gemm.h"
#include "sched/tile_order.h"

namespace mk::sched {

struct AgStep {
  bool exists = false;                     // else a short shard lacks it
  uint32_t row = 0, col = 0;               // of C
  uint32_t rows = 0, cols = 0;             // smaller at a shard's end
  uint32_t node = 0, local = 0, rank = 0;  // whose rows of A they are, or AgGemmPlan::wholeA()
  uint32_t shardRow = 0;                   // of the first row, within the shard
  uint32_t firstChunk = 0, endChunk = 0;   // the shard's chunks under it
  uint32_t tile = 0, part = 0;             // the tile's number, and which part of its K (split_k.h)
};

// For results of less than 2^31 tiles, those that full shards would have included, and dimensions below 2^31.
struct AgOrder {
  uint32_t positions = 0, perShard = 1, perNode = 1;
  uint32_t parts = 1;  // of K: first all tiles' first parts, then all their second ones
  uint32_t nodes = 1, locals = 1, node = 0, local = 0;
  uint32_t m = 0, n = 0, height = 0, tileM = 1, tileN = 1, groupRows = 1,
           chunkRows = 1;                    // height: of what has tiles of its own
  uint32_t shardGroups = 0, nodeGroups = 0;  // the last group of tile rows, of one shard and of a node's
  uint32_t mostChunks = 0;
  bool empty = false;     // A has no columns
  bool spanning = false;  // tiles are of the whole A
  bool turned = false;    // and of the product transposed
  RankMap ranks;
  FastDivision byNode, byShard, byLocals, byGroup, byRows, byShardLast, byNodeLast, byChunk, byHeight, byTiles;

  AgOrder() = default;
  explicit constexpr AgOrder(const AgGemmPlan& p)
      : positions(static_cast<uint32_t>(p.positions())),
        perShard(static_cast<uint32_t>(p.tileRows() * p.tileCols())),
        perNode(static_cast<uint32_t>(p.tileRows() * p.tileCols() * (p.spanning ? 1 : p.place().locals))),
        nodes(p.place().nodes),
        locals(p.place().locals),
        node(p.place().node),
        local(p.place().local),
        m(static_cast<uint32_t>(p.shape.m)),
        n(static_cast<uint32_t>(p.shape.n)),
        height(static_cast<uint32_t>(p.rowsUnderTiles())),
        tileM(p.tileM),
        tileN(p.tileN),
        groupRows(p.groupRows),
        chunkRows(static_cast<uint32_t>(p.chunkRows)),
        mostChunks(static_cast<uint32_t>(p.mostChunks())),
        empty(p.shape.k == 0),
        spanning(p.spanning),
        turned(p.turned),
        ranks(p.shape.ranks) {
    const uint32_t shardRows = static_cast<uint32_t>(p.tileRows());
    const uint32_t nodeRows = shardRows * locals;
    shardGroups = shardRows == 0 ? 0 : (shardRows - 1) / groupRows;
    nodeGroups = nodeRows == 0 ? 0 : (nodeRows - 1) / groupRows;
    byNode = FastDivision(perNode);
    byShard = FastDivision(perShard);
    byLocals = FastDivision(locals);
    byGroup = FastDivision(groupRows * p.tileCols());
    byRows = FastDivision(groupRows);
    byShardLast = FastDivision(shardRows - shardGroups * groupRows);
    byNodeLast = FastDivision(nodeRows - nodeGroups * groupRows);
    byChunk = FastDivision(chunkRows);
    byHeight = FastDivision(p.shards.height());
  }

  // Each tile has so many parts.
  MK_HD constexpr void split(uint32_t allParts) {
    byTiles = FastDivision(positions);
    parts = allParts;
    positions *= allParts;
  }

  // position < positions.
  MK_HD constexpr AgStep at(uint32_t position) const {
    if (parts == 1) return tileAt(position);
    const uint32_t part = byTiles.divide(position);
    AgStep s = tileAt(position - part * byTiles.divisor);
    s.part = part;
    return s;
  }

 private:
  MK_HD constexpr AgStep tileAt(uint32_t position) const {
    const uint32_t distance = byNode.divide(position);
    const uint32_t inNode = position - distance * perNode;
    const bool own = distance == 0;
    // Of the own node shard after shard; of another its shards alternate by row of tiles.
    uint32_t before = own ? byShard.divide(inNode) : 0;
    const uint32_t index = own ? inNode - before * perShard : inNode;
    const uint32_t group = byGroup.divide(index);
    const uint32_t inGroup = index - group * byGroup.divisor;
    const FastDivision& byHere = group != (own ? shardGroups : nodeGroups) ? byRows : own ? byShardLast : byNodeLast;
    const uint32_t tileCol = byHere.divide(inGroup);
    uint32_t tileRow = group * groupRows + inGroup - tileCol * byHere.divisor;
    if (!own) {
      const uint32_t cell = tileRow;
      tileRow = byLocals.divide(cell);
      before = cell - tileRow * locals;
    }
    AgStep s;
    s.tile = position;
    if (spanning) {
      s.local = locals;
    } else {
      s.node = node >= distance ? node - distance : node + nodes - distance;
      s.local = local >= before ? local - before : local + locals - before;
      s.rank = ranks.rank(s.node, s.local);
    }
    const uint32_t high = turned ? tileN : tileM, wide = turned ? tileM : tileN;
    s.shardRow = (turned ? tileCol : tileRow) * high;
    const uint64_t first = uint64_t{s.rank} * height;
    const uint32_t rows = first >= m ? 0 : m - first < height ? static_cast<uint32_t>(m - first) : height;
    if (s.shardRow >= rows) return s;
    s.exists = true;
    s.row = static_cast<uint32_t>(first) + s.shardRow;
    s.col = (turned ? tileRow : tileCol) * wide;
    s.rows = rows - s.shardRow < high ? rows - s.shardRow : high;
    s.cols = n - s.col < wide ? n - s.col : wide;
    if (empty) return s;
    s.firstChunk = chunkOf(s.shardRow);
    s.endChunk = chunkOf(s.shardRow + s.rows - 1) + 1;
    return s;
  }

  // Of a row of the shard; where tiles span shards, of the whole A.
  MK_HD constexpr uint32_t chunkOf(uint32_t row) const {
    if (!spanning) return byChunk.divide(row);
    const uint32_t rank = byHeight.divide(row);
    return rank * mostChunks + byChunk.divide(row - rank * byHeight.divisor);
  }
};

}  // namespace mk::sched
