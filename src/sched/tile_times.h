// Which tiles the GPU kernels have, and how long they take: AllGather+GEMM has those by which all of C takes the shortest time.
#pragma once

#include "sched/split_k.h"

namespace mk::sched {

// Few rows are computed in tiles of the product transposed: kTurnedRows rows of it, which are columns of C, half of them in
// each block, by kTurnedCols.  A block's warpgroups have the same rows, and half of each step's K each.
constexpr uint32_t kTurnedRows = 128;
// AllGather+GEMM's may have fewer, where that fills their last round better; in sixteens, of which each block has half.
constexpr uint32_t kLeastTurnedRows = 80, kTurnedRowsStep = 16;
constexpr uint32_t kTurnedCols = 64;
// Tiles of so many columns are what AllGather+GEMM may have besides 128 and 256, where they fill their last round better.
constexpr uint32_t kSlimCols = 112, kMediumCols = 224;

// First column of the n-th chunk, of 32 or 64 columns, of a tile of so many.  The last one ends with the tile: where that has
// half a chunk more than whole ones, columns of the one before are in it too.
MK_HD constexpr uint32_t chunkCol(uint32_t n, uint32_t chunkCols, uint32_t tileCols) {
  if (tileCols % 64 == 0) return n * chunkCols;
  return n * chunkCols + chunkCols <= tileCols ? n * chunkCols : tileCols - chunkCols;
}

// Of K that is loaded, and multiplied, at a step.
MK_HD constexpr uint32_t stepK(bool turned) { return turned ? 128 : 64; }

constexpr uint32_t kMostParts = 8;  // of a tile's K (split_k.h)

// In nanoseconds on an H200 all of whose SMs compute: a step of a tile; where it has several parts, to leave one and find out
// that it is the last, and to add each of the others.
struct TileTimes {
  uint32_t step = 0, leave = 0, add = 0;
  uint32_t mostParts = kMostParts;
  MK_HD constexpr uint64_t time(uint64_t steps, uint32_t parts) const {
    return ceilDiv(steps, parts) * step + (parts > 1 ? leave + (parts - 1) * uint64_t{add} : 0);
  }
};
MK_HD constexpr TileTimes tileTimes(uint32_t tileN) {
  return tileN == kTurnedCols   ? TileTimes{330, 2200, 300}
         : tileN == 128         ? TileTimes{400, 2500, 800}
         : tileN == kSlimCols   ? TileTimes{375, 2500, 800}
         : tileN == kMediumCols ? TileTimes{645, 0, 0, 1}
                                : TileTimes{711, 0, 0, 1};
}

// A step of a turned tile of so many rows, where all clusters have one: what their B takes at 4.3 TB/s, but no less than the
// loads that a cluster can have under way take to come.
MK_HD constexpr uint32_t turnedStepTime(uint32_t rows) { return rows < 88 ? 330 : rows * 15 / 4; }

// Parts into which K is best split for so few tiles that as many clusters as there are parts could have one each.
MK_HD constexpr uint32_t partsFor(uint64_t tiles, uint64_t steps, uint64_t clusters, const TileTimes& times) {
  const uint64_t room = tiles == 0 ? 1 : larger(1, smaller(clusters / tiles, smaller(steps, times.mostParts)));
  uint32_t best = 1;
  for (uint32_t parts = 2; parts <= room; ++parts) {
    if (times.time(steps, parts) < times.time(steps, best)) best = parts;
  }
  return best;
}

MK_HD constexpr uint64_t timeOfTiles(uint64_t tiles, uint64_t steps, uint64_t clusters, const TileTimes& times,
                                     bool inParts) {
  return ceilDiv(tiles, clusters) * times.time(steps, inParts ? partsFor(tiles, steps, clusters, times) : 1);
}

}  // namespace mk::sched
