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
};

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
