// Which GPU kernel an operation runs on, and how: a pure function of the shape and of the device, tested without one.
// Figures in comments are of 2 x H200.
#pragma once

#include "sched/gemm_ar.h"
#include "sched/gemm_rs.h"
#include "sched/shards.h"
#include "sched/tile_times.h"

namespace mk::sched {

// A cluster of two blocks computes a tile of 256 rows, 128 each; the blocks share B.
constexpr uint32_t kClusterBlocks = 2;
constexpr uint32_t kClusterRows = 256;

// Bands of columns in which a tile is announced to peers, at most.
MK_HD constexpr uint32_t mostFlagBands(uint32_t tileN) { return tileN == 128 ? 2 : 1; }

enum class Operation : uint32_t { gemmAr, gemmRs, agGemm };

// Rows of C that may be computed so: of AllGather, where no results travel, more than a tile has.
MK_HD constexpr uint32_t mostTurnedRows(Operation op) { return op == Operation::agGemm ? 256 : kTurnedCols; }

// Spanning tiles (sched/gemm_rs.h) that are not turned.
constexpr uint32_t kSpanningCols = 128;

struct KernelChoice {
  uint32_t tileN = 256;               // kSlimCols, 128, kMediumCols or 256; turned: kTurnedCols
  bool turned = false;                // the plan is that of the product transposed
  uint32_t turnedRows = kTurnedRows;  // of it, that a tile has then
  bool spanning = false;              // not AllReduce: tiles have rows of several ranks
  uint32_t paceNs = 0;           // between two pieces of 2 KiB that a warpgroup stores to peers; 0: as fast as they go
  uint32_t flagBands = 1;        // a tile is announced to peers in so many bands of columns
  uint32_t early = 1;            // steps of K before a tile's end at which the peers' partial results are loaded
  uint32_t clusters = 1;         // that compute
  uint32_t receiveClusters = 0;  // that sum and finish what arrives from other nodes; AllGather: that send to them
  uint32_t copyClusters = 0;     // that copy peers' finished tiles to an ordinary C
  uint32_t ownUnit = 0, ownLag = 0;  // ReduceScatter: GemmRsPlan's, or 0: whole shards
  // AllGather on one node: what AgGemmPlan calls chunks, slices and groups.
  uint32_t chunkRows = 0, sliceCols = 0, groupChunks = 0;
  uint32_t movers = 0;    // AllGather: blocks that copy rows to peers beside computing
  uint32_t parts = 1;     // AllGather: of a tile's K, one for a cluster each (split_k.h)
  bool streamsB = false;  // B goes through the cache, and is not kept there

  // Rows of a tile of the plan.
  MK_HD constexpr uint32_t tileM() const { return turned ? turnedRows : kClusterRows; }
};

struct KernelShape {
  Operation operation = Operation::gemmAr;
  uint64_t m = 0, n = 0, k = 0;  // ReduceScatter: m of all ranks; AllGather: n of this rank
  uint32_t locals = 1, nodes = 1;
  uint32_t deviceClusters = 66;     // that fit on the device at once
  uint64_t cacheBytes = 50u << 20;  // of the device's L2
  bool staged = false;              // C is an ordinary pointer
  // What not all kernels can do.  spannable: tiles may have rows of several ranks: of AllGather always; of ReduceScatter where the
  // product is plain, of the inputs' type, and on one node.  turnable: that too, and B is (N, K); AllReduce: C in a window, or one
  // rank.
  bool turnable = false, spannable = false;
  bool mediumToo = false;      // AllGather: likewise, there may be tiles of kSlimCols and kMediumCols
  bool turned = false;         // the caller's choice, if they may be
  uint32_t turnedRows = 0;     // likewise, or 0
  uint32_t tileN = 0;          // the caller's choice, or 0
  uint32_t receiveAgents = 0;  // the caller's choice, or 0
};

// Nanoseconds between two boxes of 8 KiB that each of so many blocks moves, at the link's rate.
MK_HD constexpr uint32_t movePaceNs(uint32_t movers) { return 22 * movers; }

// The link's rate shared by the warpgroups of so many clusters: 2 KiB x 264 in 1450 ns.
MK_HD constexpr uint32_t linkPaceNs(uint32_t clusters) { return 22 * clusters; }

MK_HD constexpr void chooseMoves(const KernelShape& s, KernelChoice* c) {
  // A network card is slower than the fewest.
  c->movers = static_cast<uint32_t>(smaller(s.receiveAgents != 0 ? s.receiveAgents
                                            : s.nodes > 1        ? 48
                                                                 : ~0u,
                                            kClusterBlocks * (uint64_t{c->clusters} + c->receiveClusters)));
  if (s.nodes > 1 || s.locals == 1) return;
  // Of what all ranks have alike, in chunks whose flag costs as much as 16 KiB.
  const uint64_t rowBytes = s.k * 2;
  const Shards shards{s.m, s.locals};
  if (tilesBetterSpan(shards, s.nodes, kClusterRows)) {
    // A tile begins when the first columns of all its rows are there; of few rows those are long.
    constexpr uint64_t kMoveBytes = 32u << 10;
    c->chunkRows = 1;
    while (c->chunkRows < 32 && c->chunkRows < shards.height()) c->chunkRows *= 2;
    const uint64_t slices = ceilDiv(c->chunkRows * rowBytes, kMoveBytes);
    c->sliceCols = slices > 1 ? static_cast<uint32_t>(alignUp(ceilDiv(s.k, slices), stepK(true))) : 0;
    c->groupChunks = 1;
    while (slices <= 1 && c->chunkRows < 128 && c->chunkRows * 2 * rowBytes <= kMoveBytes) c->chunkRows *= 2;
    return;
  }
  // Small shards are there soonest as chunks of whole rows, one or so for each block; of others each slice of a chunk is some
  // boxes.
  const uint64_t shardBytes = shards.height() * rowBytes;
  const uint64_t each = shardBytes / (uint64_t{kClusterBlocks} * s.deviceClusters);
  if (each < 96u << 10) {
    c->chunkRows = 1;
    while (c->chunkRows < 128 && c->chunkRows * 2 * rowBytes <= 64u << 10) c->chunkRows *= 2;
  } else {
    c->chunkRows = 128;
    c->sliceCols = each < 1024u << 10 ? 256 : 512;
    // As many rows as the tiles under way have.
    const uint64_t rowsOfTiles = ceilDiv(c->clusters, larger(1, ceilDiv(s.n, c->tileN)));
    c->groupChunks = static_cast<uint32_t>(rowsOfTiles * kClusterRows / c->chunkRows);
    // Where products take longer than the link, it is filled evenly: a burst holds up the same SM's loads.
    if (s.n >= 1024) c->paceNs = movePaceNs(c->movers);
  }
}

// Rows of tiles, and how many there are.  No tile has rows of two shards, where there are any, unless it spans them or is
// turned; a short shard has places for those it lacks.
MK_HD constexpr uint64_t tileRowsOf(const KernelShape& s, const KernelChoice& c) {
  if (c.turned || c.spanning) return ceilDiv(s.m, c.turned ? kTurnedCols : kClusterRows);
  const Shards shards{s.m, s.operation == Operation::gemmAr ? 1 : s.locals * s.nodes};
  return ceilDiv(shards.height(), kClusterRows) * shards.ranks;
}
MK_HD constexpr uint64_t tilesOf(const KernelShape& s, const KernelChoice& c) {
  return tileRowsOf(s, c) * ceilDiv(s.n, c.turned ? c.turnedRows : c.tileN);
}

// Of AllGather, whose results do not travel.
MK_HD constexpr void splitK(const KernelShape& s, KernelChoice* c) {
  c->parts = 1;
  if (s.operation != Operation::agGemm || s.nodes > 1) return;
  c->parts = partsFor(tilesOf(s, *c), ceilDiv(s.k, stepK(c->turned)), c->clusters, tileTimes(c->tileN));
}

// Of tiles of so many columns.
MK_HD constexpr uint64_t timeOfAll(const KernelShape& s, uint64_t tileRows, uint32_t tileN) {
  const bool turned = tileN == kTurnedCols, gathers = s.operation == Operation::agGemm;
  // Of the others K is each rank's own, and what tiles they have is not.
  const uint64_t steps = gathers ? larger(1, ceilDiv(s.k, stepK(turned))) : 1;
  return timeOfTiles(tileRows * ceilDiv(s.n, turned ? kTurnedRows : tileN), steps, s.deviceClusters, tileTimes(tileN),
                     gathers && s.nodes == 1);
}

// Of AllGather turned tiles may have fewer rows, where those divide N: to the copy unit C has a plane for each block's.
MK_HD constexpr bool mayTurnBy(const KernelShape& s, uint32_t rows) {
  return rows == kTurnedRows || (s.operation == Operation::agGemm && rows >= kLeastTurnedRows && rows < kTurnedRows &&
                                 rows % kTurnedRowsStep == 0 && s.n % rows == 0);
}
// Those by which the clusters share B most evenly.  More parts of K are quicker than lower tiles: these only where there would
// be as many parts, and two of them at most.
MK_HD constexpr uint32_t turnedRowsFor(const KernelShape& s) {
  if (s.turnedRows != 0) return s.turnedRows;
  const auto tiles = [&](uint32_t rows) { return ceilDiv(s.m, kTurnedCols) * ceilDiv(s.n, rows); };
  const auto parts = [&](uint32_t rows) {
    return partsFor(tiles(rows), ceilDiv(s.k, stepK(true)), s.deviceClusters, tileTimes(kTurnedCols));
  };
  const auto time = [&](uint32_t rows) { return ceilDiv(tiles(rows), s.deviceClusters) * turnedStepTime(rows); };
  uint32_t best = kTurnedRows;
  for (uint32_t rows = kTurnedRows - kTurnedRowsStep; rows >= kLeastTurnedRows; rows -= kTurnedRowsStep) {
    if (mayTurnBy(s, rows) && parts(kTurnedRows) <= 2 && parts(rows) == parts(kTurnedRows) && time(rows) < time(best))
      best = rows;
  }
  return best;
}

// Up to kTurnedCols rows take as long as it takes to read B: a tile of 256 rows would be computed for a few, in as long again.
// Of AllGather, where no results travel, more are worth it where that is quicker: where tiles are so few that each is shared by
// three clusters, for tiles side by side read B twice.
MK_HD constexpr bool betterTurned(const KernelShape& s) {
  if (s.m <= kTurnedCols) return true;
  return s.m <= mostTurnedRows(s.operation) &&
         3 * ceilDiv(s.m, kTurnedCols) * ceilDiv(s.n, kTurnedRows) <= s.deviceClusters &&
         timeOfAll(s, ceilDiv(s.m, kTurnedCols), kTurnedCols) < timeOfAll(s, ceilDiv(s.m, kClusterRows), 128);
}

// Whether B is read once, or by tiles that are computed at about the same time, and is so large that the next launch would find
// little of it in the cache.  Let go first there, it comes faster, and the rows and C stay (perf/RESULTS.md).  Of 34 MB, some
// half of the cache, it was slower, of 59 MB faster; nothing between was measured.
MK_HD constexpr bool streamsB(const KernelShape& s, const KernelChoice& c) {
  return (c.turned || tileRowsOf(s, c) == 1) && s.n * s.k * 2 > s.cacheBytes / 4 * 3;
}

MK_HD constexpr KernelChoice chooseKernel(const KernelShape& s) {
  KernelChoice c;
  if (s.turnable && s.tileN == 0 && (s.turned || betterTurned(s))) {
    c.turned = true;
    c.spanning = s.operation == Operation::gemmRs || (s.operation == Operation::agGemm && s.locals > 1);
    c.tileN = kTurnedCols;
    c.turnedRows = turnedRowsFor(s);
    c.streamsB = streamsB(s, c);
    const uint64_t tiles = tilesOf(s, c);
    c.clusters = static_cast<uint32_t>(larger(1, smaller(tiles, s.deviceClusters)));
    if (s.operation == Operation::agGemm) {
      c.clusters = s.deviceClusters;
      splitK(s, &c);
      // Whoever has no tile moves rows.
      if (s.locals == 1) c.clusters = static_cast<uint32_t>(smaller(c.parts * larger(1, tiles), s.deviceClusters));
      chooseMoves(s, &c);
    }
    return c;
  }
  const Shards shards{s.m, s.operation == Operation::gemmAr ? 1 : s.locals * s.nodes};
  c.spanning = s.spannable && (s.operation == Operation::agGemm || s.tileN == 0 || s.tileN == kSpanningCols) &&
               tilesBetterSpan(shards, s.nodes, kClusterRows);
  const uint64_t tileRows = tileRowsOf(s, c);
  c.streamsB = streamsB(s, c);
  const bool resultsTravel = s.locals > 1 && s.operation != Operation::agGemm;
  if (s.tileN != 0) {
    c.tileN = s.tileN;
  } else if (resultsTravel) {
    // Narrow tiles multiply 10% slower but are out in half the time: worth it up to about four rounds of wide ones.
    c.tileN = c.spanning || tileRows * ceilDiv(s.n, 256) <= 4 * uint64_t{s.deviceClusters} ? 128 : 256;
  } else {
    c.tileN = 256;
    const auto consider = [&](uint32_t tileN) {
      if (timeOfAll(s, tileRows, tileN) < timeOfAll(s, tileRows, c.tileN)) c.tileN = tileN;
    };
    consider(128);
    if (s.operation == Operation::agGemm && s.mediumToo) {
      consider(kSlimCols);
      consider(kMediumCols);
    }
  }
  const uint64_t tiles = tilesOf(s, c);

  if (s.operation == Operation::agGemm) {
    if (s.nodes > 1) c.receiveClusters = 1;
  } else if (s.nodes > 1) {
    const uint32_t wanted = s.receiveAgents != 0 ? (s.receiveAgents + 1) / kClusterBlocks : 8;
    const uint32_t most = s.deviceClusters > 2 ? s.deviceClusters - 2 : 1;
    c.receiveClusters = static_cast<uint32_t>(smaller(wanted, most));
  }
  if (s.staged && resultsTravel) c.copyClusters = s.deviceClusters >= 16 ? 4 : 1;
  const uint64_t others = c.receiveClusters + c.copyClusters;
  const uint64_t room = s.deviceClusters > others ? s.deviceClusters - others : 1;
  // No more than do the same number of tiles each.
  c.clusters = static_cast<uint32_t>(larger(1, ceilDiv(tiles, larger(1, ceilDiv(tiles, room)))));
  if (c.spanning && resultsTravel) return c;
  // Whoever has no tile moves rows, or has a part of one.
  if (s.operation == Operation::agGemm) {
    const uint32_t clusters = c.clusters;
    c.clusters = static_cast<uint32_t>(room);
    splitK(s, &c);
    if (s.locals == 1) c.clusters = static_cast<uint32_t>(c.parts == 1 ? clusters : smaller(c.parts * tiles, room));
  }

  // Stores to peers at full rate hold up the same SM's loads, and flags behind them for some 8 us.  Where the link takes far
  // longer than the products, loads can wait and nothing is gained by pacing.  With two rounds all tiles of one are finished at
  // about the same time: announced in bands, and paced so that flags are quick, what comes back overlaps with what is still
  // going out.
  const bool twoRounds = c.tileN == 128 && tiles <= 2 * uint64_t{c.clusters};
  if (resultsTravel && (twoRounds || s.k >= 1024)) c.paceNs = linkPaceNs(c.clusters);
  if (resultsTravel && twoRounds) c.flagBands = mostFlagBands(c.tileN);
  c.early = c.tileN == 256 ? 4 : 1;
  // Where tiles take longer to push than to multiply, which is below some 1800 of K, and there are many, own tiles are
  // multiplied in between; half a round of them at a time, so that of all clusters half push, and so late that what they need
  // is there.
  if (s.operation == Operation::gemmRs && s.locals > 1 && s.k <= 1536 && tiles >= 8 * uint64_t{c.clusters}) {
    c.ownUnit = static_cast<uint32_t>(larger(1, c.clusters / 2));
    c.ownLag = 4;
    c.paceNs = 0;  // it is meant for all clusters pushing at a time
  }
  if (s.operation == Operation::agGemm) chooseMoves(s, &c);
  return c;
}

// The caller has so many blocks compute, if there are more.
MK_HD constexpr void limitClusters(const KernelShape& s, uint32_t computeAgents, KernelChoice* c) {
  c->clusters = static_cast<uint32_t>(larger(1, smaller(ceilDiv(computeAgents, kClusterBlocks), c->clusters)));
  if (s.operation == Operation::agGemm) {
    splitK(s, c);
    chooseMoves(s, c);
  } else if (c->paceNs != 0) {
    c->paceNs = linkPaceNs(c->clusters);
  }
}

}  // namespace mk::sched
