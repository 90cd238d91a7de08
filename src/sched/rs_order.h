// The order of tiles of GEMM+ReduceScatter in 32-bit arithmetic without division, as tile_order.h is of GEMM+AllReduce: what an
// agent that must start at once needs to know of the tile at a position.  Made on the host from the plan; tests compare it with
// GemmRsPlan::at for every position.
#pragma once

#include "sched/gemm_rs.h"
#include "sched/tile_order.h"

namespace mk::sched {

// row, col: of A and of the whole product.  owner: the local rank that collects the tile; ownedTile, ownedChunk: its numbers among
// that rank's, railTile() and railChunk(); tile: its number over all shards.
struct RsStep : TileStep {
  bool exists = false;  // else a shard lacks it: only node and owner are set
  uint32_t node = 0;
  uint32_t firstRow = 0;  // of the shard: row - firstRow is the row of C
};

// For results of less than 2^31 tiles, those that full shards would have included, and dimensions below 2^31.
struct RsOrder {
  uint32_t positions = 0, perNode = 1;
  uint32_t nodes = 1, locals = 1, node = 0, local = 0;
  uint32_t shardTiles = 1, shardChunks = 0, chunkTiles = 1, lastTiles = 1;  // the last: of a shard's last chunk
  uint32_t ownUnit = 1, ownLag = 1, ownLead = 0, ownTail = 0;
  uint32_t lastUnit = 0, lastOwn = 1;  // first tile, and number of tiles, of the last unit
  uint32_t m = 0, n = 0, height = 0, tileM = 1, tileN = 1, groupRows = 1;
  RankMap ranks;
  FastDivision byNode, byWave, byChunk, byLastChunk, byPeers, byPeriod, byOwn, byLastOwn;
  // Of tiles within a group of tile rows, which is smaller at a shard's end.  One shard at most is short and not empty.
  FastDivision byGroup, byRows, byFullLast, byShortLast;

  RsOrder() = default;
  explicit constexpr RsOrder(const GemmRsPlan& p)
      : positions(static_cast<uint32_t>(p.positions())),
        perNode(static_cast<uint32_t>(p.place().locals * p.shardTiles)),
        nodes(p.place().nodes),
        locals(p.place().locals),
        node(p.place().node),
        local(p.place().local),
        shardTiles(static_cast<uint32_t>(p.shardTiles)),
        shardChunks(static_cast<uint32_t>(p.shardChunks)),
        chunkTiles(p.chunkTiles),
        m(static_cast<uint32_t>(p.shape.m)),
        n(static_cast<uint32_t>(p.shape.n)),
        height(static_cast<uint32_t>(p.shards.height())),
        tileM(p.tileM),
        tileN(p.tileN),
        groupRows(p.groupRows),
        ranks(p.shape.ranks) {
    lastTiles = shardChunks == 0 ? 1 : shardTiles - (shardChunks - 1) * chunkTiles;
    byNode = FastDivision(perNode);
    byWave = FastDivision(uint64_t{chunkTiles} * locals);
    ownUnit = static_cast<uint32_t>(p.ownUnit);
    ownLag = static_cast<uint32_t>(p.ownLag);
    ownLead = static_cast<uint32_t>(p.ownLead());
    ownTail = static_cast<uint32_t>(p.ownTail());
    lastUnit = shardTiles == 0 ? 0 : (shardTiles - 1) / ownUnit * ownUnit;
    lastOwn = shardTiles == 0 ? 1 : shardTiles - lastUnit;
    byPeers = FastDivision(uint64_t{ownUnit} * (locals - 1));
    byPeriod = FastDivision(uint64_t{ownUnit} * locals);
    byOwn = FastDivision(ownUnit);
    byLastOwn = FastDivision(lastOwn);
    byChunk = FastDivision(chunkTiles);
    byLastChunk = FastDivision(lastTiles);
    byGroup = FastDivision(groupRows * ceilDiv(n, tileN));
    byRows = FastDivision(groupRows);
    byFullLast = FastDivision(lastGroup(height));
    byShortLast = FastDivision(lastGroup(height == 0 ? 0 : m % height));
  }

  // position < positions.
  MK_HD constexpr RsStep at(uint32_t position) const {
    RsStep s;
    const uint32_t step = byNode.divide(position);
    const uint32_t inNode = position - step * perNode;
    s.node = wrapped(node + 1 + step, nodes);
    uint32_t index = 0, turn = 0;  // of the shard; which local rank's
    if (s.node == node) {
      ownPlace(inNode, &index, &turn);
    } else {
      const uint32_t wave = byWave.divide(inNode);
      const uint32_t inWave = inNode - wave * chunkTiles * locals;
      const bool last = wave + 1 == shardChunks;
      turn = last ? byLastChunk.divide(inWave) : byChunk.divide(inWave);
      index = wave * chunkTiles + inWave - turn * (last ? lastTiles : chunkTiles);
    }
    s.owner = wrapped(local + 1 + turn, locals);

    const uint32_t rank = ranks.rank(s.node, s.owner);
    const uint64_t first = uint64_t{rank} * height;
    const uint32_t rows = first >= m ? 0 : m - first < height ? static_cast<uint32_t>(m - first) : height;
    const uint32_t tileRows = (rows + tileM - 1) / tileM;
    const uint32_t group = byGroup.divide(index);
    const uint32_t inGroup = index - group * byGroup.divisor;
    if (group * groupRows >= tileRows) return s;
    const uint32_t left = tileRows - group * groupRows;
    const FastDivision& byHere = left >= groupRows ? byRows : rows == height ? byFullLast : byShortLast;
    const uint32_t tileCol = byHere.divide(inGroup);
    s.firstRow = static_cast<uint32_t>(first);
    s.col = tileCol * tileN;
    if (s.col >= n) return s;  // past the end of a short shard
    s.exists = true;
    const uint32_t inShard = (group * groupRows + inGroup - tileCol * byHere.divisor) * tileM;
    s.row = s.firstRow + inShard;
    s.rows = rows - inShard < tileM ? rows - inShard : tileM;
    s.cols = n - s.col < tileN ? n - s.col : tileN;
    s.tile = rank * shardTiles + index;
    s.ownedTile = s.node * shardTiles + index;
    s.ownedChunk = s.node * shardChunks + byChunk.divide(index);
    return s;
  }

 private:
  // As GemmRsPlan::atOwn().
  MK_HD constexpr void ownPlace(uint32_t x, uint32_t* index, uint32_t* turn) const {
    *turn = locals - 1;
    if (x >= ownTail) {
      *index = x - (locals - 1) * shardTiles;
      return;
    }
    uint32_t first = 0;
    if (x < ownLead) {
      first = byPeers.divide(x) * ownUnit;
      x -= first * (locals - 1);
    } else {
      const uint32_t period = byPeriod.divide(x - ownLead);
      x -= ownLead + period * locals * ownUnit;
      if (x < ownUnit) {
        *index = period * ownUnit + x;
        return;
      }
      first = (ownLag + period) * ownUnit;
      x -= ownUnit;
    }
    const bool last = first == lastUnit;
    *turn = last ? byLastOwn.divide(x) : byOwn.divide(x);
    *index = first + x - *turn * (last ? lastOwn : ownUnit);
  }
  // Tile rows in the last group of so many rows.
  constexpr uint64_t lastGroup(uint64_t rows) const {
    const uint64_t tileRows = ceilDiv(rows, tileM);
    return tileRows == 0 ? 1 : tileRows - (tileRows - 1) / groupRows * groupRows;
  }
  MK_HD static constexpr uint32_t wrapped(uint32_t value, uint32_t count) {
    return value >= count ? value - count : value;
  }
};

}  // namespace mk::sched
