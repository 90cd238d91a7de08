// Properties of TileGrid: numbering and raster order, every element covered once, ragged edges, running element counts.
#include "must.h"

namespace mk::sched::test {
namespace {

// Calls visit(grid) for all grids of up to 7 x 6 tiles with every raggedness, tiles of 3 x 2.
template <typename Visit>
void forGrids(const Visit& visit) {
  for (uint32_t groupRows : {1u, 2u, 3u, 8u}) {
    for (uint64_t m = 0; m <= 21; ++m) {
      for (uint64_t n = 0; n <= 12; ++n) visit(TileGrid{m, n, 3, 2, groupRows});
    }
  }
}

TEST_CASE("a tile's number and its place are each other's inverse") {
  forGrids([](const TileGrid& g) {
    MUST(g.count() == g.rowsOfTiles() * g.colsOfTiles(), describe(g));
    std::vector<int> seen(g.count(), 0);
    for (uint64_t row = 0; row < g.rowsOfTiles(); ++row) {
      for (uint64_t col = 0; col < g.colsOfTiles(); ++col) {
        const uint64_t index = g.index(row, col);
        MUST(index < g.count(), describe(g) << ", tile " << row << "," << col);
        MUST(seen[index]++ == 0, describe(g) << ", tile " << row << "," << col);
        const Tile t = g.tile(index);
        MUST(t.row == row * g.tileM && t.col == col * g.tileN, describe(g) << ", tile " << index);
      }
    }
  });
}

TEST_CASE("tiles cover every element of the result exactly once") {
  forGrids([](const TileGrid& g) {
    std::vector<int> covered(g.m * g.n, 0);
    uint64_t below = 0;
    for (uint64_t i = 0; i < g.count(); ++i) {
      const Tile t = g.tile(i);
      MUST(t.rows >= 1 && t.rows <= g.tileM && t.cols >= 1 && t.cols <= g.tileN, describe(g) << ", tile " << i);
      MUST(t.row + t.rows <= g.m && t.col + t.cols <= g.n, describe(g) << ", tile " << i);
      // Only the last row and the last column of tiles are ragged.
      MUST(t.rows == g.tileM || t.row + t.rows == g.m, describe(g) << ", tile " << i);
      MUST(t.cols == g.tileN || t.col + t.cols == g.n, describe(g) << ", tile " << i);
      MUST(g.elements(i) == uint64_t{t.rows} * t.cols, describe(g) << ", tile " << i);
      MUST(g.elementsBelow(i) == below, describe(g) << ", tile " << i);
      below += g.elements(i);
      for (uint64_t r = t.row; r < t.row + t.rows; ++r) {
        for (uint64_t c = t.col; c < t.col + t.cols; ++c)
          MUST(covered[r * g.n + c]++ == 0, describe(g) << ", tile " << i);
      }
    }
    MUST(below == g.m * g.n, describe(g));
    MUST(g.elementsBelow(g.count()) == g.m * g.n, describe(g));
    for (const int times : covered) MUST(times == 1, describe(g));
  });
}

TEST_CASE("an empty result has no tiles") {
  for (uint64_t other : {0u, 1u, 1000u}) {
    CHECK(TileGrid{0, other, 64, 64, 8}.count() == 0);
    CHECK(TileGrid{other, 0, 64, 64, 8}.count() == 0);
    CHECK(TileGrid{0, other, 64, 64, 8}.elementsBelow(0) == 0);
    CHECK(TileGrid{other, 0, 64, 64, 8}.elementsBelow(0) == 0);
  }
}

// The raster order keeps tiles of `groupRows` rows of tiles together: while a group lasts, at most groupRows rows of A and
// one column of B after the other are in use.
TEST_CASE("tiles are numbered in groups of rows, column by column") {
  forGrids([](const TileGrid& g) {
    for (uint64_t i = 0; i + 1 < g.count(); ++i) {
      const Tile a = g.tile(i), b = g.tile(i + 1);
      const uint64_t groupA = a.row / g.tileM / g.groupRows, groupB = b.row / g.tileM / g.groupRows;
      MUST(groupA <= groupB && groupB <= groupA + 1, describe(g) << ", tile " << i);
      if (groupA == groupB) {
        const bool down = b.col == a.col && b.row == a.row + g.tileM;
        const bool nextColumn = b.col == a.col + g.tileN && b.row / g.tileM == groupB * g.groupRows;
        MUST(down || nextColumn, describe(g) << ", tile " << i);
      } else {
        MUST(b.col == 0 && b.row / g.tileM == groupB * g.groupRows, describe(g) << ", tile " << i);
      }
    }
  });
}

}  // namespace
}  // namespace mk::sched::test
