// Which rows of a spanning tile (gemm_rs.h) are whose, in 32-bit arithmetic without a division by what is not known beforehand:
// what the agents of a GPU ask of each part of a tile.  Tests compare it with GemmRsPlan.
#pragma once

#include "sched/common.h"

namespace mk::sched {

// Some rows of C; or some pieces of a part's.
struct RowSpan {
  uint32_t first = 0, end = 0;

  MK_HD constexpr bool empty() const { return first >= end; }
  MK_HD constexpr RowSpan with(const RowSpan& o) const {  // what both have
    return {first > o.first ? first : o.first, end < o.end ? end : o.end};
  }
};

// The rows of C that a part of a tile has: `height` of the tile's rows, from `first` on, as far as the tile has so many.
// turned: the tile's rows are columns of C, and a part with any has all the tile's rows of C.  Step: TileStep, or what has its
// words.
template <class Step>
MK_HD constexpr RowSpan rowsOfPart(const Step& t, bool turned, uint32_t first, uint32_t height) {
  const RowSpan all = {t.row, t.row + t.rows}, some = {t.row + first, t.row + first + height};
  const RowSpan part = some.with(all);
  if (!turned || part.empty()) return part;
  return {t.col, t.col + t.cols};
}
// Of what is announced as one, one of the tile's `parts` (GemmRsPlan::ownSpanningParts()): turned, also where the tile is so
// short that the part has no row of it.
template <class Step>
MK_HD constexpr RowSpan rowsOfBlock(const Step& t, bool turned, uint32_t first, uint32_t height) {
  if (turned) return {t.col, t.col + t.cols};
  return rowsOfPart(t, false, first, height);
}

// Rows of C that travel together.
constexpr uint32_t kPieceRows = 16;

// The rows of C as the ranks of a node collect them.  For dimensions below 2^31.
struct RowShards {
  uint32_t m = 0, height = 0;  // of C on all ranks, of a full shard
  uint32_t local = 0;          // this rank's

  MK_HD constexpr RowSpan of(uint32_t l) const {
    const uint32_t first = l * height;
    return {first < m ? first : m, first + height < m ? first + height : m};
  }
  // Some of a part's rows are peers'; are this rank's.
  MK_HD constexpr bool gives(const RowSpan& part) const {
    const RowSpan own = of(local);
    return !part.empty() && (part.first < own.first || part.end > own.end);
  }
  MK_HD constexpr bool keeps(const RowSpan& part) const { return has(local, part); }
  // Some are that rank's.
  MK_HD constexpr bool has(uint32_t l, const RowSpan& part) const { return !part.with(of(l)).empty(); }
  // The pieces of a part, by number from its first row, that have some of that rank's rows.  Two ranks may have one in common.
  MK_HD constexpr RowSpan pieces(uint32_t l, const RowSpan& part) const {
    const RowSpan rows = part.with(of(l));
    if (rows.empty()) return {};
    return {(rows.first - part.first) / kPieceRows, (rows.end - part.first + kPieceRows - 1) / kPieceRows};
  }
};

}  // namespace mk::sched
