// The table of times: see bench.cc.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "world.h"

namespace mk::kernels::test {

// shapes: b = M = N, and K.  tune: variants too.  False: there is nothing to compare with.
bool bench(Rank* ranks, const std::vector<std::pair<uint64_t, uint64_t>>& shapes, bool tune);
// Products alone, of one rank, for shapes M, N, K.
bool benchAlone(Rank* ranks, const std::vector<std::array<uint64_t, 3>>& shapes);

}  // namespace mk::kernels::test
