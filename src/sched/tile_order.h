// The order of tiles (chunks.h, tiles.h) in 32-bit arithmetic without division: what an agent that must start at once needs to
// know of the tile at a position.  Made on the host from the plan; tests compare it with protocol::taskAt for every position.
#pragma once

#include "sched/gemm_ar.h"

namespace mk::sched {

// Division by a number known beforehand.
struct FastDivision {
  uint32_t divisor = 1, factor = 0xffffffffu;  // factor: 2^32 / divisor, rounded down

  FastDivision() = default;
  MK_HD explicit constexpr FastDivision(uint64_t d)
      : divisor(d == 0 ? 1 : static_cast<uint32_t>(d)),
        factor(d <= 1 ? 0xffffffffu : static_cast<uint32_t>((uint64_t{1} << 32) / d)) {}
  // The product falls short by less than one, so one correction suffices.
  MK_HD constexpr uint32_t divide(uint32_t n) const {
    const uint32_t q = static_cast<uint32_t>((static_cast<uint64_t>(n) * factor) >> 32);
    return n - q * divisor >= divisor ? q + 1 : q;
  }
};

struct TileStep {
  uint32_t tile = 0;
  uint32_t row = 0, col = 0;    // first element
  uint32_t rows = 0, cols = 0;  // smaller at the edges
  uint32_t owner = 0;
  uint32_t ownedTile = 0, ownedChunk = 0;
};

// For results of less than 2^31 tiles and dimensions below 2^31.
struct TileOrder {
  uint32_t positions = 0, chunkTiles = 1, window = 1, locals = 1;
  uint32_t waveTiles = 1, waveChunks = 1, lastWave = 0, lastChunks = 1;
  uint32_t startFull = 0, startLast = 0;  // first tile within a wave of the rank after this one
  uint32_t groupRows = 1, tileRows = 0, lastGroup = 0;
  uint32_t m = 0, n = 0, tileM = 1, tileN = 1;
  FastDivision byWave, byChunk, byFullSize, byLastSize, byLocals, byGroup, byRows, byLastRows;

  TileOrder() = default;
  explicit constexpr TileOrder(const GemmArPlan& p)
      : positions(static_cast<uint32_t>(p.chunks.tiles)),
        chunkTiles(p.chunks.chunkTiles),
        window(static_cast<uint32_t>(p.chunks.window)),
        locals(p.chunks.locals) {
    const uint64_t chunks = p.chunks.chunks();
    const uint32_t next = (p.place().local + 1) % locals;
    waveChunks = window * locals;
    waveTiles = waveChunks * chunkTiles;
    lastWave = chunks == 0 ? 0 : static_cast<uint32_t>((chunks - 1) / waveChunks);
    lastChunks = static_cast<uint32_t>(chunks - uint64_t{lastWave} * waveChunks);
    startFull = next * window * chunkTiles;
    startLast = static_cast<uint32_t>(uint64_t{next} * lastChunks / locals * chunkTiles);
    m = static_cast<uint32_t>(p.grid.m);
    n = static_cast<uint32_t>(p.grid.n);
    tileM = p.grid.tileM;
    tileN = p.grid.tileN;
    groupRows = p.grid.groupRows;
    tileRows = static_cast<uint32_t>(p.grid.rowsOfTiles());
    lastGroup = tileRows == 0 ? 0 : (tileRows - 1) / groupRows;
    byWave = FastDivision(waveTiles);
    byChunk = FastDivision(chunkTiles);
    byFullSize = FastDivision(waveChunks);
    byLastSize = FastDivision(lastChunks);
    byLocals = FastDivision(locals);
    byGroup = FastDivision(groupRows * p.grid.colsOfTiles());
    byRows = FastDivision(groupRows);
    byLastRows = FastDivision(tileRows - lastGroup * groupRows);
  }

  // position < positions.
  MK_HD constexpr TileStep at(uint32_t position) const {
    const uint32_t wave = byWave.divide(position);
    const bool last = wave == lastWave;
    const uint32_t base = wave * waveTiles;
    const uint32_t count = last ? positions - base : waveTiles;
    uint32_t inWave = (last ? startLast : startFull) + position - base;
    if (inWave >= count) inWave -= count;

    TileStep s;
    s.tile = base + inWave;
    const uint32_t chunk = byChunk.divide(inWave);  // within the wave
    const uint32_t size = last ? lastChunks : waveChunks;
    const uint32_t scaled = (chunk + 1) * locals - 1;
    s.owner = last ? byLastSize.divide(scaled) : byFullSize.divide(scaled);
    s.ownedChunk = wave * window + chunk - byLocals.divide(s.owner * size);
    s.ownedTile = s.ownedChunk * chunkTiles + inWave - chunk * chunkTiles;

    const uint32_t group = byGroup.divide(s.tile);
    const uint32_t inGroup = s.tile - group * byGroup.divisor;
    const uint32_t tileCol = group == lastGroup ? byLastRows.divide(inGroup) : byRows.divide(inGroup);
    const uint32_t rowsHere = group == lastGroup ? byLastRows.divisor : groupRows;
    s.row = (group * groupRows + inGroup - tileCol * rowsHere) * tileM;
    s.col = tileCol * tileN;
    s.rows = m - s.row < tileM ? m - s.row : tileM;
    s.cols = n - s.col < tileN ? n - s.col : tileN;
    return s;
  }
};

}  // namespace mk::sched
