// Tiles of which several clusters each multiply a part of K, where there are too few for all clusters to have one.  Every part
// leaves its sums in memory and counts itself; whoever is last to come adds all of them, in the order of the parts, and
// finishes the tile.  So nobody waits for a cluster that may not be resident, and the result does not depend on who was last.
// (Split-K, as in "Stream-K", Osama et al., arXiv:2301.03598, whose tiles are finished by the first part instead.)
#pragma once

#include "sched/common.h"

namespace mk::sched {

// A part's steps of K: `count` of them, from `first` on, `stride` apart.
struct KSteps {
  uint32_t first = 0, stride = 1, count = 0;
  MK_HD constexpr uint32_t at(uint32_t i) const { return first + i * stride; }
};

// Each part has every parts-th step, so that all go along K together, as columns of A come.
struct KSplit {
  uint32_t parts = 1;             // no more than steps
  uint32_t base = 1, longer = 0;  // steps of each part, and how many of the first ones have one more

  KSplit() = default;
  MK_HD constexpr KSplit(uint32_t steps, uint32_t allParts)
      : parts(allParts), base(steps / allParts), longer(steps % allParts) {}

  MK_HD constexpr KSteps of(uint32_t part) const { return {part, parts, base + (part < longer ? 1 : 0)}; }
  // Place of what a warpgroup leaves of a part of a tile, in units of that; of a cluster's two blocks each has `groups` that
  // leave some.
  MK_HD constexpr uint64_t place(uint32_t tile, uint32_t part, uint32_t block, uint32_t group, uint32_t groups) const {
    return ((uint64_t{tile} * parts + part) * 2 + block) * groups + group;
  }
  // Word that counts the parts which have come, of what warpgroups with the same block and number have of a tile.
  MK_HD static constexpr uint32_t count(uint32_t tile, uint32_t block, uint32_t group) {
    return (tile * 2 + block) * 2 + group;
  }
};

// Memory for so many parts of tiles: counts, zero at first, then sums in fp32.
struct SplitMemory {
  static constexpr uint64_t kSumsEach = 256u * 128u * 4u;  // of the largest tile whose K is split
  uint32_t slots = 0;
  MK_HD constexpr uint64_t countBytes() const { return alignUp(uint64_t{slots} * 4 * sizeof(uint64_t), 1024); }
  MK_HD constexpr uint64_t bytes() const { return countBytes() + slots * kSumsEach; }
};

}  // namespace mk::sched
