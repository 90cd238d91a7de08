// The rows of a matrix dealt out to all ranks, in order of global rank: ceil(M / ranks) each, so that the last ranks may have
// fewer, or none.
#pragma once

#include "sched/common.h"

namespace mk::sched {

struct Shards {
  uint64_t m = 0;
  uint32_t ranks = 1;

  MK_HD constexpr uint64_t height() const { return ceilDiv(m, ranks); }
  MK_HD constexpr uint64_t first(uint32_t rank) const { return smaller(m, rank * height()); }
  MK_HD constexpr uint64_t rows(uint32_t rank) const { return first(rank + 1) - first(rank); }
  // Rows of tiles of so many rows each, none of which has rows of two shards.
  MK_HD constexpr uint64_t rowsOfTiles(uint32_t tileM) const {
    const uint64_t each = height();
    if (each == 0) return 0;
    const uint64_t whole = m / each;
    return whole * ceilDiv(each, tileM) + ceilDiv(m - whole * each, tileM);
  }
};

// Whether tiles of an AllGather+GEMM or a GEMM+ReduceScatter are better of all rows: shards have so few that tiles of one each would
// be half as many again, and the products take that much longer.  With several nodes rows of the nearer ones are worth more.
MK_HD constexpr bool tilesBetterSpan(const Shards& shards, uint32_t nodes, uint32_t tileM) {
  return nodes == 1 && shards.ranks > 1 && shards.m != 0 &&
         2 * shards.rowsOfTiles(tileM) >= 3 * ceilDiv(shards.m, tileM);
}

// Which global rank stands where.  Nodes are numbered by their lowest rank, local ranks by ascending rank; beyond that any
// order is legal, so it is a table that all ranks have alike.
struct RankMap {
  uint32_t locals = 1;
  const uint32_t* table = nullptr;  // by node * locals + local; null: that number is the rank

  MK_HD constexpr uint32_t rank(uint32_t node, uint32_t local) const {
    return table != nullptr ? table[node * locals + local] : node * locals + local;
  }
};

}  // namespace mk::sched
