// The grid of tiles of an M x N result, and the raster order in which tiles are numbered.
#pragma once

#include "sched/common.h"

namespace mk::sched {

// A tile's place in the result; rows and cols are smaller at the ragged edges.
struct Tile {
  uint64_t row = 0, col = 0;  // of its first element
  uint32_t rows = 0, cols = 0;
};

// One of rows x cols cells that are numbered in groups of `groupRows` rows, column by column inside a group.
struct Cell {
  uint64_t row = 0, col = 0;
};
MK_HD constexpr Cell rasterCell(uint64_t index, uint64_t rows, uint64_t cols, uint32_t groupRows) {
  const uint64_t perGroup = groupRows * cols;
  const uint64_t firstRow = index / perGroup * groupRows;
  const uint64_t rowsHere = smaller(groupRows, rows - firstRow);
  const uint64_t inGroup = index % perGroup;
  return Cell{firstRow + inGroup % rowsHere, inGroup / rowsHere};
}

// Tiles are numbered in groups of `groupRows` tile rows, column by column inside a group, so that tiles close in number
// share rows of A and columns of B in the cache (the "super-M" order of the paper).
struct TileGrid {
  uint64_t m = 0, n = 0;
  uint32_t tileM = 1, tileN = 1;
  uint32_t groupRows = 8;

  MK_HD constexpr uint64_t rowsOfTiles() const { return ceilDiv(m, tileM); }
  MK_HD constexpr uint64_t colsOfTiles() const { return ceilDiv(n, tileN); }
  MK_HD constexpr uint64_t count() const { return rowsOfTiles() * colsOfTiles(); }

  MK_HD constexpr Tile tile(uint64_t index) const {
    const Cell cell = rasterCell(index, rowsOfTiles(), colsOfTiles(), groupRows);
    return at(cell.row, cell.col);
  }
  MK_HD constexpr uint64_t index(uint64_t tileRow, uint64_t tileCol) const {
    const uint64_t firstRow = tileRow / groupRows * groupRows;
    const uint64_t rowsHere = smaller(groupRows, rowsOfTiles() - firstRow);
    return firstRow * colsOfTiles() + tileCol * rowsHere + (tileRow - firstRow);
  }
  MK_HD constexpr Tile at(uint64_t tileRow, uint64_t tileCol) const {
    Tile t;
    t.row = tileRow * tileM;
    t.col = tileCol * tileN;
    t.rows = static_cast<uint32_t>(smaller(tileM, m - t.row));
    t.cols = static_cast<uint32_t>(smaller(tileN, n - t.col));
    return t;
  }
  // Elements of a tile; tiles are stored packed, row by row, in slots of tileM * tileN elements.
  MK_HD constexpr uint64_t elements(uint64_t index) const {
    const Tile t = tile(index);
    return static_cast<uint64_t>(t.rows) * t.cols;
  }
  // Elements of all tiles numbered below `index`, for any index up to count().
  MK_HD constexpr uint64_t elementsBelow(uint64_t index) const {
    if (index >= count()) return m * n;
    const uint64_t perGroup = groupRows * colsOfTiles();
    const uint64_t firstRow = index / perGroup * groupRows;
    const uint64_t rowsHere = smaller(groupRows, rowsOfTiles() - firstRow);
    const uint64_t inGroup = index % perGroup;
    const uint64_t height = smaller(rowsHere * tileM, m - firstRow * tileM);
    const uint64_t col = inGroup / rowsHere * tileN;
    return firstRow * tileM * n + height * col + inGroup % rowsHere * tileM * smaller(tileN, n - col);
  }
};

}  // namespace mk::sched
